"""qdqtune: quantized ONNX models that are actually faster.

Importing this package is cheap: its names are imported on first use, and engines are loaded only
when they are used, in separate processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names
from qdqtune._version import __version__ as __version__

if TYPE_CHECKING:
    from qdqtune.config import BenchConfig as BenchConfig
    from qdqtune.config import QuantizeConfig as QuantizeConfig
    from qdqtune.config import TuneConfig as TuneConfig
    from qdqtune.records._accuracy import ErrorReport as ErrorReport
    from qdqtune.records._errors import EngineError as EngineError
    from qdqtune.records._errors import ModelError as ModelError
    from qdqtune.records._errors import OutputError as OutputError
    from qdqtune.records._errors import QdqtuneError as QdqtuneError
    from qdqtune.records._errors import UsageError as UsageError
    from qdqtune.records._inputs import InputRequest as InputRequest
    from qdqtune.records._layers import GroupsRecord as GroupsRecord
    from qdqtune.records._layers import LayersRecord as LayersRecord
    from qdqtune.records._measurement import BenchRecord as BenchRecord
    from qdqtune.records._placement import Placement as Placement
    from qdqtune.records._precision import Precision as Precision
    from qdqtune.records._quantization import InsertReport as InsertReport
    from qdqtune.records._quantization import QuantizeResult as QuantizeResult
    from qdqtune.records._quantization import StripReport as StripReport
    from qdqtune.records._ranges import RangeMethod as RangeMethod
    from qdqtune.records._results import Candidate as Candidate
    from qdqtune.records._results import ExportReport as ExportReport
    from qdqtune.records._results import Inspection as Inspection
    from qdqtune.records._results import ShapesReport as ShapesReport
    from qdqtune.records._tuning import TuneResult as TuneResult
    from qdqtune.records._verification import VerifyReport as VerifyReport
    from qdqtune.report._progress import show_progress as show_progress
    from qdqtune.resources import resource_limits as resource_limits
    from qdqtune.workflows._bench import bench as bench
    from qdqtune.workflows._compare import compare as compare
    from qdqtune.workflows._export import export as export
    from qdqtune.workflows._export import list_candidates as list_candidates
    from qdqtune.workflows._insert import insert as insert
    from qdqtune.workflows._inspect import groups_of as groups_of
    from qdqtune.workflows._inspect import inspect as inspect
    from qdqtune.workflows._inspect import layers_of as layers_of
    from qdqtune.workflows._optimize import optimize as optimize
    from qdqtune.workflows._quantize import quantize as quantize
    from qdqtune.workflows._shapes import fix_shapes as fix_shapes
    from qdqtune.workflows._strip import strip as strip
    from qdqtune.workflows._verify import verify as verify
    from qdqtune.workflows.tuning._tune import tune as tune

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "qdqtune.config": "BenchConfig QuantizeConfig TuneConfig",
        "qdqtune.records._accuracy": "ErrorReport",
        "qdqtune.records._errors": "EngineError ModelError OutputError QdqtuneError UsageError",
        "qdqtune.records._inputs": "InputRequest",
        "qdqtune.records._layers": "GroupsRecord LayersRecord",
        "qdqtune.records._measurement": "BenchRecord",
        "qdqtune.records._placement": "Placement",
        "qdqtune.records._precision": "Precision",
        "qdqtune.records._quantization": "InsertReport QuantizeResult StripReport",
        "qdqtune.records._ranges": "RangeMethod",
        "qdqtune.records._results": "Candidate ExportReport Inspection ShapesReport",
        "qdqtune.records._tuning": "TuneResult",
        "qdqtune.records._verification": "VerifyReport",
        "qdqtune.report._progress": "show_progress",
        "qdqtune.resources": "resource_limits",
        "qdqtune.workflows._bench": "bench",
        "qdqtune.workflows._compare": "compare",
        "qdqtune.workflows._export": "export list_candidates",
        "qdqtune.workflows._insert": "insert",
        "qdqtune.workflows._inspect": "groups_of inspect layers_of",
        "qdqtune.workflows._optimize": "optimize",
        "qdqtune.workflows._quantize": "quantize",
        "qdqtune.workflows._shapes": "fix_shapes",
        "qdqtune.workflows._strip": "strip",
        "qdqtune.workflows._verify": "verify",
        "qdqtune.workflows.tuning._tune": "tune",
    },
)
__all__ += ["__version__"]
