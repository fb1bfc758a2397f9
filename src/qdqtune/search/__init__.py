"""The search among placements of one model, and the strategies that search.

Names are imported on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names

if TYPE_CHECKING:
    from qdqtune.search._space import Group as Group
    from qdqtune.search._space import Space as Space
    from qdqtune.search._space import State as State
    from qdqtune.search.strategies._assembly_search import SubgraphTask as SubgraphTask
    from qdqtune.search.strategies._registry import make_strategy as make_strategy
    from qdqtune.search.strategies._strategy import Effort as Effort
    from qdqtune.search.strategies._strategy import Limits as Limits
    from qdqtune.search.strategies._strategy import Score as Score
    from qdqtune.search.strategies._strategy import SearchStrategy as SearchStrategy
    from qdqtune.search.strategies._strategy import SearchTask as SearchTask
    from qdqtune.search.strategies._strategy import SteppedStrategy as SteppedStrategy
    from qdqtune.search.strategies._strategy import Trial as Trial

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "qdqtune.search._space": "Group Space State",
        "qdqtune.search.strategies._assembly_search": "SubgraphTask",
        "qdqtune.search.strategies._registry": "make_strategy",
        "qdqtune.search.strategies._strategy": (
            "Effort Limits Score SearchStrategy SearchTask SteppedStrategy Trial"
        ),
    },
)
