"""The kernels of a TensorRT-RTX engine, read from the layer list that its build prints.

The list is text: one line per kernel with its tensors, their types, and the ONNX nodes it stands
for. From it follows whether an op that is quantized in the model is so in the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

LOW_PRECISION = frozenset({"Int8", "FP8"})
"""TensorRT's names of the types that a quantized op reads."""

_LIST_START = "Layers:\n"
_LAYER = re.compile(
    r"^Name: (?P<name>.*?), LayerType: (?P<kind>[^,]*), Inputs: \[(?P<inputs>.*?)\], "
    r"(?:Constants: \[(?P<constants>.*?)\], )?Outputs: \[(?P<outputs>.*?)\], TacticName: "
    r".*?Metadata: (?P<metadata>.*)$"
)
_TENSOR = re.compile(
    r"\{ Name: (?P<name>.*?), Dimensions: \[(?P<dims>[-\d,]*)\],.*?Datatype: (?P<dtype>\w+)"
)
_ONNX_NODE = re.compile(r"^\[ONNX Layer: (?P<name>.*?)(?: \| Local Function: .*)?\]$")
_SEPARATORS = re.compile("[\x1e\x1f]")

# Kernels that multiply and add; everything else moves, scales or reduces.
_PRODUCT_KINDS = frozenset({"correlation", "deconv", "gemm", "runtime_fusion"})
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
    """

    name: str
    kind: str
    inputs: tuple[LayerTensor, ...] = ()
    outputs: tuple[LayerTensor, ...] = ()
    constants: tuple[LayerTensor, ...] = ()
    nodes: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Layer:
        """Reads what `dataclasses.asdict` wrote."""
        tensors = {
            role: tuple(LayerTensor(t["name"], t["dtype"], tuple(t["dims"])) for t in body[role])
            for role in ("inputs", "outputs", "constants")
        }
        return cls(body["name"], body["kind"], nodes=tuple(body["nodes"]), **tensors)

    @property
    def multiplies(self) -> bool:
        """Whether matrix products or convolutions happen in it."""
        if self.kind in _PRODUCT_KINDS or self.name.startswith(_ATTENTION):
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
        if self.kind not in ("correlation", "deconv", "gemm"):
            return self.inputs  # which of them are multiplied can't be told
        # A weight that is part of the kernel comes first; scalars and vectors are scales.
        weight = self.constants[:1] if self.constants and len(self.constants[0].dims) > 1 else ()
        return (*self.inputs[:1], *weight) if weight else self.inputs[:2]


def is_layer_list(message: str) -> bool:
    """Whether a message of a build's log is the list of its layers."""
    return message.startswith(_LIST_START + "Name: ")


def parse_layers(text: str) -> tuple[Layer, ...]:
    """Reads a layer list, in order of execution.

    Args:
        text: The message; what follows the layers is ignored.

    Raises:
        ValueError: If it is not a layer list, or one in a form that is not known.
    """
    if not text.startswith(_LIST_START):
        raise ValueError("the text is not a layer list: it doesn't start with 'Layers:'")
    listed, _, _ = text[len(_LIST_START) :].partition("\n\n")
    # Not splitlines(): it takes the separators inside Metadata for ends of lines.
    return tuple(_parse_layer(line) for line in listed.split("\n") if line)


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
    match = _LAYER.match(line)
    if match is None:
        raise ValueError(f"not a layer of a layer list: {line[:200]!r}")
    entries = (_ONNX_NODE.match(entry) for entry in _SEPARATORS.split(match["metadata"]))
    return Layer(
        match["name"],
        match["kind"],
        _parse_tensors(match["inputs"]),
        _parse_tensors(match["outputs"]),
        _parse_tensors(match["constants"] or ""),
        tuple(dict.fromkeys(entry["name"] for entry in entries if entry)),
    )


def _parse_tensors(text: str) -> tuple[LayerTensor, ...]:
    return tuple(
        LayerTensor(m["name"], m["dtype"], tuple(int(dim) for dim in m["dims"].split(",") if dim))
        for m in _TENSOR.finditer(text)
    )
