"""Reads TensorRT's information about the layers of an engine.

Its forms are the JSON of `trtexec --exportLayerInfo` and of the engine inspector, which differs
between versions, the same as text, or a log that contains the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqtune.engines.tensorrt._layers import (
    LIST_START,
    Layer,
    LayerTensor,
    nodes_in,
    parse_layers,
    type_named,
)
from qdqtune.records._errors import LimitError, UsageError
from qdqtune.records._untrusted_files import parse_json, read_bytes

_LAYERS_KEYS = ("layers", "layerinfo")
_TYPE_KEYS = ("datatype", "format/datatype", "format")
_PROFILE = re.compile(r" \[profile (?P<number>\d{1,6})\]")
# Kernels of one compiled part of the network are numbered together.
_PART = re.compile(r"_myl(?P<number>\d+)_\d+$")
_HOW_TO = (
    "Write one with: trtexec --onnx=MODEL --skipInference --profilingVerbosity=detailed "
    "--exportLayerInfo=FILE"
)


def read_layer_info(path: str | Path) -> tuple[Layer, ...]:
    """Reads the layers in a file, in order of execution, for the first optimization profile.

    Raises:
        UsageError: If there is no such file, or it has no layers.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise UsageError(
            f"The layer information {path} can't be read: {error.strerror}.", _HOW_TO
        ) from error
    try:
        return parse_layer_info(text, str(path))
    except LimitError:
        raise
    except ValueError as error:
        raise UsageError(f"{path} holds no TensorRT layer information: {error}.", _HOW_TO) from None


def parse_layer_info(text: str, source: str = "The layer information") -> tuple[Layer, ...]:
    """Reads the layers in a text of any form, for the first optimization profile.

    Args:
        text: The text.
        source: Its name in an error message.

    Raises:
        ValueError: If it is not valid; the message says what is wrong where.
    """
    text = text.lstrip("\ufeff").replace("\r\n", "\n")
    start = text.rfind(LIST_START + "Name: ")
    if start >= 0 and not text.lstrip().startswith("{"):
        return _of_first_profile(parse_layers(text[start:]))
    entries = enumerate(_entries(_json(text, source)))
    layers = tuple(_layer(number, entry) for number, entry in entries)
    if not layers:
        raise ValueError("its list of layers is empty; was the engine built without verbosity?")
    return _of_first_profile(layers)


def _json(text: str, source: str) -> Any:
    try:
        # Not strict: names may contain unescaped control characters.
        return parse_json(text, source, strict=False)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise ValueError("it is empty") from None
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
            raise ValueError(f"the JSON is cut off after {len(text)} characters") from None
        raise ValueError(
            f"it is neither JSON ({error.msg} in line {error.lineno}, column {error.colno}) nor a "
            "log with a list of layers"
        ) from None
    except LimitError:
        raise
    except ValueError as error:
        raise ValueError(f"its JSON can't be read ({error})") from None


def _lowered(value: Any) -> dict[str, Any]:
    """Lowercase an object's keys, keeping the first of equals; other values give an empty one."""
    found: dict[str, Any] = {}
    for key, each in value.items() if isinstance(value, Mapping) else ():
        found.setdefault(key.lower(), each)
    return found


def _entries(value: Any, *, depth: int = 0) -> list[Any]:
    if isinstance(value, list):
        return value
    given = _lowered(value)
    inner = next((given[key] for key in _LAYERS_KEYS if key in given), None)
    if inner is None or depth > 1:
        kind = f"an object with {sorted(given)[:5]}" if given else f"a {type(value).__name__}"
        raise ValueError(f"the JSON has no list under 'Layers', it is {kind}")
    return _entries(inner, depth=depth + 1)


def _layer(number: int, entry: Any) -> Layer:
    if isinstance(entry, str):
        return Layer(_clean(entry), "")
    given = _lowered(entry)
    name = given.get("name")
    if not isinstance(name, str):
        raise ValueError(f"layer {number} has no name but {str(name)[:40]!r}")
    weights = _lowered(given.get("weights"))
    constants = _tensors(given.get("constants"))
    if weights.get("type") and weights.get("count"):
        type_name = type_named(_text(weights, "type"))
        constants += (LayerTensor("Weights", type_name, _dims([weights["count"]])),)
    return Layer(
        _clean(name),
        _text(given, "layertype"),
        _tensors(given.get("inputs")),
        _tensors(given.get("outputs")),
        constants,
        nodes_in(_text(given, "metadata")),
        _text(given, "origin"),
    )


def _tensors(value: Any) -> tuple[LayerTensor, ...]:
    found = []
    for entry in value if isinstance(value, list) else ():
        given = _lowered(entry)
        name = entry if isinstance(entry, str) else given.get("name")
        if isinstance(name, str):
            phrase = next((given[key] for key in _TYPE_KEYS if isinstance(given.get(key), str)), "")
            dims = _dims(given.get("dimensions"))
            found.append(LayerTensor(_clean(name), type_named(_clean(phrase)), dims))
    return tuple(found)


def _dims(value: Any) -> tuple[int, ...]:
    """Return the dims of a shape; non-integers count as open."""
    listed = value if isinstance(value, list) else []
    return tuple(dim if type(dim) is int else -1 for dim in listed)


def _text(given: Mapping[str, Any], key: str) -> str:
    value = given.get(key)
    return _clean(value) if isinstance(value, str) else ""


def _clean(text: str) -> str:
    """Replace lone surrogates, which JSON allows and nothing can print."""
    return text.encode("utf-8", errors="replace").decode()


def _of_first_profile(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Remove the repetition for further profiles, which follows with a suffix in some names."""
    others = (number for number, layer in enumerate(layers) if _is_of_another_profile(layer))
    end = next(others, len(layers))
    part = _PART.search(layers[end].name) if end < len(layers) else None
    while part and end and _same_part(part, layers[end - 1]):
        end -= 1
    return layers[:end] or layers  # suffixes from the first on are no repetition


def _is_of_another_profile(layer: Layer) -> bool:
    tensors = (*layer.inputs, *layer.outputs)
    found = (_PROFILE.search(name) for name in (layer.name, *(tensor.name for tensor in tensors)))
    return any(int(match["number"]) for match in found if match)


def _same_part(part: re.Match[str], layer: Layer) -> bool:
    other = _PART.search(layer.name)
    return other is not None and other["number"] == part["number"]
