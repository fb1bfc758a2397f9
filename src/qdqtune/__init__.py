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
    from qdqtune.records.candidates import Candidate, ExportReport
    from qdqtune.records.comparison import BenchRecord
    from qdqtune.records.error_report import ErrorReport
    from qdqtune.records.errors import (
        EngineError,
        ModelError,
        OutputError,
        QdqtuneError,
        UsageError,
    )
    from qdqtune.records.fusion import GroupsRecord
    from qdqtune.records.inputs import InputRequest
    from qdqtune.records.insertion import InsertReport
    from qdqtune.records.inspection import Inspection
    from qdqtune.records.layers import LayersRecord
    from qdqtune.records.placement import Placement
    from qdqtune.records.precision import Precision
    from qdqtune.records.quantization import QuantizeResult
    from qdqtune.records.ranges import RangeMethod
    from qdqtune.records.shapes import ShapesReport
    from qdqtune.records.stripping import StripReport
    from qdqtune.records.tuning import TuneResult
    from qdqtune.records.verification import VerifyReport
    from qdqtune.resources.limits import resource_limits
    from qdqtune.workflows.comparison import bench
    from qdqtune.workflows.error_comparison import compare
    from qdqtune.workflows.fusion import groups_of
    from qdqtune.workflows.insertion import insert
    from qdqtune.workflows.inspection import inspect
    from qdqtune.workflows.layers import layers_of
    from qdqtune.workflows.optimization import optimize
    from qdqtune.workflows.quantization import quantize
    from qdqtune.workflows.shapes import fix_shapes
    from qdqtune.workflows.stripping import strip
    from qdqtune.workflows.tune import tune
    from qdqtune.workflows.tuning.export import export, list_candidates
    from qdqtune.workflows.verification import verify

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
    "BenchRecord": "qdqtune.records.comparison",
    "Candidate": "qdqtune.records.candidates",
    "EngineError": "qdqtune.records.errors",
    "ErrorReport": "qdqtune.records.error_report",
    "ExportReport": "qdqtune.records.candidates",
    "GroupsRecord": "qdqtune.records.fusion",
    "InputRequest": "qdqtune.records.inputs",
    "InsertReport": "qdqtune.records.insertion",
    "Inspection": "qdqtune.records.inspection",
    "LayersRecord": "qdqtune.records.layers",
    "ModelError": "qdqtune.records.errors",
    "OutputError": "qdqtune.records.errors",
    "Placement": "qdqtune.records.placement",
    "Precision": "qdqtune.records.precision",
    "QdqtuneError": "qdqtune.records.errors",
    "QuantizeConfig": "qdqtune.config",
    "QuantizeResult": "qdqtune.records.quantization",
    "RangeMethod": "qdqtune.records.ranges",
    "ShapesReport": "qdqtune.records.shapes",
    "StripReport": "qdqtune.records.stripping",
    "TuneConfig": "qdqtune.config",
    "TuneResult": "qdqtune.records.tuning",
    "UsageError": "qdqtune.records.errors",
    "VerifyReport": "qdqtune.records.verification",
    "bench": "qdqtune.workflows.comparison",
    "compare": "qdqtune.workflows.error_comparison",
    "export": "qdqtune.workflows.tuning.export",
    "fix_shapes": "qdqtune.workflows.shapes",
    "groups_of": "qdqtune.workflows.fusion",
    "insert": "qdqtune.workflows.insertion",
    "inspect": "qdqtune.workflows.inspection",
    "layers_of": "qdqtune.workflows.layers",
    "list_candidates": "qdqtune.workflows.tuning.export",
    "optimize": "qdqtune.workflows.optimization",
    "quantize": "qdqtune.workflows.quantization",
    "resource_limits": "qdqtune.resources.limits",
    "strip": "qdqtune.workflows.stripping",
    "tune": "qdqtune.workflows.tune",
    "verify": "qdqtune.workflows.verification",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
