"""Parses TensorRT's reports on the layers of an engine and on their times.

Layer information is the JSON of `trtexec --exportLayerInfo` and of the engine inspector, which
differs between versions, the same as text, or a log that contains the text: one line per kernel
with its tensors, their types, and its ONNX nodes. A profile is what `--exportProfile` writes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtune.records._errors import LimitError, UsageError
from qdqtune.records._measurement import LayerTime
from qdqtune.records._untrusted_files import parse_json, read_bytes

LIST_START = "Layers:\n"
"""The start of a layer list."""

# A match never extends into the next tensor, so malformed lists are not searched again for each.
_TENSOR = re.compile(
    r"\{ Name: (?P<name>(?:(?!\{ Name: ).)*?)(?:, Location: \w+)?, Dimensions: "
    r"\[(?P<dims>[-\d,]*)\][^{}]*?Datatype: (?P<dtype>[^,{}]*)"
)
_ORIGIN = re.compile(r", Origin: ([^,]*)")
_ONNX_NODE = re.compile(r"^\[ONNX Layer: (?P<name>.*?)(?: \| Local Function: .*)?\]$", re.DOTALL)
_SEPARATORS = re.compile("[\x1e\x1f]")

# Words that identify a type; a phrase such as `Channel major FP16 format where channel % 8 == 0`
# contains one, too.
_TYPE_WORDS = (
    ("bfloat16", "BFloat16"), ("bf16", "BFloat16"),
    ("fp32", "Float"), ("fp16", "Half"), ("fp8", "FP8"), ("fp4", "FP4"),
    ("float", "Float"), ("half", "Half"),
    ("uint8", "UInt8"), ("int8", "Int8"), ("int4", "Int4"), ("int64", "Int64"), ("int32", "Int32"),
    ("bool", "Bool"),
)  # fmt: skip

_PRECISIONS = {
    "BFloat16": "bfloat16", "Bool": "bool", "FP4": "float4", "FP8": "float8", "Float": "float32",
    "Half": "float16", "Int32": "int32", "Int4": "int4", "Int64": "int64", "Int8": "int8",
    "UInt8": "uint8",
}  # fmt: skip
_LAYERS_KEYS = ("layers", "layerinfo")
_TYPE_KEYS = ("datatype", "format/datatype", "format")
_PROFILE = re.compile(r" \[profile (?P<number>\d{1,6})\]")
# Kernels of one compiled part of the network are numbered together.
_PART = re.compile(r"_myl(?P<number>\d+)_\d+$")
_HOW_TO = (
    "Write one with: trtexec --onnx=MODEL --skipInference --profilingVerbosity=detailed "
    "--exportLayerInfo=FILE"
)

# As trtexec writes it, with names unescaped: a quote or a backslash in one makes the JSON invalid.
_ENTRY = re.compile(
    r'\{ "name" : "(?P<name>[^\n]*?)", "timeMs" : (?P<timeMs>[^,}\s]+)'
    r'(?:, "averageMs" : (?P<averageMs>[^,}\s]+))?(?:, "medianMs" : (?P<medianMs>[^,}\s]+))?'
)
_COUNT = re.compile(r'\{ "count" : (?P<count>\d{1,18}) \}')
_START = '{ "name" : "'


@dataclass(frozen=True)
class LayerTensor:
    """A tensor that a kernel reads or writes.

    Attributes:
        name: The engine's name for it.
        dtype: TensorRT's name of the type, such as `Int8` or `Float`.
        dims: The shape; -1 where it is open.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """One kernel of an engine.

    Attributes:
        name: The engine's name for it.
        kind: TensorRT's layer type, such as `gemm`, `correlation` or `kgen`.
        inputs: The tensors it reads.
        outputs: The tensors it writes.
        constants: Weights and scales that are part of it.
        nodes: Names of the ONNX nodes that it executes in whole or in part.
        origin: The reason for a `Reformat`, such as `QDQ`, `CAST` or `REFORMAT`.
    """

    name: str
    kind: str
    inputs: tuple[LayerTensor, ...] = ()
    outputs: tuple[LayerTensor, ...] = ()
    constants: tuple[LayerTensor, ...] = ()
    nodes: tuple[str, ...] = ()
    origin: str = ""

    def timed(self, ms: float = 0.0) -> LayerTime:
        """Return the form that all engines report layers in."""
        types = (_PRECISIONS.get(each.dtype, "") for each in (*self.inputs, *self.outputs))
        return LayerTime(
            name=self.name,
            op_type=self.kind,
            ms=ms,
            precision=next(filter(None, types), ""),
            origins=self.nodes,
            inputs=tuple(tensor.name for tensor in self.inputs),
            outputs=tuple(tensor.name for tensor in self.outputs),
        )


def is_layer_list(message: str) -> bool:
    """Whether a message of a build's log is the list of its layers."""
    return message.startswith(LIST_START + "Name: ")


def parse_layers(text: str) -> tuple[Layer, ...]:
    """Reads a layer list, in order of execution.

    Args:
        text: The message; what follows the layers is ignored.

    Raises:
        ValueError: If it is not a layer list, or has an unknown form.
    """
    if not text.startswith(LIST_START):
        raise ValueError("the text is not a layer list: it doesn't start with 'Layers:'")
    listed, _, _ = text[len(LIST_START) :].partition("\n\n")
    # Not splitlines(), which would also split at the separators inside Metadata.
    return tuple(_parse_layer(line) for line in listed.split("\n") if line)


def type_named(text: str) -> str:
    """Return TensorRT's short name of the type in a phrase; the phrase if it has none."""
    lowered = text.lower()
    return next((name for word, name in _TYPE_WORDS if word in lowered), text.strip())


def nodes_in(metadata: str) -> tuple[str, ...]:
    """Return the names of ONNX nodes in a layer's Metadata, each once.

    TensorRT omits the middle of a long text; names that were cut there are missing.
    """
    entries = (_ONNX_NODE.match(entry) for entry in _SEPARATORS.split(metadata))
    names = (entry["name"] for entry in entries if entry)
    return tuple(dict.fromkeys(name for name in names if "[ONNX Layer: " not in name))


def _parse_layer(line: str) -> Layer:
    name, is_layer, rest = line.removeprefix("Name: ").partition(", LayerType: ")
    kind, has_inputs, rest = rest.partition(", Inputs: [")
    if not (line.startswith("Name: ") and is_layer and has_inputs):
        raise ValueError(f"not a layer of a layer list: {line[:200]!r}")
    read, has_outputs, rest = rest.partition("], Outputs: [")
    if not has_outputs:
        raise ValueError(f"a layer of the layer list breaks off: {line[:200]!r}")
    inputs, _, constants = read.partition("], Constants: [")
    # The dims inside have brackets, too; a non-empty list ends with a brace.
    outputs, _, rest = ("", "", rest[1:]) if rest.startswith("]") else rest.partition(" }]")
    parameters, _, metadata = rest.partition(", Metadata:")
    origin = _ORIGIN.search(parameters)
    return Layer(
        name,
        kind,
        _parse_tensors(inputs),
        _parse_tensors(outputs),
        _parse_tensors(constants),
        nodes_in(metadata.strip(" ")),
        origin[1] if origin else "",
    )


def _parse_tensors(text: str) -> tuple[LayerTensor, ...]:
    return tuple(
        LayerTensor(
            m["name"],
            type_named(m["dtype"]),
            tuple(int(dim) for dim in m["dims"].split(",") if dim),
        )
        for m in _TENSOR.finditer(text)
    )


def read_layer_info(path: str | Path) -> tuple[Layer, ...]:
    """Reads the layers in a file, in order of execution, for the first optimization profile.

    Raises:
        UsageError: If the file does not exist or has no layers.
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
        ValueError: If it is not valid; the message says what is wrong, and where.
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
    return layers[:end] or layers  # suffixes from the start on mean no repetition


def _is_of_another_profile(layer: Layer) -> bool:
    tensors = (*layer.inputs, *layer.outputs)
    found = (_PROFILE.search(name) for name in (layer.name, *(tensor.name for tensor in tensors)))
    return any(int(match["number"]) for match in found if match)


def _same_part(part: re.Match[str], layer: Layer) -> bool:
    other = _PART.search(layer.name)
    return other is not None and other["number"] == part["number"]


def parse_profile(text: str) -> list[tuple[str, float]]:
    """Reads a profile: names of layers and milliseconds per run, in order of execution.

    The time is the median over the runs; in files without medians, the mean.

    Raises:
        ValueError: If it is not a profile, or an incomplete one.
    """
    text = text.lstrip("\ufeff").strip()
    if not text.startswith("["):
        raise ValueError("it is not a profile: it doesn't begin with a list")
    if not text.endswith("]"):
        raise ValueError(f"the profile is cut off after {len(text)} characters")
    listed = _as_written(text) if _START in text else _as_json(text)
    runs = next((runs for each in listed if (runs := _number(each.get("count")))), 1.0)
    entries = [entry for entry in listed if isinstance(entry.get("name"), str)]
    if not entries:
        raise ValueError("the profile has no layers")
    return [(entry["name"], _ms(entry, runs)) for entry in entries]


def _as_written(text: str) -> Sequence[Mapping[str, Any]]:
    entries = [match.groupdict() for match in _ENTRY.finditer(text)]
    if len(entries) != text.count(_START):
        raise ValueError("the profile has entries without times")
    return [match.groupdict() for match in _COUNT.finditer(text)] + entries


def _as_json(text: str) -> Sequence[Mapping[str, Any]]:
    try:
        listed = parse_json(text, "The profile", strict=False)
    except ValueError as error:
        raise ValueError(f"the profile is not JSON: {error}") from None
    return [entry for entry in listed if isinstance(entry, Mapping)]


def _ms(entry: Mapping[str, Any], runs: float) -> float:
    for key in ("medianMs", "averageMs"):
        value = _number(entry.get(key))
        if value is not None:
            return value
    total = _number(entry.get("timeMs"))
    if total is None:
        raise ValueError(f"the profile has no time of the layer {entry['name'][:80]!r}")
    return total / runs


def _number(value: Any) -> float | None:
    """Return a value that is a valid time; None for others."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number >= 0 else None
