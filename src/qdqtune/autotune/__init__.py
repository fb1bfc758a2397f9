"""The search: regions, patterns, insertion points, schemes, and the autotuner that tries them.

What is offered here is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qdqtune.autotune.autotuner import QDQAutotuner
    from qdqtune.autotune.autotuner_base import QDQAutotunerBase
    from qdqtune.autotune.config import Config
    from qdqtune.autotune.errors import (
        AutotunerError,
        AutotunerNotInitializedError,
        InvalidSchemeError,
    )
    from qdqtune.autotune.insertion_points import (
        ChildRegionInputInsertionPoint,
        ChildRegionOutputInsertionPoint,
        InsertionPoint,
        NodeInputInsertionPoint,
        RegionOutputInsertionPoint,
    )
    from qdqtune.autotune.pattern_cache import PatternCache
    from qdqtune.autotune.pattern_schemes import PatternSchemes
    from qdqtune.autotune.presets import (
        MODE_PRESETS,
        StoreWithExplicitFlag,
        get_node_filter_list,
    )
    from qdqtune.autotune.region import Region, RegionType
    from qdqtune.autotune.region_pattern import RegionPattern
    from qdqtune.autotune.region_search import CombinedRegionSearch
    from qdqtune.autotune.resolved import ResolvedInsertionPoint
    from qdqtune.autotune.scheme import InsertionScheme

__all__ = [
    "MODE_PRESETS",
    "AutotunerError",
    "AutotunerNotInitializedError",
    "ChildRegionInputInsertionPoint",
    "ChildRegionOutputInsertionPoint",
    "CombinedRegionSearch",
    "Config",
    "InsertionPoint",
    "InsertionScheme",
    "InvalidSchemeError",
    "NodeInputInsertionPoint",
    "PatternCache",
    "PatternSchemes",
    "QDQAutotuner",
    "QDQAutotunerBase",
    "Region",
    "RegionOutputInsertionPoint",
    "RegionPattern",
    "RegionType",
    "ResolvedInsertionPoint",
    "StoreWithExplicitFlag",
    "TensorRTPyBenchmark",
    "TrtExecBenchmark",
    "get_node_filter_list",
]

_HOMES = {
    "MODE_PRESETS": "presets",
    "AutotunerError": "errors",
    "AutotunerNotInitializedError": "errors",
    "ChildRegionInputInsertionPoint": "insertion_points",
    "ChildRegionOutputInsertionPoint": "insertion_points",
    "CombinedRegionSearch": "region_search",
    "Config": "config",
    "InsertionPoint": "insertion_points",
    "InsertionScheme": "scheme",
    "InvalidSchemeError": "errors",
    "NodeInputInsertionPoint": "insertion_points",
    "PatternCache": "pattern_cache",
    "PatternSchemes": "pattern_schemes",
    "QDQAutotuner": "autotuner",
    "QDQAutotunerBase": "autotuner_base",
    "Region": "region",
    "RegionOutputInsertionPoint": "insertion_points",
    "RegionPattern": "region_pattern",
    "RegionType": "region",
    "ResolvedInsertionPoint": "resolved",
    "StoreWithExplicitFlag": "presets",
    "TensorRTPyBenchmark": "workflows",
    "TrtExecBenchmark": "workflows",
    "get_node_filter_list": "presets",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
