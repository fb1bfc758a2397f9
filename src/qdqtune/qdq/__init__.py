"""Dialects, encodings, and writing, reading back and stripping Q/DQ.

What is offered here is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names

if TYPE_CHECKING:
    from qdqtune.qdq._dialect import Dialect as Dialect
    from qdqtune.qdq._dialect import OpRule as OpRule
    from qdqtune.qdq._dialect import Output as Output
    from qdqtune.qdq._dialect import QuantFormat as QuantFormat
    from qdqtune.qdq._encoding import TensorFormat as TensorFormat
    from qdqtune.qdq._insert import Inserter as Inserter
    from qdqtune.qdq._op_units import unit as unit
    from qdqtune.qdq._quantization_planner import QuantizationPlanner as QuantizationPlanner
    from qdqtune.qdq.dialects import DIALECTS as DIALECTS
    from qdqtune.qdq.dialects import dialect_named as dialect_named

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "qdqtune.qdq._dialect": "Dialect OpRule Output QuantFormat",
        "qdqtune.qdq._encoding": "TensorFormat",
        "qdqtune.qdq._insert": "Inserter",
        "qdqtune.qdq._op_units": "unit",
        "qdqtune.qdq._quantization_planner": "QuantizationPlanner",
        "qdqtune.qdq.dialects": "DIALECTS dialect_named",
    },
)
