"""The kit that proves an engine: one test class to inherit, one fixture to fill in.

It stands beside the layers, like the zoo: nothing of qdqtune imports it. See docs/engines.md.
"""

from __future__ import annotations

try:
    import pytest
except ModuleNotFoundError as error:
    raise ImportError(
        "qdqtune.testing needs pytest, which is not installed.\n"
        "Install it: pip install 'qdqtune[testing]'"
    ) from error

from qdqtune.testing.bench import Bench, EngineUnderTest
from qdqtune.testing.conformance import EngineConformance

del pytest  # it was asked for only to say what is missing

__all__ = ["Bench", "EngineConformance", "EngineUnderTest"]
