"""Tensors, types and attributes that are not what they say."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import onnx

_DIMS = (0, -1, -(2**62), 1, 2, 2**31, 2**32 + 1, 2**62, 2**63 - 1)
_NUMBERS = (0, 1, -1, 7, 2**31, 2**62, -(2**63))
_FLOATS = (0.0, -1.0, 1e38, 1e-45, math.nan, math.inf, -math.inf)


def _tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    tensors = list(model.graph.initializer)
    tensors += [a.t for node in model.graph.node for a in node.attribute if a.HasField("t")]
    return tensors


def _types(model: onnx.ModelProto) -> list[onnx.TypeProto]:
    graph = model.graph
    return [value.type for value in (*graph.input, *graph.output, *graph.value_info)]


def _attributes(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, onnx.AttributeProto]]:
    for node in model.graph.node:
        for attribute in node.attribute:
            yield node, attribute


def tensor_dims(rng: random.Random, model: onnx.ModelProto) -> None:
    """Dims that don't fit the values: fewer, more, negative, or too many to count."""
    if tensors := _tensors(model):
        tensor = rng.choice(tensors)
        if tensor.dims and rng.random() < 0.7:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(_DIMS)
        else:
            tensor.dims.extend([rng.choice(_DIMS)] * rng.choice((1, 2, 70)))


def tensor_values(rng: random.Random, model: onnx.ModelProto) -> None:
    """Too few or too many values, or values in two fields."""
    if tensors := _tensors(model):
        tensor = rng.choice(tensors)
        how = rng.randrange(5)
        if how == 0:
            tensor.raw_data = tensor.raw_data[: len(tensor.raw_data) // 2 + 1]
        elif how == 1:
            tensor.raw_data += b"\0" * 5
        elif how == 2:
            tensor.float_data.extend([1.0, 2.0])
        elif how == 3:
            tensor.ClearField("raw_data")
        else:
            tensor.string_data.append(b"\xff\xfe")


def tensor_zeros(rng: random.Random, model: onnx.ModelProto) -> None:
    """A tensor of the right size that holds zeros, NaNs or noise: scales of zero among them."""
    if tensors := [tensor for tensor in _tensors(model) if tensor.raw_data]:
        tensor = rng.choice(tensors)
        size = len(tensor.raw_data)
        tensor.raw_data = rng.choice((b"\0", b"\xff", b"\x7f")) * size
        if rng.random() < 0.3:
            tensor.raw_data = rng.randbytes(size)


def tensor_empty(rng: random.Random, model: onnx.ModelProto) -> None:
    """A weight without any values."""
    if tensors := _tensors(model):
        tensor = rng.choice(tensors)
        tensor.ClearField("raw_data")
        if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = 0
        else:
            tensor.dims.append(0)


def tensor_type(rng: random.Random, model: onnx.ModelProto) -> None:
    """Another element type, known or not."""
    if tensors := _tensors(model):
        rng.choice(tensors).data_type = rng.choice((*range(28), 99, -1, 2**31 - 1))


def tensor_rank(rng: random.Random, model: onnx.ModelProto) -> None:
    """The same values in another shape: a scale of the wrong rank, a weight without channels."""
    if tensors := _tensors(model):
        tensor = rng.choice(tensors)
        size = min(max(math.prod(tensor.dims), 0), 2**62)
        del tensor.dims[:]
        tensor.dims.extend(rng.choice(([size], [1, size], [size, 1, 1, 1, 1], [])))


def value_dims(rng: random.Random, model: onnx.ModelProto) -> None:
    """Inputs and outputs of absurd shapes."""
    if types := [each for each in _types(model) if each.tensor_type.shape.dim]:
        dim = rng.choice(rng.choice(types).tensor_type.shape.dim)
        if rng.random() < 0.3:
            dim.dim_param = rng.choice(("N", "", "-1", "\x1b[31m", "N+1", "a" * 5000))
        else:
            dim.dim_value = rng.choice(_DIMS)


def value_type(rng: random.Random, model: onnx.ModelProto) -> None:
    """Inputs and outputs of other types: none, unknown, a sequence, an optional, a map."""
    if types := _types(model):
        kind = rng.choice(types)
        how = rng.randrange(6)
        if how == 0:
            kind.Clear()
        elif how == 1:
            kind.tensor_type.elem_type = rng.choice((*range(28), 99, -1))
        elif how == 2:
            kind.sequence_type.elem_type.tensor_type.elem_type = 1
        elif how == 3:
            kind.optional_type.elem_type.tensor_type.elem_type = 1
        elif how == 4:
            kind.map_type.key_type = 7
        else:
            kind.tensor_type.ClearField("shape")


def attribute_value(rng: random.Random, model: onnx.ModelProto) -> None:
    """An axis out of range, a NaN, no strides, too many pads."""
    if attributes := list(_attributes(model)):
        _, attribute = rng.choice(attributes)
        attribute.i = rng.choice(_NUMBERS)
        attribute.f = rng.choice(_FLOATS)
        if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(_NUMBERS)
            if rng.random() < 0.3:
                attribute.ints.extend([1] * rng.choice((1, 100)))
        attribute.s = rng.choice((b"", b"nearest", b"\xff\xfe", b"\x1b[31m", b"a" * 5000))


def attribute_type(rng: random.Random, model: onnx.ModelProto) -> None:
    """An attribute of another type than it should have, or a reference to nothing."""
    if attributes := list(_attributes(model)):
        _, attribute = rng.choice(attributes)
        if rng.random() < 0.2:
            attribute.ref_attr_name = "nothing"
        else:
            attribute.type = rng.choice(onnx.AttributeProto.AttributeType.values())


def attribute_gone(rng: random.Random, model: onnx.ModelProto) -> None:
    """A missing attribute, one twice, or one that nobody knows."""
    if attributes := list(_attributes(model)):
        node, attribute = rng.choice(attributes)
        if rng.random() < 0.6:
            node.attribute.remove(attribute)
        else:
            copy = node.attribute.add()
            copy.CopyFrom(attribute)
            if rng.random() < 0.5:
                copy.name = rng.choice(("", "unheard_of", "axis", "block_size"))


TENSOR_MUTATIONS: tuple[Callable[[random.Random, onnx.ModelProto], None], ...] = (
    tensor_dims, tensor_values, tensor_zeros, tensor_empty, tensor_type, tensor_rank, value_dims,
    value_type, attribute_value, attribute_type, attribute_gone,
)  # fmt: skip
