"""The enums of the API with the names and numbers that they have in a version."""

from __future__ import annotations

from tests.stand_ins.tensorrt_api.bindings import make_enum
from tests.stand_ins.tensorrt_api.situation import VERSION


def _numbered(names: str) -> dict[str, int]:
    return {name: number for number, name in enumerate(names.split()) if name != "-"}


# A line is a version: the numbers change, and those of low precision go.
_BUILDER_FLAGS = {
    8: """FP16 INT8 DEBUG GPU_FALLBACK STRICT_TYPES REFIT DISABLE_TIMING_CACHE TF32 SPARSE_WEIGHTS
        SAFETY_SCOPE OBEY_PRECISION_CONSTRAINTS PREFER_PRECISION_CONSTRAINTS DIRECT_IO
        REJECT_EMPTY_ALGORITHMS ENABLE_TACTIC_HEURISTIC VERSION_COMPATIBLE EXCLUDE_LEAN_RUNTIME
        FP8""",
    10: """FP16 INT8 DEBUG GPU_FALLBACK REFIT DISABLE_TIMING_CACHE TF32 SPARSE_WEIGHTS SAFETY_SCOPE
        OBEY_PRECISION_CONSTRAINTS PREFER_PRECISION_CONSTRAINTS DIRECT_IO REJECT_EMPTY_ALGORITHMS
        VERSION_COMPATIBLE EXCLUDE_LEAN_RUNTIME FP8 ERROR_ON_TIMING_CACHE_MISS BF16
        DISABLE_COMPILATION_CACHE STRIP_PLAN REFIT_IDENTICAL WEIGHT_STREAMING INT4""",
    11: """- - DEBUG GPU_FALLBACK REFIT DISABLE_TIMING_CACHE TF32 SPARSE_WEIGHTS SAFETY_SCOPE - -
        DIRECT_IO VERSION_COMPATIBLE EXCLUDE_LEAN_RUNTIME - ERROR_ON_TIMING_CACHE_MISS -
        DISABLE_COMPILATION_CACHE STRIP_PLAN REFIT_IDENTICAL WEIGHT_STREAMING""",
}
_NETWORK_FLAGS = {
    8: "EXPLICIT_BATCH",
    10: "EXPLICIT_BATCH STRONGLY_TYPED PREFER_JIT_PYTHON_PLUGINS PREFER_AOT_PYTHON_PLUGINS",
    11: "STRONGLY_TYPED PREFER_JIT_PYTHON_PLUGINS PREFER_AOT_PYTHON_PLUGINS",
}
_TYPES = {
    8: "FLOAT HALF INT8 INT32 BOOL UINT8 FP8",
    10: "FLOAT HALF INT8 INT32 BOOL UINT8 FP8 BF16 INT64 INT4 FP4",
    11: "FLOAT HALF INT8 INT32 BOOL UINT8 FP8 BF16 INT64 INT4 FP4 E8M0",
}
_TACTICS = {
    8: "CUBLAS CUBLAS_LT CUDNN EDGE_MASK_CONVOLUTIONS JIT_CONVOLUTIONS",
    10: "CUBLAS CUBLAS_LT CUDNN EDGE_MASK_CONVOLUTIONS JIT_CONVOLUTIONS",
    11: "EDGE_MASK_CONVOLUTIONS JIT_CONVOLUTIONS",
}
_PREVIEWS = {
    8: "FASTER_DYNAMIC_SHAPES_0805 DISABLE_EXTERNAL_TACTIC_SOURCES_FOR_CORE_0805 "
    "PROFILE_SHARING_0806",
    10: "PROFILE_SHARING_0806 ALIASED_PLUGIN_IO_10_03",
    11: "ALIASED_PLUGIN_IO_10_03 RUNTIME_ACTIVATION_RESIZE_10_10",
}
_MAJOR = VERSION[0]

BuilderFlag = make_enum("BuilderFlag", _numbered(_BUILDER_FLAGS[_MAJOR]))
NetworkDefinitionCreationFlag = make_enum(
    "NetworkDefinitionCreationFlag", _numbered(_NETWORK_FLAGS[_MAJOR])
)
PreviewFeature = make_enum("PreviewFeature", _numbered(_PREVIEWS[_MAJOR]))
DataType = make_enum("DataType", _numbered(_TYPES[_MAJOR]))
TacticSource = make_enum("TacticSource", _numbered(_TACTICS[_MAJOR]))
TensorIOMode = make_enum("TensorIOMode", _numbered("NONE INPUT OUTPUT"))
ProfilingVerbosity = make_enum("ProfilingVerbosity", _numbered("LAYER_NAMES_ONLY NONE DETAILED"))
LayerInformationFormat = make_enum("LayerInformationFormat", _numbered("ONELINE JSON"))
MemoryPoolType = make_enum(
    "MemoryPoolType", _numbered("WORKSPACE DLA_MANAGED_SRAM DLA_LOCAL_DRAM DLA_GLOBAL_DRAM")
)
Severity = make_enum("Severity", _numbered("INTERNAL_ERROR ERROR WARNING INFO VERBOSE"))

TYPE_OF_KIND = {
    "Float": "FLOAT", "Half": "HALF", "BFloat16": "BF16", "Int8": "INT8", "UInt8": "UINT8",
    "Int32": "INT32", "Int64": "INT64", "Bool": "BOOL", "FP8": "FP8",
}  # fmt: skip
"""Names of types here, by those that layers are told with."""
