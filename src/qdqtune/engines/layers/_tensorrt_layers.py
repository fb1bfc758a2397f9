"""The kernels of a TensorRT engine, and the parser of the layer list in build logs.

The list has one line per kernel with its tensors, their types, and its ONNX nodes. It shows whether
an op that is quantized in the model is also quantized in the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

LOW_PRECISION = frozenset({"Int8", "FP8"})
"""TensorRT's names of the types that a quantized op reads."""

LIST_START = "Layers:\n"
"""The start of a layer list."""

# No tensor reaches into the next one, so that a list of broken ones is not searched for each.
_TENSOR = re.compile(
    r"\{ Name: (?P<name>(?:(?!\{ Name: ).)*?)(?:, Location: \w+)?, Dimensions: "
    r"\[(?P<dims>[-\d,]*)\][^{}]*?Datatype: (?P<dtype>[^,{}]*)"
)
_FIELD = re.compile(r", (?P<key>Origin|TacticName): (?P<value>[^,]*)")
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

# Kernels that multiply and add; everything else moves, scales or reduces.
_PRODUCT_KINDS = frozenset({"correlation", "deconv", "gemm", "runtime_fusion"})
# Parts of the names of such kinds, where TensorRT has kernels from a library.
_LIBRARY_PRODUCTS = ("Convolution", "ConvActPool", "MatrixMultiply", "FullyConnected")
_ATTENTION = "_gemm_mha"
# How generated kernels (`__myl_MulCastCorrMul_myl0_3`) spell the products fused into them.
_PRODUCT_TOKENS = ("Corr", "Deco", "Fc", "Gemm")


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
        tactic: Name of the kernel that was chosen.
    """

    name: str
    kind: str
    inputs: tuple[LayerTensor, ...] = ()
    outputs: tuple[LayerTensor, ...] = ()
    constants: tuple[LayerTensor, ...] = ()
    nodes: tuple[str, ...] = ()
    origin: str = ""
    tactic: str = ""

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Layer:
        """Reads what `dataclasses.asdict` wrote."""
        tensors: dict[str, Any] = {
            role: tuple(LayerTensor(t["name"], t["dtype"], tuple(t["dims"])) for t in body[role])
            for role in ("inputs", "outputs", "constants")
        }
        return cls(
            body["name"],
            body["kind"],
            **tensors,
            nodes=tuple(body["nodes"]),
            origin=body["origin"],
            tactic=body["tactic"],
        )

    @property
    def multiplies(self) -> bool:
        """Whether matrix products or convolutions happen in it."""
        if self.kind in _PRODUCT_KINDS or self._is_library_product:
            return True
        if self.name.startswith(_ATTENTION):
            return True
        operations = self.name.removeprefix("__myl_").partition("_")[0]
        tokens = re.findall("[A-Z][a-z]*", operations) if self.name.startswith("__myl_") else ()
        return any(token in _PRODUCT_TOKENS for token in tokens)

    @property
    def operands(self) -> tuple[LayerTensor, ...]:
        """What is multiplied: not the residual that is added, nor scales and biases."""
        if self.name.startswith(_ATTENTION):
            # q, k, whatever is added to the scores (a mask), v.
            return (*self.inputs[:2], *self.inputs[2:][-1:])
        if self._is_library_product:
            return (*self.inputs[:1], *self.constants) if self.constants else self.inputs[:2]
        if self.kind not in ("correlation", "deconv", "gemm"):
            return self.inputs  # which of them are multiplied can't be told
        # A weight that is part of the kernel comes first; scalars and vectors are scales.
        weight = self.constants[:1] if self.constants and len(self.constants[0].dims) > 1 else ()
        return (*self.inputs[:1], *weight) if weight else self.inputs[:2]

    @property
    def _is_library_product(self) -> bool:
        return any(part.lower() in self.kind.lower() for part in _LIBRARY_PRODUCTS)


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


def operand_types(layers: Iterable[Layer], nodes: Iterable[str]) -> dict[str, set[str]]:
    """Finds, for each ONNX node, the types of what the kernels that execute it multiply.

    A node is in the Metadata of many kernels: those that prepare its inputs, its scales, its
    bias. Only the ones that do its products count, and all of those do.

    Args:
        layers: The kernels of the engine.
        nodes: Names of Conv, Gemm or MatMul nodes (in general: of ops that multiply).

    Returns:
        Types by node; an empty set if no kernel says that it executes the node.
    """
    found: dict[str, set[str]] = {name: set() for name in nodes}
    for layer in layers:
        if layer.multiplies:
            for name in found.keys() & set(layer.nodes):
                found[name].update(tensor.dtype for tensor in layer.operands)
    return found


def not_low_precision(types_of: Mapping[str, set[str]]) -> list[str]:
    """The nodes of `operand_types` that read something else than 8-bit values, or nothing."""
    return [name for name, types in types_of.items() if not types or not types <= LOW_PRECISION]


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
    told = {field["key"]: field["value"] for field in _FIELD.finditer(parameters)}
    return Layer(
        name,
        kind,
        _parse_tensors(inputs),
        _parse_tensors(outputs),
        _parse_tensors(constants),
        nodes_in(metadata.strip(" ")),
        told.get("Origin", ""),
        told.get("TacticName", ""),
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
