"""The module and the aliases of every name that this package exports.

Scripts for other autotuners import from modules such as `autotune.common`. These modules have no
files here: they are built from this table, and their names are imported on first access.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from qdqtune._lazy import lazy_names

_PACKAGE = "qdqtune.autotune"

#: The names that each module defines.
HOMES = {
    "qdqtune.autotune._autotuner": "QDQAutotuner QDQAutotunerBase",
    "qdqtune.autotune.workflows": (
        "Benchmark TensorRTPyBenchmark TrtExecBenchmark extract_subgraph generate_graph_json "
        "groups_of subgraph_autotuning_workflow"
    ),
    "qdqtune.qdq_utils": "get_quantized_tensors",
    "qdqtune.search._config": (
        "MODE_PRESETS Config StoreWithExplicitFlag get_node_filter_list validate_file_path"
    ),
    "qdqtune.search._errors": "AutotunerError AutotunerNotInitializedError InvalidSchemeError",
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
        "CombinedRegionSearch RegionPartitioner RegionSearchBase TorchRegionBuilder "
        "TopDownRegionBuilder region_of"
    ),
    "qdqtune.search.subgraphs._fusion_groups": "FusionGroup",
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


def install() -> None:
    """Make the modules in the table importable."""
    package = sys.modules[_PACKAGE]
    for name, names in MODULES.items():
        path = f"{_PACKAGE}.{name}"
        module = ModuleType(path, f"Another place for names of `{_PACKAGE}`.")
        module.__spec__ = ModuleSpec(path, None)
        module.__package__ = _PACKAGE
        of_module = lazy_names(path, HOMES, names)
        vars(module).update(zip(("__getattr__", "__dir__", "__all__"), of_module, strict=True))
        sys.modules[path] = module
        setattr(package, name, module)
