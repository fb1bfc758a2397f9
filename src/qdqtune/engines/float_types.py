"""Which float type an engine computes in: its own choice, or the one that a model is written in."""

from __future__ import annotations

from qdqtune.records.measurement import EngineInfo
from qdqtune.records.precision import Precision

_TYPING, _STRONG, _WEAK = "typing", "strong", "weak"
_PRECISION = "precision"


def preferred_float_type(info: EngineInfo) -> Precision:
    """The float type in which a model should be written to be fast on an engine.

    One that takes types as they are written would compute all of a float32 model in float32; others
    choose by themselves.
    """
    return Precision.FP16 if info.options.get(_TYPING) == _STRONG else Precision.FP32


def float_type_in_effect(info: EngineInfo, written: Precision) -> Precision:
    """The float type that an engine computes in.

    Args:
        info: The engine.
        written: The smallest float type of the model.
    """
    if info.options.get(_TYPING) != _WEAK:
        return written
    return Precision(info.options.get(_PRECISION, Precision.FP16.value))
