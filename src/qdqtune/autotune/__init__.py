"""The search: regions, patterns, insertion points, schemes, and the autotuner that tries them.

Names are imported on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdqtune.autotune.aliases import found as _found
from qdqtune.autotune.aliases import install as _install

if TYPE_CHECKING:
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
    from qdqtune.autotune.patterns.insertion_points import (
        RegionOutputInsertionPoint as ChildRegionOutputInsertionPoint,
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
    from qdqtune.autotune.regions.custom_regions import region_of
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
    "region_of",
    "resolve_region_io_insertion_points",
    "skip_invalid_insertion_points",
]

_install()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = _found(name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
