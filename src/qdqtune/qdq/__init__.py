"""Dialects, encodings, and writing, reading back and stripping Q/DQ.

What is offered here is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names

if TYPE_CHECKING:
    from qdqtune.qdq._dialect import Dialect, OpRule, Output, QuantFormat
    from qdqtune.qdq._encoding import TensorFormat
    from qdqtune.qdq._insert import Inserter
    from qdqtune.qdq._op_units import unit
    from qdqtune.qdq._quantization_planner import QuantizationPlanner
    from qdqtune.qdq.dialects import DIALECTS, dialect_named

__all__ = [
    "DIALECTS",
    "Dialect",
    "Inserter",
    "OpRule",
    "Output",
    "QuantFormat",
    "QuantizationPlanner",
    "TensorFormat",
    "dialect_named",
    "unit",
]

_HOMES = {
    "DIALECTS": "qdqtune.qdq.dialects",
    "Dialect": "qdqtune.qdq._dialect",
    "Inserter": "qdqtune.qdq._insert",
    "OpRule": "qdqtune.qdq._dialect",
    "Output": "qdqtune.qdq._dialect",
    "QuantFormat": "qdqtune.qdq._dialect",
    "QuantizationPlanner": "qdqtune.qdq._quantization_planner",
    "TensorFormat": "qdqtune.qdq._encoding",
    "dialect_named": "qdqtune.qdq.dialects",
    "unit": "qdqtune.qdq._op_units",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
