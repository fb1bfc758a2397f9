"""qdqtune: quantized ONNX models that are actually faster.

Importing this package is cheap: what it offers is imported when it is asked for, and engines when
they are used, in a process of their own.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from qdqtune._version import __version__

if TYPE_CHECKING:
    from qdqtune.records.quantization import QuantizeResult
    from qdqtune.records.tuning import TuneResult
    from qdqtune.resources.limits import resource_limits
    from qdqtune.workflows.comparison import bench
    from qdqtune.workflows.error_comparison import compare
    from qdqtune.workflows.optimization import optimize
    from qdqtune.workflows.quantization import quantize
    from qdqtune.workflows.tune import tune

__all__ = [
    "QuantizeResult",
    "TuneResult",
    "__version__",
    "bench",
    "compare",
    "optimize",
    "quantize",
    "resource_limits",
    "tune",
]

_HOMES = {
    "QuantizeResult": "qdqtune.records.quantization",
    "TuneResult": "qdqtune.records.tuning",
    "bench": "qdqtune.workflows.comparison",
    "compare": "qdqtune.workflows.error_comparison",
    "optimize": "qdqtune.workflows.optimization",
    "quantize": "qdqtune.workflows.quantization",
    "resource_limits": "qdqtune.resources.limits",
    "tune": "qdqtune.workflows.tune",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
