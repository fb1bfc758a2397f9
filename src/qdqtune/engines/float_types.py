"""The float type that an engine computes in: its own choice, or the model's type."""

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
    """Return the float type in which a model should be written to be fast on an engine.

    An engine that takes types as written would compute all of a float32 model in float32; others
    choose by themselves.
    """
    return Precision.FP16 if info.options.get(_TYPING) == STRONG else Precision.FP32


def chooses_float_types(info: EngineInfo) -> bool:
    """Whether an engine chooses float types by itself and has an option to set them."""
    return info.options.get(_TYPING) == WEAK


def float_type_options(precision: Precision, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that make such an engine compute in a given float type.

    Args:
        precision: The float type.
        options: The user's engine options.

    Raises:
        UsageError: If the user's options contradict it.
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
    """Return the float type that an engine computes in.

    Args:
        info: The engine.
        written: The smallest float type of the model.
    """
    if not chooses_float_types(info):
        return written
    return Precision(info.options.get(_PRECISION, Precision.FP16.value))


def exact_options(info: EngineInfo, options: SessionOptions) -> SessionOptions | None:
    """Return the options for computing in float32; None if it already does, or has no such option.

    Args:
        info: The engine with these options.
        options: The current session options.
    """
    if info.float_type in ("", FLOAT32):
        return None
    exact = registry.entry(info.name).float32_options
    if not exact:
        return None
    return replace(options, engine_options={**options.engine_options, **exact})
