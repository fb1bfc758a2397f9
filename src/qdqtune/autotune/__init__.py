"""The search: regions, patterns, insertion points, schemes, and the autotuner that tries them.

What is offered here is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qdqtune.autotune.aliases import ChildRegionOutputInsertionPoint
    from qdqtune.autotune.config import Config
    from qdqtune.autotune.errors import (
        AutotunerError,
        AutotunerNotInitializedError,
        InvalidSchemeError,
    )
    from qdqtune.autotune.patterns.insertion_points import (
        ChildRegionInputInsertionPoint,
        InsertionPoint,
        NodeInputInsertionPoint,
        RegionOutputInsertionPoint,
        has_quantizable_operations,
    )
    from qdqtune.autotune.patterns.pattern_cache import PatternCache
    from qdqtune.autotune.patterns.pattern_schemes import PatternSchemes
    from qdqtune.autotune.patterns.point_filters import (
        get_autotuner_quantizable_ops,
        get_autotuner_skip_ops,
        resolve_region_io_insertion_points,
        skip_invalid_insertion_points,
    )
    from qdqtune.autotune.patterns.region_pattern import RegionPattern
    from qdqtune.autotune.patterns.resolved import (
        ResolvedInsertionPoint,
        merge_resolved_insertion_points,
    )
    from qdqtune.autotune.patterns.scheme import InsertionScheme
    from qdqtune.autotune.presets import (
        MODE_PRESETS,
        StoreWithExplicitFlag,
        get_node_filter_list,
    )
    from qdqtune.autotune.regions.region import Region, RegionType
    from qdqtune.autotune.regions.region_search import CombinedRegionSearch
    from qdqtune.autotune.session.autotuner import QDQAutotuner
    from qdqtune.autotune.session.autotuner_base import QDQAutotunerBase

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
    "get_autotuner_quantizable_ops",
    "get_autotuner_skip_ops",
    "get_node_filter_list",
    "has_quantizable_operations",
    "merge_resolved_insertion_points",
    "resolve_region_io_insertion_points",
    "skip_invalid_insertion_points",
]

_HOMES = {
    "MODE_PRESETS": "presets",
    "AutotunerError": "errors",
    "AutotunerNotInitializedError": "errors",
    "ChildRegionInputInsertionPoint": "patterns.insertion_points",
    "ChildRegionOutputInsertionPoint": "aliases",
    "CombinedRegionSearch": "regions.region_search",
    "Config": "config",
    "InsertionPoint": "patterns.insertion_points",
    "InsertionScheme": "patterns.scheme",
    "InvalidSchemeError": "errors",
    "NodeInputInsertionPoint": "patterns.insertion_points",
    "PatternCache": "patterns.pattern_cache",
    "PatternSchemes": "patterns.pattern_schemes",
    "QDQAutotuner": "session.autotuner",
    "QDQAutotunerBase": "session.autotuner_base",
    "Region": "regions.region",
    "RegionOutputInsertionPoint": "patterns.insertion_points",
    "RegionPattern": "patterns.region_pattern",
    "RegionType": "regions.region",
    "ResolvedInsertionPoint": "patterns.resolved",
    "StoreWithExplicitFlag": "presets",
    "TensorRTPyBenchmark": "workflows",
    "TrtExecBenchmark": "workflows",
    "get_node_filter_list": "presets",
    "merge_resolved_insertion_points": "patterns.resolved",
    "has_quantizable_operations": "patterns.insertion_points",
    "get_autotuner_quantizable_ops": "patterns.point_filters",
    "get_autotuner_skip_ops": "patterns.point_filters",
    "resolve_region_io_insertion_points": "patterns.point_filters",
    "skip_invalid_insertion_points": "patterns.point_filters",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
