"""The ONNX file as the stand-in trtexec reads it: parsed, checked, and with shapes."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import struct
import sys
import types
from collections.abc import Iterable
from typing import Any


def _onnx_without_numpy() -> tuple[Any, Any]:
    """The messages and the compiled part of onnx. All of it would take four times as long."""
    if "onnx" not in sys.modules:
        spec = importlib.util.find_spec("onnx")
        assert spec is not None
        package = types.ModuleType("onnx")
        package.__path__ = list(spec.submodule_search_locations or ())
        sys.modules["onnx"] = package
    from onnx import onnx_cpp2py_export, onnx_ml_pb2

    return onnx_ml_pb2, onnx_cpp2py_export


_MESSAGES, _COMPILED = _onnx_without_numpy()
TensorProto = _MESSAGES.TensorProto
Node = Any
Version = tuple[int, ...]
Shape = tuple[int, ...]

TYPES = {
    TensorProto.FLOAT: "Float",
    TensorProto.FLOAT16: "Half",
    TensorProto.BFLOAT16: "BFloat16",
    TensorProto.INT8: "Int8",
    TensorProto.UINT8: "UInt8",
    TensorProto.INT32: "Int32",
    TensorProto.INT64: "Int64",
    TensorProto.BOOL: "Bool",
    TensorProto.FLOAT8E4M3FN: "FP8",
}
BYTES = {"Float": 4, "Half": 2, "BFloat16": 2, "Int32": 4, "Int64": 8}
# Halves of a float32 that begin with the sign are as good as all of it to tell the sign.
_LETTERS = {
    TensorProto.FLOAT: "f", TensorProto.FLOAT16: "e", TensorProto.BFLOAT16: "h",
    TensorProto.INT8: "b", TensorProto.UINT8: "B", TensorProto.INT32: "i",
}  # fmt: skip
_SMALL_BYTES = 1 << 16
_NO_IMPORTER = {
    "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear",
    "StringNormalizer",
}  # fmt: skip


class ParseError(Exception):
    """What the parser says, a line each."""


class BuildError(Exception):
    """What the builder says: an error code and a text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Network:
    """A model, its constants told apart from what runs.

    Args:
        path: The file.
        version: Of the TensorRT that is stood in for.
        plugins: Whether libraries with custom ops were given.

    Attributes:
        model: The model without its large weights.
        nodes: Those that run, in order, each with a name.
        dims: Dims by tensor as declared; -1 where open.
        shapes: Shapes by tensor once `set_shapes` was called.
        kinds: Types by tensor.
        folded: The node that makes a constant, by tensor.

    Raises:
        ParseError: If it is refused.
    """

    def __init__(self, path: str, version: Version, *, plugins: bool = False) -> None:
        self.path = path
        self.version = version
        self.model = _load(path)
        graph = self.model.graph
        self.weights = {tensor.name: tensor for tensor in graph.initializer}
        _shorten(self.weights.values(), os.path.dirname(os.path.abspath(path)))
        self.inputs = [value for value in graph.input if value.name not in self.weights]
        self.folded: dict[str, Node] = {}
        self.nodes: list[Node] = []
        for number, node in enumerate(graph.node):
            node.name = node.name or f"node_of_{node.output[0]}"
            self._check(number, node, plugins)
            if all(not name or self.is_constant(name) for name in node.input):
                self.folded.update((name, node) for name in node.output)
            else:
                self.nodes.append(node)
        if not graph.output:
            raise ParseError("Network must have at least one output")
        self.dims: dict[str, Shape] = {}
        self.kinds: dict[str, str] = {}
        self._infer(self.dims)
        self.shapes = self.dims
        for name, weight in self.weights.items():
            self.dims[name] = tuple(weight.dims)
            self.kinds[name] = TYPES.get(weight.data_type, "Float")

    def is_constant(self, tensor: str) -> bool:
        """Whether a tensor is known before any run."""
        return tensor in self.weights or tensor in self.folded

    def set_shapes(self, shapes: dict[str, Shape]) -> None:
        """Sets the shapes of inputs with open dims, and works out all others."""
        if not shapes:
            return
        for value in self.inputs:
            for dim, size in zip(
                value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False
            ):
                dim.dim_value = size
        for value in itertools.chain(self.model.graph.output, self.model.graph.value_info):
            if value.name not in self.weights:
                value.type.tensor_type.ClearField("shape")
        self.shapes = dict(self.dims)
        self._infer(self.shapes)

    def elements(self, tensor: str) -> int:
        """How many values a tensor has; open dims count once."""
        return math.prod(max(size, 1) for size in self.shapes.get(tensor, ()))

    def bytes_of(self, tensor: str) -> int:
        """How large a tensor is."""
        return self.elements(tensor) * BYTES.get(self.kinds.get(tensor, "Float"), 1)

    def _infer(self, found: dict[str, Shape]) -> None:
        try:
            content = self.model.SerializeToString()
            inferred = _MESSAGES.ModelProto()
            inferred.ParseFromString(
                _COMPILED.shape_inference.infer_shapes(content, True, True, True)
            )
        except Exception as error:
            raise ParseError(self._located(str(error))) from None
        graph = inferred.graph
        for value in itertools.chain(graph.input, graph.output, graph.value_info):
            kind = value.type.tensor_type
            found[value.name] = tuple(
                dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim
            )
            self.kinds[value.name] = TYPES.get(kind.elem_type, "Float")

    def _located(self, text: str) -> str:
        for number, node in enumerate(self.model.graph.node):
            if f"node name: {node.name})" in text or f"op_type:{node.op_type}," in text:
                return _failure(number, node, "INVALID_NODE", text)
        return text.strip().replace("\n", " ")

    def _check(self, number: int, node: Node, plugins: bool) -> None:
        opset = max((o.version for o in self.model.opset_import if not o.domain), default=0)
        foreign = node.domain not in ("", "ai.onnx")
        if not foreign and not opset:
            raise ParseError(_failure(number, node, "INVALID_GRAPH", "No opset is imported"))
        if foreign and plugins:
            return
        known = (
            not foreign
            and node.op_type not in _NO_IMPORTER
            and _COMPILED.defs.has_schema(node.op_type)
        )
        if not known:
            raise ParseError(
                f"[TRT] No importer registered for op: {node.op_type}. Attempting to import as "
                "plugin.\n"
                + _failure(
                    number,
                    node,
                    "UNSUPPORTED_NODE",
                    "Plugin not found, are the plugin name, version, and namespace correct?",
                )
            )
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            self._check_pair(number, node)

    def _check_pair(self, number: int, node: Node) -> None:
        def refuse(text: str) -> None:
            raise ParseError(_failure(number, node, "INVALID_NODE", text))

        scale = self._values(node.input[1])
        if not all(value > 0 for value in scale):
            refuse("Scale coefficients must all be positive")
        source = self.weights.get(node.input[0])
        if source is not None and source.data_type == TensorProto.INT32:
            refuse("input has type Int32 but must have type FP8, FP4, Int4, Int8, or UInt8")
        if len(node.input) < 3 or not node.input[2]:
            if node.op_type == "QuantizeLinear":
                refuse("UInt8 is not supported as the type of a quantized tensor")
            return
        zero_point = self.weights.get(node.input[2])
        if zero_point is None:
            return
        if zero_point.data_type == TensorProto.INT32:
            refuse("input has type Int32 but must have type FP8, FP4, Int4, Int8, or UInt8")
        if zero_point.data_type == TensorProto.UINT8:
            refuse("UInt8 is not supported as the type of a quantized tensor")
        if zero_point.data_type == TensorProto.FLOAT8E4M3FN:
            if self.version < (10,):
                refuse("Unsupported data type: FLOAT8E4M3FN")
            return
        if any(self._values(node.input[2])):
            refuse("Non-zero zero point is not supported. Consider enabling the DLA flag")

    def _values(self, name: str) -> list[float]:
        """The values of a small constant; none if they are not known."""
        weight = self.weights.get(name)
        if weight is None or weight.data_location == TensorProto.EXTERNAL:
            return []
        letter = _LETTERS.get(weight.data_type)
        if weight.raw_data and letter:
            count = len(weight.raw_data) // struct.calcsize(letter)
            return list(struct.unpack(f"<{count}{letter}", weight.raw_data))
        return [*weight.float_data, *weight.int32_data]


def declared_inputs(network: Network) -> dict[str, Shape]:
    """Dims of the inputs, in order; -1 where open."""
    return {value.name: network.dims[value.name] for value in network.inputs}


def _failure(number: int, node: Node, code: str, text: str) -> str:
    named = f'{node.op_type} -> "{node.output[0]}"'
    line = " ".join(text.split())
    return (
        f"[TRT] ModelImporter.cpp:140: While parsing node number {number} [{named}]:\n"
        f"[TRT] ModelImporter.cpp:141: --- Begin node ---\n"
        f'[TRT] ModelImporter.cpp:142: name: "{node.name}" op_type: "{node.op_type}"\n'
        f"[TRT] ModelImporter.cpp:143: --- End node ---\n"
        f"[TRT] ModelImporter.cpp:145: ERROR: onnxOpImporters.cpp:1524 In function importNode:\n"
        f"[8] {code}: {line}"
    )


def _load(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError:
        raise ParseError(f"[TRT] Could not open file {path}") from None
    model = _MESSAGES.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception:
        raise ParseError(f"[TRT] Failed to parse ONNX model from file: {path}!") from None
    return model


def _shorten(weights: Iterable[Any], folder: str) -> None:
    """Reads small weights that lie in other files, and forgets large ones."""
    for weight in weights:
        if weight.data_location != TensorProto.EXTERNAL:
            if weight.ByteSize() > _SMALL_BYTES:
                dims, name, kind = list(weight.dims), weight.name, weight.data_type
                weight.Clear()
                weight.dims.extend(dims)
                weight.name, weight.data_type = name, kind
                weight.data_location = TensorProto.EXTERNAL
                weight.external_data.add(key="location", value="forgotten")
            continue
        told = {entry.key: entry.value for entry in weight.external_data}
        path = os.path.join(folder, told.get("location", ""))
        length = int(told.get("length", 0) or 0)
        if not os.path.isfile(path):
            raise ParseError(
                f"[TRT] WeightsContext.cpp:178: Failed to open file: {told.get('location', '')}"
            )
        if length <= _SMALL_BYTES:
            with open(path, "rb") as file:
                file.seek(int(told.get("offset", 0) or 0))
                weight.raw_data = file.read(length) if length else file.read()
            weight.data_location = TensorProto.DEFAULT
            del weight.external_data[:]
