"""The search among placements of one model, and the strategies that search.

Names are imported on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names

if TYPE_CHECKING:
    from qdqtune.search._space import Group, Space, State
    from qdqtune.search.strategies._assembly_search import SubgraphTask
    from qdqtune.search.strategies._registry import make_strategy
    from qdqtune.search.strategies._strategy import (
        Effort,
        Limits,
        Score,
        SearchStrategy,
        SearchTask,
        SteppedStrategy,
        Trial,
    )

__all__ = [
    "Effort",
    "Group",
    "Limits",
    "Score",
    "SearchStrategy",
    "SearchTask",
    "Space",
    "State",
    "SteppedStrategy",
    "SubgraphTask",
    "Trial",
    "make_strategy",
]

_HOMES = dict.fromkeys(__all__, "qdqtune.search.strategies._strategy") | {
    "Group": "qdqtune.search._space",
    "Space": "qdqtune.search._space",
    "State": "qdqtune.search._space",
    "SubgraphTask": "qdqtune.search.strategies._assembly_search",
    "make_strategy": "qdqtune.search.strategies._registry",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
