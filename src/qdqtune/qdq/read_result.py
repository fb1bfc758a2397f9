"""What was found in a Q/DQ model."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from qdqtune.qdq.encoding import Array
from qdqtune.records.placement import Placement


@dataclass(frozen=True)
class ReadEncoding:
    """Scale and zero point of a tensor as found in a file.

    Attributes:
        dtype: Element type of the quantized tensor.
        scale: A scalar or a vector along `axis`.
        zero_point: Same shape, or None if the file leaves it out.
        axis: The node's axis attribute; meaningful if `scale` is a vector.
    """

    dtype: ir.DataType | None
    scale: Array
    zero_point: Array | None
    axis: int


def wider(one: ReadEncoding, other: ReadEncoding) -> ReadEncoding:
    """Of two encodings of a tensor, for different readers of it, the one with larger steps."""
    return other if other.scale.max(initial=0) > one.scale.max(initial=0) else one


@dataclass
class ReadResult:
    """What was found in a Q/DQ model, by the names of the float model inside it.

    Attributes:
        placement: Every edge that sees a quantized value, and every tensor whose readers all do.
        encodings: Encoding by tensor name; the coarsest where readers have different ones.
        pairs: How many DequantizeLinear nodes were understood.
        left: How many Q and DQ nodes were not: scales per block, integer ops between them, bodies.
        rounded: How many weights have the values that quantized ones stand for.
    """

    placement: Placement = field(default_factory=Placement)
    encodings: dict[str, ReadEncoding] = field(default_factory=dict)
    pairs: int = 0
    left: int = 0
    rounded: int = 0
