"""Protobuf's wire format, as far as it takes to put a model together from serialized parts.

A serialized message is its fields one after the other, so a graph can be joined from parts that
were serialized once, instead of being copied and serialized anew for each variant.
"""

from __future__ import annotations

from google.protobuf.message import Message

_LENGTH_DELIMITED = 2


def field_part(parent: type[Message], name: str, payload: bytes) -> bytes:
    """One field of a message, ready to be joined with others.

    Args:
        parent: The message type that has the field.
        name: The field, a message or a list of them.
        payload: The field's value, serialized.
    """
    number = parent.DESCRIPTOR.fields_by_name[name].number
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(payload)) + payload


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
