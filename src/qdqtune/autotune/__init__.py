"""The search: regions, patterns, insertion points, schemes, and the autotuner that tries them.

Names are imported on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names as _lazy_names
from qdqtune.autotune._aliases import HOMES as _HOMES
from qdqtune.autotune._aliases import install as _install

if TYPE_CHECKING:
    from qdqtune.autotune._autotuner import QDQAutotuner, QDQAutotunerBase
    from qdqtune.search._config import (
        MODE_PRESETS,
        Config,
        StoreWithExplicitFlag,
        get_node_filter_list,
    )
    from qdqtune.search._errors import (
        AutotunerError,
        AutotunerNotInitializedError,
        InvalidSchemeError,
    )
    from qdqtune.search.patterns._insertion_points import (
        ChildRegionInputInsertionPoint,
        ChildRegionOutputInsertionPoint,
        InsertionPoint,
        NodeInputInsertionPoint,
        RegionOutputInsertionPoint,
        ResolvedInsertionPoint,
        get_autotuner_quantizable_ops,
        get_autotuner_skip_ops,
        has_quantizable_operations,
        merge_resolved_insertion_points,
        resolve_region_io_insertion_points,
        skip_invalid_insertion_points,
    )
    from qdqtune.search.patterns._pattern_cache import PatternCache
    from qdqtune.search.patterns._region_pattern import (
        InsertionScheme,
        PatternSchemes,
        RegionPattern,
    )
    from qdqtune.search.regions._region import Region, RegionType
    from qdqtune.search.regions._region_search import CombinedRegionSearch, region_of

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

__getattr__, __dir__, _ = _lazy_names(__name__, _HOMES, __all__)
