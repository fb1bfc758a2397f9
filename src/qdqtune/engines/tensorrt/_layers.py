"""The kernels of a TensorRT engine, and the parser of the layer list in build logs.

The list has one line per kernel with its tensors, their types, and its ONNX nodes. It shows whether
an op that is quantized in the model is also quantized in the engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from qdqtune.records._measurement import LayerTime

LIST_START = "Layers:\n"
"""The start of a layer list."""

# No tensor reaches into the next one, so that a list of broken ones is not searched for each.
_TENSOR = re.compile(
    r"\{ Name: (?P<name>(?:(?!\{ Name: ).)*?)(?:, Location: \w+)?, Dimensions: "
    r"\[(?P<dims>[-\d,]*)\][^{}]*?Datatype: (?P<dtype>[^,{}]*)"
)
_ORIGIN = re.compile(r", Origin: ([^,]*)")
_ONNX_NODE = re.compile(r"^\[ONNX Layer: (?P<name>.*?)(?: \| Local Function: .*)?\]$", re.DOTALL)
_SEPARATORS = re.compile("[\x1e\x1f]")

# By which word a type is told; `Channel major FP16 format where channel % 8 == 0` is one, too.
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
        inputs: What it reads.
        outputs: What it writes.
        constants: Weights and scales that are part of it.
        nodes: Names of the ONNX nodes it does a part of.
        origin: Why a `Reformat` is there, such as `QDQ`, `CAST` or `REFORMAT`.
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
        ValueError: If it is not a layer list, or one in a form that is not known.
    """
    if not text.startswith(LIST_START):
        raise ValueError("the text is not a layer list: it doesn't start with 'Layers:'")
    listed, _, _ = text[len(LIST_START) :].partition("\n\n")
    # Not splitlines(): it takes the separators inside Metadata for ends of lines.
    return tuple(_parse_layer(line) for line in listed.split("\n") if line)


def type_named(text: str) -> str:
    """TensorRT's short name of the type that a phrase is about; the phrase if none is."""
    lowered = text.lower()
    return next((name for word, name in _TYPE_WORDS if word in lowered), text.strip())


def nodes_in(metadata: str) -> tuple[str, ...]:
    """The names of ONNX nodes in a layer's Metadata, each once.

    A long text has its middle left out; the names that were cut there are not told.
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
    # The dims inside are in brackets, too; a list that isn't empty ends with a brace.
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
