"""Which float type an engine computes in: its own choice, or the one that a model is written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qdqtune.engines import registry
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.tensorrt.settings import STRONG, WEAK
from qdqtune.records.errors import UsageError
from qdqtune.records.measurement import FLOAT32, EngineInfo
from qdqtune.records.precision import Precision

_TYPING, _PRECISION = "typing", "precision"


def preferred_float_type(info: EngineInfo) -> Precision:
    """The float type in which a model should be written to be fast on an engine.

    One that takes types as they are written would compute all of a float32 model in float32; others
    choose by themselves.
    """
    return Precision.FP16 if info.options.get(_TYPING) == STRONG else Precision.FP32


def chooses_float_types(info: EngineInfo) -> bool:
    """Whether an engine chooses among float types by itself, and can be told which."""
    return info.options.get(_TYPING) == WEAK


def float_type_options(precision: Precision, options: Mapping[str, str]) -> dict[str, str]:
    """The options with which an engine that chooses float types computes in one of them.

    Args:
        precision: Which.
        options: Its options as the user gave them.

    Raises:
        UsageError: If those say something else.
    """
    said = options.get(_PRECISION, precision.value)
    if said != precision.value:
        raise UsageError(
            f"The precision is to be {precision.value}, but the engine's own option "
            f"{_PRECISION} is {said}.",
            f"Leave out --precision, or --engine_option {_PRECISION}={said}.",
        )
    return {**options, _PRECISION: precision.value}


def float_type_in_effect(info: EngineInfo, written: Precision) -> Precision:
    """The float type that an engine computes in.

    Args:
        info: The engine.
        written: The smallest float type of the model.
    """
    if not chooses_float_types(info):
        return written
    return Precision(info.options.get(_PRECISION, Precision.FP16.value))


def exact_options(info: EngineInfo, options: SessionOptions) -> SessionOptions | None:
    """How an engine opens a model to compute it in float32; None if it does, or can't be told to.

    Args:
        info: The engine, as it is with these options.
        options: How it opens models.
    """
    if info.float_type in ("", FLOAT32):
        return None
    exact = registry.entry(info.name).float32_options
    if not exact:
        return None
    return replace(options, engine_options={**options.engine_options, **exact})
