"""The search among placements of one model.

What is offered here is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names

if TYPE_CHECKING:
    from qdqtune.search._space import Group, Space, State
    from qdqtune.search.strategies._placement_search import PlacementSearch
    from qdqtune.search.strategies._strategy import Limits, Score, Trial

__all__ = [
    "Group",
    "Limits",
    "PlacementSearch",
    "Score",
    "Space",
    "State",
    "Trial",
]

_HOMES = {
    "Group": "qdqtune.search._space",
    "Limits": "qdqtune.search.strategies._strategy",
    "PlacementSearch": "qdqtune.search.strategies._placement_search",
    "Score": "qdqtune.search.strategies._strategy",
    "Space": "qdqtune.search._space",
    "State": "qdqtune.search._space",
    "Trial": "qdqtune.search.strategies._strategy",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
