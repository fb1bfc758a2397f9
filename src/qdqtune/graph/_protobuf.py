"""A model's proto: walks over everything inside it, and protobuf's wire format.

Engines use this in their workers, so it does not import onnx_ir; see `_external_data`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}

_MESSAGE, _STRING = FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING
_TENSOR_FIELDS = [
    onnx.TensorProto.DESCRIPTOR.fields_by_name[name]
    for name in ("name", "doc_string", "external_data", "metadata_props")
]
# Bits of an element by its type. Older versions of onnx have no names for the last types.
_BITS = {
    kind: bits
    for bits, kinds in {
        2: (25, 26),  # UINT2, INT2
        4: (21, 22, 23),  # UINT4, INT4, FLOAT4E2M1
        6: (27, 28),  # FLOAT6E2M3, FLOAT6E3M2
        8: (2, 3, 9, 17, 18, 19, 20, 24),  # UINT8, INT8, BOOL, and those of FLOAT8
        16: (4, 5, 10, 16),  # UINT16, INT16, FLOAT16, BFLOAT16
        32: (1, 6, 12),  # FLOAT, INT32, UINT32
        64: (7, 11, 13, 14),  # INT64, DOUBLE, UINT64, COMPLEX64
        128: (15,),  # COMPLEX128
    }.items()
    for kind in kinds
}
# Fields whose texts are not names.
_LONG_TEXTS = ("doc_string", "value")


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
    while pending and deepest < enough:
        message, content, depth = pending.pop()
        deepest = max(deepest, depth)
        inner = {field.number: field.message_type for field in message.fields}
        with contextlib.suppress(IndexError):
            for number, kind, start, end in _fields(content):
                kept = inner.get(number) if kind == _LENGTH_DELIMITED else None
                if kept is not None and end <= len(content):
                    pending.append((kept, content[start:end], depth + 1))
    return deepest


def missing_bytes(descriptor: Descriptor, data: bytes) -> int:
    """Return the number of bytes missing at a message's end; 0 if it is not merely truncated.

    Args:
        descriptor: The message.
        data: The available part of its serialized form.
    """
    kinds = {field.number: _wire_types(field) for field in descriptor.fields}
    missing = 0
    try:
        for number, kind, _, end in _fields(memoryview(data)):
            if kind not in kinds.get(number, ()):
                return 0
            missing = max(0, end - len(data))
    except IndexError:  # inside a number
        return 1
    return missing


def _wire_types(field: FieldDescriptor) -> tuple[int, ...]:
    """Return the wire types of a field, as far as ONNX's outermost message uses them."""
    is_number = field.cpp_type not in (field.CPPTYPE_MESSAGE, field.CPPTYPE_STRING)
    return (_VARINT, _LENGTH_DELIMITED) if is_number else (_LENGTH_DELIMITED,)


def _fields(content: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, start and end of each field; the last may extend beyond the content.

    Raises:
        IndexError: If the content ends inside a number.
    """
    position = 0
    while position < len(content):
        tag, start = _read_varint(content, position)
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            length, start = _read_varint(content, start)
            position = start + length
        elif kind == _VARINT:
            _, position = _read_varint(content, start)
        elif kind in _FIXED_BYTES:
            position = start + _FIXED_BYTES[kind]
        else:
            return
        yield tag >> 3, kind, start, position


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


def copy_fields(source: Message, target: Message, names: Iterable[str]) -> None:
    """Copy some fields of a message to another one of the same type, where they are not set."""
    for name in names:
        value = getattr(source, name)
        if isinstance(value, Message):
            getattr(target, name).CopyFrom(value)
        elif isinstance(value, str | bytes | int | float):
            setattr(target, name, value)
        else:
            getattr(target, name).extend(value)


def stored_size(tensor: onnx.TensorProto) -> int:
    """Return the number of bytes that a tensor's type and shape need; not for strings.

    Raises:
        ValueError: If the type does not exist, or has no fixed size.
    """
    if tensor.data_type not in _BITS:
        raise ValueError(f"the size of the type {tensor.data_type} is not known")
    bits: int = math.prod(tensor.dims) * _BITS[tensor.data_type]
    return -(-bits // 8)


@dataclass
class Contents:
    """The contents of a model.

    Attributes:
        tensors: Every tensor: initializers, attributes, and the parts of sparse ones.
        in_attributes: Those that are attributes of nodes.
        has_sparse: Whether some are parts of sparse ones.
        has_references: Whether attributes outside of functions refer to a function's.
        is_text: Whether all names and strings are valid UTF-8; others are parsed as bytes.
        longest_name: Length of the longest name of anything.
    """

    tensors: list[onnx.TensorProto] = field(default_factory=list)
    in_attributes: list[onnx.TensorProto] = field(default_factory=list)
    has_sparse: bool = False
    has_references: bool = False
    is_text: bool = True
    longest_name: int = 0

    @property
    def external(self) -> list[onnx.TensorProto]:
        """The tensors whose values are in other files."""
        return [t for t in self.tensors if t.data_location == onnx.TensorProto.EXTERNAL]


def contents(proto: onnx.ModelProto) -> Contents:
    """Walk over a model: its graph, control-flow bodies, functions, and training graphs.

    An attribute's declared type is ignored: readers may go by the field alone.
    """
    found = Contents()
    pending: list[tuple[Message, bool]] = [(proto, False)]
    while pending:
        message, in_function = pending.pop()
        in_function |= isinstance(message, onnx.FunctionProto)
        if isinstance(message, onnx.TensorProto):
            found.tensors.append(message)
            # Listing all of its fields would copy the values.
            fields = [(kind, getattr(message, kind.name)) for kind in _TENSOR_FIELDS]
        else:
            fields = message.ListFields()
        inner: list[Message] = []
        for kind, value in fields:
            if kind.type == _MESSAGE:
                inner += [value] if isinstance(value, Message) else value
            elif kind.type == _STRING:
                for text in [value] if isinstance(value, str | bytes) else value:
                    if type(text) is not str:
                        found.is_text = False
                    if len(text) > found.longest_name and kind.name not in _LONG_TEXTS:
                        found.longest_name = len(text)
        if isinstance(message, onnx.AttributeProto):
            found.has_references |= bool(message.ref_attr_name) and not in_function
            found.in_attributes += (each for each in inner if isinstance(each, onnx.TensorProto))
        elif isinstance(message, onnx.SparseTensorProto):
            found.has_sparse = True
        pending += ((each, in_function) for each in inner)
    return found


def nodes_within(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield every node of a list, including those of its bodies."""
    pending = [nodes]
    while pending:
        for node in pending.pop():
            yield node
            for attribute in node.attribute:
                pending += (body.node for body in (attribute.g, *attribute.graphs))
