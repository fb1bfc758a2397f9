"""The module and the aliases of every name that this package exports.

Scripts for other autotuners import from modules such as `autotune.common`. These modules have no
files here: they are built from this table, and their names are imported on first access.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PACKAGE = "qdqtune.autotune"

#: The module of each name.
HOMES = {
    "MODE_PRESETS": "qdqtune.search._config",
    "AutotunerError": "qdqtune.search._errors",
    "AutotunerNotInitializedError": "qdqtune.search._errors",
    "Benchmark": "qdqtune.autotune.workflows",
    "ChildRegionInputInsertionPoint": "qdqtune.search.patterns._insertion_points",
    "CombinedRegionSearch": "qdqtune.search.regions._region_search",
    "Config": "qdqtune.search._config",
    "FusionGroup": "qdqtune.search.subgraphs._fusion_groups",
    "InsertionPoint": "qdqtune.search.patterns._insertion_points",
    "InsertionScheme": "qdqtune.search.patterns._scheme",
    "InvalidSchemeError": "qdqtune.search._errors",
    "NodeInputInsertionPoint": "qdqtune.search.patterns._insertion_points",
    "PatternCache": "qdqtune.search.patterns._pattern_cache",
    "PatternSchemes": "qdqtune.search.patterns._pattern_cache",
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

#: Second names, where documents and releases of other tools differ.
SECOND_NAMES = {
    "ChildRegionOutputInsertionPoint": "RegionOutputInsertionPoint",
    "TorchRegionBuilder": "CombinedRegionSearch",
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


class _Alias(ModuleType):
    """A module that consists of names, whose values are imported on first access."""

    def __init__(self, name: str, names: tuple[str, ...]) -> None:
        super().__init__(name, f"Another place for names of `{_PACKAGE}`.")
        self.__spec__ = ModuleSpec(name, None)
        self.__package__ = _PACKAGE
        self.__all__ = list(names)

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("__all__", ()):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = found(name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self.__all__})


def found(name: str) -> Any:
    """Return the object with one of the names."""
    name = SECOND_NAMES.get(name, name)
    return getattr(importlib.import_module(HOMES[name]), name)


def install() -> None:
    """Make the modules in the table importable."""
    package = sys.modules[_PACKAGE]
    for name, names in MODULES.items():
        module = _Alias(f"{_PACKAGE}.{name}", names)
        sys.modules[module.__name__] = module
        setattr(package, name, module)
