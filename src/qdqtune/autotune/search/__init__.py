"""The search among placements of one model.

What is offered here is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names

if TYPE_CHECKING:
    from qdqtune.autotune.search.placement_search import PlacementSearch
    from qdqtune.autotune.search.space import Group, Space, State
    from qdqtune.autotune.search.strategy import Limits
    from qdqtune.autotune.search.trial import Score, Trial

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
    "Group": "qdqtune.autotune.search.space",
    "Limits": "qdqtune.autotune.search.strategy",
    "PlacementSearch": "qdqtune.autotune.search.placement_search",
    "Score": "qdqtune.autotune.search.trial",
    "Space": "qdqtune.autotune.search.space",
    "State": "qdqtune.autotune.search.space",
    "Trial": "qdqtune.autotune.search.trial",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
