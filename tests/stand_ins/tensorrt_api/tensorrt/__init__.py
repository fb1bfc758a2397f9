"""A stand-in for TensorRT, for tests: it needs no GPU, and makes all its times up."""

from typing import Any

from tests.stand_ins.tensorrt_api.bindings import Overridable
from tests.stand_ins.tensorrt_api.building import Builder, OptimizationProfile
from tests.stand_ins.tensorrt_api.enums import (
    BuilderFlag,
    DataType,
    LayerInformationFormat,
    MemoryPoolType,
    NetworkDefinitionCreationFlag,
    PreviewFeature,
    ProfilingVerbosity,
    Severity,
    TacticSource,
    TensorIOMode,
)
from tests.stand_ins.tensorrt_api.network import OnnxParser
from tests.stand_ins.tensorrt_api.running import Runtime
from tests.stand_ins.tensorrt_api.situation import VERSION_TEXT

__version__ = VERSION_TEXT
__all__ = [
    "Builder",
    "BuilderFlag",
    "DataType",
    "ILogger",
    "IOutputAllocator",
    "IProfiler",
    "LayerInformationFormat",
    "MemoryPoolType",
    "NetworkDefinitionCreationFlag",
    "OnnxParser",
    "OptimizationProfile",
    "PreviewFeature",
    "ProfilingVerbosity",
    "Runtime",
    "TacticSource",
    "TensorIOMode",
    "init_libnvinfer_plugins",
]


class ILogger(Overridable):
    """Who is told what the library does."""

    is_base = True
    Severity = Severity
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = Severity


class IProfiler(Overridable):
    """Who is told the times of layers."""

    is_base = True


class IOutputAllocator(Overridable):
    """Who makes room for outputs."""

    is_base = True


def init_libnvinfer_plugins(_logger: Any, _namespace: str) -> bool:
    """Registers the library's own plugins."""
    return True
