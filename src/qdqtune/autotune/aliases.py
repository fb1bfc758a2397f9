"""Other names under which things of this package are known.

What has a name in the documents that the project started from and another in what was released
answers to both; this is where the second ones live.
"""

from __future__ import annotations

from qdqtune.autotune.patterns.insertion_points import RegionOutputInsertionPoint

ChildRegionOutputInsertionPoint = RegionOutputInsertionPoint
"""The released name."""
