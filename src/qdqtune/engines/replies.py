"""What a worker's answers mean, checked: an engine is code of others, and may answer anything."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from typing import Any, TypeVar

from qdqtune.engines.interface import InputSpec
from qdqtune.engines.process import FailureKind, WorkerFailure
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
    value = _object(reply)
    for key in ("name", "version", "device", "isa"):
        _text(value[key], key)
    _text(value.get("float_type", ""), "float_type")
    if value["threads"] is not None:
        _whole(value["threads"], "threads")
    for key, option in _object(value["options"]).items():
        _text(option, key)
    if not isinstance(value.get("takes_threads", True), bool):
        raise ValueError("takes_threads is neither true nor false")
    return EngineInfo.from_dict(value)


def read_opened(reply: Any) -> tuple[int, tuple[InputSpec, ...], float]:
    """Read the number of a session, the model's inputs, and the seconds that opening it took."""
    value = _object(reply)
    inputs = tuple(_input(_object(each)) for each in _list(value["inputs"], "inputs"))
    return _whole(value["session"], "session"), inputs, read_seconds(value)


def read_seconds(reply: Any) -> float:
    """Read what the engine took."""
    return _duration(_object(reply)["seconds"], "seconds", _MOST_SECONDS)


def read_samples(reply: Any) -> tuple[list[float], float, float]:
    """Read samples, unchecked, the seconds that they took, and those spent waiting for a core."""
    value = _object(reply)
    contended_s = _duration(value["contended_s"], "contended_s", _MOST_SECONDS)
    return _list(value["samples_ms"], "samples_ms"), read_seconds(value), contended_s


def read_layers(reply: Any) -> tuple[list[LayerTime], float]:
    """Read layers, and the seconds that they took."""
    value = _object(reply)
    layers = [_layer(_object(each)) for each in _list(value["layers"], "layers")]
    return layers, read_seconds(value)


def _input(value: dict[str, Any]) -> InputSpec:
    dims = _list(value["shape"], "shape")
    for dim in dims:
        if not (dim is None or isinstance(dim, str)):
            _whole(dim, "a dim")
    return InputSpec(_text(value["name"], "name"), _text(value["dtype"], "dtype"), tuple(dims))


def _layer(value: dict[str, Any]) -> LayerTime:
    for key in ("name", "op_type", "provider", "precision"):
        _text(value.get(key, ""), key)
    for key in ("origins", "inputs", "outputs"):
        for name in _list(value.get(key, []), key):
            _text(name, key)
    return LayerTime.from_dict({**value, "ms": _duration(value["ms"], "ms", MOST_MS)})


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.40} is no object")
    return value


def _list(value: Any, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{key} is no list: {value!r:.40}")
    return value


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{key} is no text: {value!r:.40}")
    return value


def _whole(value: Any, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{key} is no whole number: {value!r:.40}")
    return value


def _duration(value: Any, key: str, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{key} is no number: {value!r:.40}")
    if not 0 <= value <= most:  # nothing is compared with NaN
        raise ValueError(f"{key} can't be {value!r:.40}")
    return float(value)
