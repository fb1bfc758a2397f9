"""The module and the aliases of every name that this package exports.

Scripts for other autotuners import from modules such as `autotune.common`. These modules have no
files here: they are built from this table, and their names are imported on first access.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from qdqtune._lazy import lazy_names

_PACKAGE = "qdqtune.autotune"

#: The module of each name.
HOMES = {
    "MODE_PRESETS": "qdqtune.search._config",
    "AutotunerError": "qdqtune.search._errors",
    "AutotunerNotInitializedError": "qdqtune.search._errors",
    "Benchmark": "qdqtune.autotune.workflows",
    "ChildRegionInputInsertionPoint": "qdqtune.search.patterns._insertion_points",
    "ChildRegionOutputInsertionPoint": "qdqtune.search.patterns._insertion_points",
    "CombinedRegionSearch": "qdqtune.search.regions._region_search",
    "Config": "qdqtune.search._config",
    "FusionGroup": "qdqtune.search.subgraphs._fusion_groups",
    "InsertionPoint": "qdqtune.search.patterns._insertion_points",
    "InsertionScheme": "qdqtune.search.patterns._region_pattern",
    "InvalidSchemeError": "qdqtune.search._errors",
    "NodeInputInsertionPoint": "qdqtune.search.patterns._insertion_points",
    "PatternCache": "qdqtune.search.patterns._pattern_cache",
    "PatternSchemes": "qdqtune.search.patterns._region_pattern",
    "QDQAutotuner": "qdqtune.autotune._autotuner",
    "QDQAutotunerBase": "qdqtune.autotune._autotuner",
    "Region": "qdqtune.search.regions._region",
    "RegionOutputInsertionPoint": "qdqtune.search.patterns._insertion_points",
    "RegionPartitioner": "qdqtune.search.regions._region_search",
    "RegionPattern": "qdqtune.search.patterns._region_pattern",
    "RegionSearchBase": "qdqtune.search.regions._region_search",
    "RegionType": "qdqtune.search.regions._region",
    "ResolvedInsertionPoint": "qdqtune.search.patterns._insertion_points",
    "StoreWithExplicitFlag": "qdqtune.search._config",
    "TensorRTPyBenchmark": "qdqtune.autotune.workflows",
    "TorchRegionBuilder": "qdqtune.search.regions._region_search",
    "TopDownRegionBuilder": "qdqtune.search.regions._region_search",
    "TrtExecBenchmark": "qdqtune.autotune.workflows",
    "extract_subgraph": "qdqtune.autotune.workflows",
    "generate_graph_json": "qdqtune.autotune.workflows",
    "get_autotuner_quantizable_ops": "qdqtune.search.patterns._insertion_points",
    "get_autotuner_skip_ops": "qdqtune.search.patterns._insertion_points",
    "get_node_filter_list": "qdqtune.search._config",
    "get_quantized_tensors": "qdqtune.qdq_utils",
    "groups_of": "qdqtune.autotune.workflows",
    "has_quantizable_operations": "qdqtune.search.patterns._insertion_points",
    "merge_resolved_insertion_points": "qdqtune.search.patterns._insertion_points",
    "region_of": "qdqtune.search.regions._region_search",
    "resolve_region_io_insertion_points": "qdqtune.search.patterns._insertion_points",
    "skip_invalid_insertion_points": "qdqtune.search.patterns._insertion_points",
    "subgraph_autotuning_workflow": "qdqtune.autotune.workflows",
    "validate_file_path": "qdqtune.search._config",
}

#: Modules that other tools have, with what is in them.
MODULES = {
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


def getters(module: str, names: Iterable[str]) -> tuple[Any, Any]:
    """Return the `__getattr__` and `__dir__` of a module that consists of such names."""
    return lazy_names(module, {name: HOMES[name] for name in names})


def install() -> None:
    """Make the modules in the table importable."""
    package = sys.modules[_PACKAGE]
    for name, names in MODULES.items():
        path = f"{_PACKAGE}.{name}"
        module = ModuleType(path, f"Another place for names of `{_PACKAGE}`.")
        module.__spec__ = ModuleSpec(path, None)
        module.__package__ = _PACKAGE
        module.__getattr__, module.__dir__ = getters(path, names)  # type: ignore[method-assign]
        vars(module)["__all__"] = list(names)
        sys.modules[path] = module
        setattr(package, name, module)
