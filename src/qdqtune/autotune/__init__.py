"""The search: regions, patterns, insertion points, schemes, and the autotuner that tries them.

Scripts for other autotuners import from modules such as `autotune.common`. These modules have no
files here: they are built from a table. Names are imported on first access.
"""

from __future__ import annotations

import sys as _sys
from importlib.machinery import ModuleSpec as _ModuleSpec
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from qdqtune.autotune._autotuner import QDQAutotuner, QDQAutotunerBase
    from qdqtune.autotune.workflows import TensorRTPyBenchmark, TrtExecBenchmark
    from qdqtune.records._errors import (
        AutotunerError,
        AutotunerNotInitializedError,
        InvalidSchemeError,
    )
    from qdqtune.search._config import (
        MODE_PRESETS,
        Config,
        StoreWithExplicitFlag,
        get_node_filter_list,
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
    from qdqtune.search.regions._scope_search import ScopeRegionSearch

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
    "ScopeRegionSearch",
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

#: Modules that other tools have, with their contents.
_MODULES = {
    "autotuner": ("QDQAutotuner",),
    "autotuner_base": ("QDQAutotunerBase",),
    "benchmark": ("Benchmark", "TensorRTPyBenchmark", "TrtExecBenchmark"),
    "common": (
        "AutotunerError", "AutotunerNotInitializedError", "Config", "InsertionScheme",
        "InvalidSchemeError", "PatternCache", "PatternSchemes", "Region", "RegionType",
    ),
    "fusion_grouping": ("FusionGroup", "generate_graph_json", "groups_of"),
    "insertion_points": (
        "ChildRegionInputInsertionPoint", "ChildRegionOutputInsertionPoint", "InsertionPoint",
        "NodeInputInsertionPoint", "RegionOutputInsertionPoint", "ResolvedInsertionPoint",
        "get_autotuner_quantizable_ops", "get_autotuner_skip_ops", "has_quantizable_operations",
        "merge_resolved_insertion_points", "resolve_region_io_insertion_points",
        "skip_invalid_insertion_points",
    ),
    "qdq_utils": ("get_quantized_tensors",),
    "region_pattern": ("RegionPattern",),
    "region_search": (
        "CombinedRegionSearch", "RegionPartitioner", "RegionSearchBase", "TopDownRegionBuilder",
    ),
    "subgraph_extractor": ("extract_subgraph",),
    "subgraph_workflow": ("subgraph_autotuning_workflow",),
    "tensorrt_utils": ("Benchmark", "TensorRTPyBenchmark", "TrtExecBenchmark"),
    "torch_region_builder": ("TorchRegionBuilder",),
    "utils": (
        "MODE_PRESETS", "StoreWithExplicitFlag", "get_node_filter_list", "validate_file_path",
    ),
}  # fmt: skip

#: The names that each module defines.
_HOMES = {
    "qdqtune.autotune._autotuner": "QDQAutotuner QDQAutotunerBase",
    "qdqtune.autotune.workflows": (
        "Benchmark TensorRTPyBenchmark TrtExecBenchmark extract_subgraph generate_graph_json "
        "groups_of subgraph_autotuning_workflow"
    ),
    "qdqtune.qdq_utils": "get_quantized_tensors",
    "qdqtune.search._config": (
        "MODE_PRESETS Config StoreWithExplicitFlag get_node_filter_list validate_file_path"
    ),
    "qdqtune.records._errors": "AutotunerError AutotunerNotInitializedError InvalidSchemeError",
    "qdqtune.search.patterns._insertion_points": (
        "ChildRegionInputInsertionPoint ChildRegionOutputInsertionPoint InsertionPoint "
        "NodeInputInsertionPoint RegionOutputInsertionPoint ResolvedInsertionPoint "
        "get_autotuner_quantizable_ops get_autotuner_skip_ops has_quantizable_operations "
        "merge_resolved_insertion_points resolve_region_io_insertion_points "
        "skip_invalid_insertion_points"
    ),
    "qdqtune.search.patterns._pattern_cache": "PatternCache",
    "qdqtune.search.patterns._region_pattern": "InsertionScheme PatternSchemes RegionPattern",
    "qdqtune.search.regions._region": "Region RegionType",
    "qdqtune.search.regions._region_search": (
        "CombinedRegionSearch RegionPartitioner RegionSearchBase TopDownRegionBuilder region_of"
    ),
    "qdqtune.search.regions._scope_search": "ScopeRegionSearch TorchRegionBuilder",
    "qdqtune.search.subgraphs._fusion_groups": "FusionGroup",
}


def _add_modules() -> None:
    """Make the modules in the table importable."""
    for name, names in _MODULES.items():
        path = f"{__name__}.{name}"
        module = _ModuleType(path, f"Another place for names of `{__name__}`.")
        module.__spec__ = _ModuleSpec(path, None)
        module.__package__ = __name__
        of_module = _lazy_names(path, _HOMES, names)
        vars(module).update(zip(("__getattr__", "__dir__", "__all__"), of_module, strict=True))
        _sys.modules[path] = globals()[name] = module


_add_modules()

__getattr__, __dir__, _ = _lazy_names(__name__, _HOMES, __all__)
