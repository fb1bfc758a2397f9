"""qdqtune: quantized ONNX models that are actually faster.

Importing this package is cheap: its names are imported on first use, and engines are loaded only
when they are used, in separate processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names
from qdqtune._version import __version__

if TYPE_CHECKING:
    from qdqtune.config import BenchConfig, QuantizeConfig, TuneConfig
    from qdqtune.records._accuracy import ErrorReport
    from qdqtune.records._errors import (
        EngineError,
        ModelError,
        OutputError,
        QdqtuneError,
        UsageError,
    )
    from qdqtune.records._inputs import InputRequest
    from qdqtune.records._inspection import Inspection
    from qdqtune.records._layers import GroupsRecord, LayersRecord
    from qdqtune.records._measurement import BenchRecord
    from qdqtune.records._placement import Placement
    from qdqtune.records._precision import Precision
    from qdqtune.records._quantization import InsertReport, QuantizeResult, StripReport
    from qdqtune.records._ranges import RangeMethod
    from qdqtune.records._results import Candidate, ExportReport, ShapesReport
    from qdqtune.records._tuning import TuneResult
    from qdqtune.records._verification import VerifyReport
    from qdqtune.resources._limits import resource_limits
    from qdqtune.workflows._bench import bench
    from qdqtune.workflows._compare import compare
    from qdqtune.workflows._export import export, list_candidates
    from qdqtune.workflows._insert import insert
    from qdqtune.workflows._inspect import inspect
    from qdqtune.workflows._layers import groups_of, layers_of
    from qdqtune.workflows._optimize import optimize
    from qdqtune.workflows._quantize import quantize
    from qdqtune.workflows._shapes import fix_shapes
    from qdqtune.workflows._strip import strip
    from qdqtune.workflows._verify import verify
    from qdqtune.workflows.tuning._tune import tune

__all__ = [
    "BenchConfig",
    "BenchRecord",
    "Candidate",
    "EngineError",
    "ErrorReport",
    "ExportReport",
    "GroupsRecord",
    "InputRequest",
    "InsertReport",
    "Inspection",
    "LayersRecord",
    "ModelError",
    "OutputError",
    "Placement",
    "Precision",
    "QdqtuneError",
    "QuantizeConfig",
    "QuantizeResult",
    "RangeMethod",
    "ShapesReport",
    "StripReport",
    "TuneConfig",
    "TuneResult",
    "UsageError",
    "VerifyReport",
    "__version__",
    "bench",
    "compare",
    "export",
    "fix_shapes",
    "groups_of",
    "insert",
    "inspect",
    "layers_of",
    "list_candidates",
    "optimize",
    "quantize",
    "resource_limits",
    "strip",
    "tune",
    "verify",
]

_HOMES = {
    "BenchConfig": "qdqtune.config",
    "BenchRecord": "qdqtune.records._measurement",
    "Candidate": "qdqtune.records._results",
    "EngineError": "qdqtune.records._errors",
    "ErrorReport": "qdqtune.records._accuracy",
    "ExportReport": "qdqtune.records._results",
    "GroupsRecord": "qdqtune.records._layers",
    "InputRequest": "qdqtune.records._inputs",
    "InsertReport": "qdqtune.records._quantization",
    "Inspection": "qdqtune.records._inspection",
    "LayersRecord": "qdqtune.records._layers",
    "ModelError": "qdqtune.records._errors",
    "OutputError": "qdqtune.records._errors",
    "Placement": "qdqtune.records._placement",
    "Precision": "qdqtune.records._precision",
    "QdqtuneError": "qdqtune.records._errors",
    "QuantizeConfig": "qdqtune.config",
    "QuantizeResult": "qdqtune.records._quantization",
    "RangeMethod": "qdqtune.records._ranges",
    "ShapesReport": "qdqtune.records._results",
    "StripReport": "qdqtune.records._quantization",
    "TuneConfig": "qdqtune.config",
    "TuneResult": "qdqtune.records._tuning",
    "UsageError": "qdqtune.records._errors",
    "VerifyReport": "qdqtune.records._verification",
    "bench": "qdqtune.workflows._bench",
    "compare": "qdqtune.workflows._compare",
    "export": "qdqtune.workflows._export",
    "fix_shapes": "qdqtune.workflows._shapes",
    "groups_of": "qdqtune.workflows._layers",
    "insert": "qdqtune.workflows._insert",
    "inspect": "qdqtune.workflows._inspect",
    "layers_of": "qdqtune.workflows._layers",
    "list_candidates": "qdqtune.workflows._export",
    "optimize": "qdqtune.workflows._optimize",
    "quantize": "qdqtune.workflows._quantize",
    "resource_limits": "qdqtune.resources._limits",
    "strip": "qdqtune.workflows._strip",
    "tune": "qdqtune.workflows.tuning._tune",
    "verify": "qdqtune.workflows._verify",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
