"""Dialects, encodings, and writing, reading back and stripping Q/DQ.

What is offered here is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names

if TYPE_CHECKING:
    from qdqtune.qdq.dialect import Dialect
    from qdqtune.qdq.dialects import DIALECTS, dialect_named
    from qdqtune.qdq.insert import Inserter
    from qdqtune.qdq.op_units import unit
    from qdqtune.qdq.quantization_planner import QuantizationPlanner

__all__ = [
    "DIALECTS",
    "Dialect",
    "Inserter",
    "QuantizationPlanner",
    "dialect_named",
    "unit",
]

_HOMES = {
    "DIALECTS": "qdqtune.qdq.dialects",
    "Dialect": "qdqtune.qdq.dialect",
    "Inserter": "qdqtune.qdq.insert",
    "QuantizationPlanner": "qdqtune.qdq.quantization_planner",
    "dialect_named": "qdqtune.qdq.dialects",
    "unit": "qdqtune.qdq.op_units",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
