"""What a worker's answers mean, checked: an engine is code of others, and may answer anything."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from typing import Any, TypeVar

from qdqtune.engines.interface import InputSpec
from qdqtune.engines.process import FailureKind, WorkerFailure
from qdqtune.records.json_fields import list_in, number_in, object_in, text_in, whole_in
from qdqtune.records.measurement import MOST_MS, EngineInfo, LayerTime

_T = TypeVar("_T")
_MOST_SECONDS = MOST_MS  # a block has many runs


def understand(op: str, read: Callable[[Any], _T], reply: Any) -> _T:
    """Return what an answer says.

    Args:
        op: What was asked.
        read: One of the readers below.
        reply: The answer.

    Raises:
        WorkerFailure: The answer is none to that question.
    """
    try:
        return read(reply)
    except (KeyError, TypeError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        what = f"the engine's answer to '{op}' makes no sense: {error!s:.200}"
        raise WorkerFailure(what, FailureKind.ERROR) from None


def read_info(reply: Any) -> EngineInfo:
    """Read which engine answers."""
    return EngineInfo.from_untrusted(reply)


def read_opened(reply: Any) -> tuple[int, tuple[InputSpec, ...], float]:
    """Read the number of a session, the model's inputs, and the seconds that opening it took."""
    value = object_in(reply, "it")
    inputs = tuple(
        _input(object_in(each, "an input")) for each in list_in(value["inputs"], "inputs")
    )
    return whole_in(value["session"], "session"), inputs, read_seconds(value)


def read_seconds(reply: Any) -> float:
    """Read what the engine took."""
    return number_in(object_in(reply, "it")["seconds"], "seconds", 0.0, _MOST_SECONDS)


def read_samples(reply: Any) -> tuple[list[float], float, float]:
    """Read samples, unchecked, the seconds that they took, and those spent waiting for a core."""
    value = object_in(reply, "it")
    contended_s = number_in(value["contended_s"], "contended_s", 0.0, _MOST_SECONDS)
    return list_in(value["samples_ms"], "samples_ms"), read_seconds(value), contended_s


def read_layers(reply: Any) -> tuple[list[LayerTime], float]:
    """Read layers, and the seconds that they took."""
    value = object_in(reply, "it")
    layers = [_layer(object_in(each, "a layer")) for each in list_in(value["layers"], "layers")]
    return layers, read_seconds(value)


def _input(value: dict[str, Any]) -> InputSpec:
    dims = list_in(value["shape"], "shape")
    for dim in dims:
        if not (dim is None or isinstance(dim, str)):
            whole_in(dim, "a dim")
    return InputSpec(text_in(value["name"], "name"), text_in(value["dtype"], "dtype"), tuple(dims))


def _layer(value: dict[str, Any]) -> LayerTime:
    for key in ("name", "op_type", "provider", "precision"):
        text_in(value.get(key, ""), key)
    for key in ("origins", "inputs", "outputs"):
        for name in list_in(value.get(key, []), key):
            text_in(name, key)
    return LayerTime.from_dict({**value, "ms": number_in(value["ms"], "ms", 0.0, MOST_MS)})
