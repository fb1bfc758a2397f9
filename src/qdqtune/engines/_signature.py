"""The inputs and outputs that a model file declares; weights are not read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx
from google.protobuf.message import DecodeError

from qdqtune.engines._interface import InputSpec
from qdqtune.engines.tensorrt._settings import OpenDims, fits_dims

if TYPE_CHECKING:
    from qdqtune.engines._interface import Feeds

_QUANTIZING = frozenset({"QuantizeLinear", "DequantizeLinear"})


@dataclass(frozen=True)
class Signature:
    """The signature of a model.

    Attributes:
        inputs: Its required inputs, in order; inputs with an initializer as default are excluded.
        outputs: Names and numpy type names, in order.
        low_types: Types that its Q and DQ convert to and from, such as `int8`.
    """

    inputs: tuple[InputSpec, ...]
    outputs: Mapping[str, str]
    low_types: frozenset[str] = frozenset()

    @property
    def dims(self) -> OpenDims:
        """The dims of the inputs."""
        return {
            spec.name: tuple(dim if isinstance(dim, int) else None for dim in spec.shape)
            for spec in self.inputs
        }

    @property
    def open_inputs(self) -> tuple[str, ...]:
        """Inputs with open dims."""
        return tuple(name for name, dims in self.dims.items() if None in dims)

    def check_feeds(self, feeds: Feeds) -> None:
        """Make sure that feeds fit; others must not reach a native library.

        Raises:
            ValueError: If they don't.
        """
        wanted = {spec.name: spec for spec in self.inputs}
        if wanted.keys() != feeds.keys():
            raise ValueError(f"the inputs are {sorted(wanted)}, the feeds {sorted(feeds)}")
        for name, array in feeds.items():
            spec = wanted[name]
            if array.dtype.name != spec.dtype:
                raise ValueError(f"the input '{name}' is {spec.dtype}, its feed {array.dtype.name}")
            if not fits_dims(array.shape, self.dims[name]):
                raise ValueError(
                    f"the input '{name}' has the dims {list(spec.shape)}, its feed "
                    f"{list(array.shape)}"
                )


def read_signature(path: str | os.PathLike[str]) -> Signature:
    """Reads the signature of a model file.

    Raises:
        ValueError: If it is not a model, or has inputs that are not tensors.
        OSError: If it can't be read.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError as error:
        raise ValueError(f"it is not an ONNX model: {error}") from None
    if not model.opset_import:
        raise ValueError("it is not an ONNX model: it names no opset")
    if not model.graph.output:
        raise ValueError("it is not an ONNX model: it has no outputs")
    return signature_of(model)


def signature_of(model: onnx.ModelProto) -> Signature:
    """Returns the signature of a model.

    Raises:
        ValueError: If it has inputs that are not tensors.
    """
    graph = model.graph
    defaults = {tensor.name for tensor in graph.initializer}
    inputs = tuple(_spec(value) for value in graph.input if value.name not in defaults)
    outputs = {value.name: _dtype(value.type.tensor_type.elem_type) for value in graph.output}
    return Signature(inputs, outputs, frozenset(_low_types(graph)))


def _spec(value: onnx.ValueInfoProto) -> InputSpec:
    if not value.type.HasField("tensor_type"):
        raise ValueError(f"its input '{value.name}' is not a tensor")
    tensor = value.type.tensor_type
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else dim.dim_param or None
        for dim in tensor.shape.dim
    )
    return InputSpec(value.name, _dtype(tensor.elem_type), dims)


def _dtype(kind: int) -> str:
    if kind == onnx.TensorProto.STRING:
        return "str"
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(kind).name)
    except KeyError:
        return "unknown"


def _low_types(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the types of zero points; without one, `output_dtype` or else int8."""
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    kinds |= {
        node.output[0]: attribute.t.data_type
        for node in graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    for node in graph.node:
        if node.op_type in _QUANTIZING:
            zero = node.input[2] if len(node.input) > 2 else ""
            yield _dtype(kinds[zero]) if zero in kinds else _said(node.attribute)


def _said(attributes: Iterable[Any]) -> str:
    given = [each.i for each in attributes if each.name == "output_dtype"]
    return _dtype(given[0]) if given else "int8"
