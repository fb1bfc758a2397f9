"""A model's proto: walks over everything inside it, and protobuf's wire format."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}


def field_part(parent: type[Message], name: str, payload: bytes) -> bytes:
    """Encode one field of a message, ready to be joined with others.

    Args:
        parent: The message type that has the field.
        name: The field, a message or a list of them.
        payload: The field's value, serialized.
    """
    return field_head(parent, name, len(payload)) + payload


def field_head(parent: type[Message], name: str, length: int) -> bytes:
    """Encode the header of a field, so that large values can be joined without a copy.

    Args:
        parent: The message type that has the field.
        name: The field, a message, bytes, or a list of them.
        length: Number of bytes in the serialized value.
    """
    number = parent.DESCRIPTOR.fields_by_name[name].number
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(length)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def nesting_depth(descriptor: Descriptor, data: bytes, *, enough: int) -> int:
    """Return the nesting depth of a serialized message that can't be parsed.

    Args:
        descriptor: The outermost message.
        data: Its serialized form; anything after a broken part is ignored.
        enough: Where to stop counting.
    """
    deepest = 0
    pending = [(descriptor, memoryview(data), 1)]
    while pending:
        message, content, depth = pending.pop()
        deepest = max(deepest, depth)
        if deepest >= enough:
            break
        inner = {
            field.number: field.message_type
            for field in message.fields
            if field.message_type is not None
        }
        for number, payload in _payloads(content):
            if number in inner:
                pending.append((inner[number], payload, depth + 1))
    return deepest


def missing_bytes(descriptor: Descriptor, data: bytes) -> int:
    """Return the number of bytes missing at a message's end; 0 if it is not merely truncated.

    Args:
        descriptor: The message.
        data: The available part of its serialized form.
    """
    kinds = {field.number: _wire_types(field) for field in descriptor.fields}
    content, position = memoryview(data), 0
    try:
        while position < len(content):
            tag, position = _read_varint(content, position)
            kind = tag & 7
            if kind not in kinds.get(tag >> 3, ()):
                return 0
            if kind == _LENGTH_DELIMITED:
                length, position = _read_varint(content, position)
                position += length
            elif kind == _VARINT:
                _, position = _read_varint(content, position)
            else:
                position += _FIXED_BYTES[kind]
    except IndexError:  # inside a number
        return 1
    return position - len(content)


def _wire_types(field: FieldDescriptor) -> tuple[int, ...]:
    """Return the wire types of a field, as far as ONNX's outermost message uses them."""
    is_number = field.cpp_type not in (field.CPPTYPE_MESSAGE, field.CPPTYPE_STRING)
    return (_VARINT, _LENGTH_DELIMITED) if is_number else (_LENGTH_DELIMITED,)


def _payloads(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the length-delimited fields of a message, up to the first error."""
    position = 0
    with contextlib.suppress(IndexError):
        while position < len(content):
            tag, position = _read_varint(content, position)
            kind = tag & 7
            if kind == _LENGTH_DELIMITED:
                length, position = _read_varint(content, position)
                if position + length > len(content):
                    return
                yield tag >> 3, content[position : position + length]
                position += length
            elif kind == _VARINT:
                _, position = _read_varint(content, position)
            elif kind in _FIXED_BYTES:
                position += _FIXED_BYTES[kind]
            else:
                return


def _read_varint(content: memoryview, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = content[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
        if shift > 63:
            raise IndexError("a varint has at most ten bytes")


@dataclass
class Contents:
    """The contents of a model.

    Attributes:
        tensors: Every tensor: initializers, attributes, and the parts of sparse ones.
        nested: Those of them that are not initializers of the main graph.
        in_attributes: Those of them that are attributes of nodes.
        has_sparse: Whether some of them are parts of sparse ones.
        has_references: Whether attributes outside of functions refer to a function's.
        is_text: Whether all names and strings are valid UTF-8; others are parsed as bytes.
        longest_name: Length of the longest node or tensor name.
    """

    tensors: list[onnx.TensorProto] = field(default_factory=list)
    nested: list[onnx.TensorProto] = field(default_factory=list)
    in_attributes: list[onnx.TensorProto] = field(default_factory=list)
    has_sparse: bool = False
    has_references: bool = False
    is_text: bool = True
    longest_name: int = 0


def contents(proto: onnx.ModelProto) -> Contents:
    """Walk over a model: its graph, control-flow bodies, functions, and training graphs."""
    found = Contents()
    _see(found, (proto.producer_name, proto.producer_version, proto.domain, proto.doc_string))
    _see(found, (text for entry in proto.metadata_props for text in (entry.key, entry.value)))
    _see(found, (opset.domain for opset in proto.opset_import))
    found.tensors += proto.graph.initializer
    _walk_graphs([proto.graph], found)
    for training in proto.training_info:
        _walk_graphs([training.initialization, training.algorithm], found)
    del found.nested[: len(proto.graph.initializer)]
    has_references = found.has_references
    for function in proto.functions:
        _see(found, (function.name, function.domain, function.doc_string, function.overload))
        _see(found, (*function.input, *function.output, *function.attribute))
        bodies = _walk_nodes(function.node, found)
        for attribute in function.attribute_proto:
            bodies += _look_at(attribute, found)
        _walk_graphs(bodies, found)
    found.has_references = has_references
    found.nested += found.in_attributes
    found.tensors += found.nested
    for tensor in found.tensors:
        _see(found, (tensor.doc_string,))
        _see_names(found, (tensor.name,))
        if tensor.external_data:
            texts = (text for entry in tensor.external_data for text in (entry.key, entry.value))
            _see(found, texts)
    return found


def nodes_within(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield every node of a list, including those of its bodies."""
    pending = [nodes]
    while pending:
        for node in pending.pop():
            yield node
            for attribute in node.attribute:
                pending += (body.node for body in _bodies(attribute))


def _walk_graphs(pending: list[onnx.GraphProto], found: Contents) -> None:
    while pending:
        graph = pending.pop()
        _see(found, (graph.name, graph.doc_string))
        for value in (*graph.input, *graph.output, *graph.value_info):
            _see(found, (value.doc_string,))
            _see_names(found, (value.name,))
            _see(found, (dim.dim_param for dim in value.type.tensor_type.shape.dim))
        found.nested += graph.initializer
        for sparse in graph.sparse_initializer:
            _add_sparse(sparse, found)
        pending += _walk_nodes(graph.node, found)


def _walk_nodes(nodes: Iterable[onnx.NodeProto], found: Contents) -> list[onnx.GraphProto]:
    """Visit nodes; returns the bodies in them."""
    bodies: list[onnx.GraphProto] = []
    for node in nodes:
        _see(found, (node.doc_string,))
        _see_names(found, (node.name, node.op_type, node.domain, *node.input, *node.output))
        for attribute in node.attribute:
            bodies += _look_at(attribute, found)
    return bodies


def _look_at(attribute: onnx.AttributeProto, found: Contents) -> Sequence[onnx.GraphProto]:
    """Visit an attribute, ignoring its declared type: readers may go by the field alone."""
    _see(found, (attribute.name,))
    if attribute.ref_attr_name:
        found.has_references = True
    if attribute.HasField("t"):
        found.in_attributes.append(attribute.t)
    found.in_attributes += attribute.tensors
    if attribute.HasField("sparse_tensor"):
        _add_sparse(attribute.sparse_tensor, found)
    for sparse in attribute.sparse_tensors:
        _add_sparse(sparse, found)
    return _bodies(attribute)


def _bodies(attribute: onnx.AttributeProto) -> Sequence[onnx.GraphProto]:
    bodies = [attribute.g] if attribute.HasField("g") else []
    bodies += attribute.graphs
    return bodies


def _add_sparse(sparse: onnx.SparseTensorProto, found: Contents) -> None:
    found.has_sparse = True
    found.nested += (sparse.values, sparse.indices)


def _see(found: Contents, texts: Iterable[str | bytes]) -> None:
    for text in texts:
        if type(text) is not str:
            found.is_text = False


def _see_names(found: Contents, names: Sequence[str | bytes]) -> None:
    _see(found, names)
    found.longest_name = max(found.longest_name, *map(len, names))
