"""Encodings found in a Q/DQ model, and their scales in the terms of a dialect."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from qdqtune.qdq._encoding import Array, Encoding, TensorFormat, encode_range
from qdqtune.records._placement import Placement

_WHOLE = 127  # steps to each side in eight bits
# Element types that hold the same steps, and the value in their middle.
_CENTER = {ir.DataType.INT8: 0, ir.DataType.UINT8: 128}
_WITH_RANGE = (
    ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16,
    ir.DataType.FLOAT8E4M3FN,
)  # fmt: skip


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


def tells_range(given: ReadEncoding) -> bool:
    """Whether a range of values follows from an encoding: not from an int32 bias's, for example."""
    return given.dtype in _WITH_RANGE and _is_sound(given)


def _is_sound(given: ReadEncoding) -> bool:
    """Whether the scales are such that one can divide by them."""
    sound = np.isfinite(given.scale) & (given.scale > 0)
    return bool(given.scale.size) and bool(sound.all())


def is_kept(given: ReadEncoding, layout: TensorFormat) -> bool:
    """Whether the format keeps the very scale of an activation."""
    if not tells_range(given) or given.scale.size != 1:
        return False
    return _moved(int(_zero_points(given).reshape(-1)[0]), given.dtype, layout) is not None


def given_activation(
    given: ReadEncoding, layout: TensorFormat, precision: ir.DataType
) -> Encoding | None:
    """The encoding of an activation in a format; None if the file's tells nothing about it.

    Args:
        given: What the file says.
        layout: The format to write.
        precision: The float type in which the scale will be written.
    """
    if not tells_range(given):
        return None
    zero_point = _zero_points(given)
    if given.scale.size == 1:
        moved = _moved(int(zero_point.reshape(-1)[0]), given.dtype, layout)
        if moved is not None:
            scale = given.scale.reshape(()).astype(precision.numpy()).astype(np.float32)
            zero_point = np.array(moved).astype(layout.dtype.numpy())
            return Encoding(layout.dtype, scale, zero_point, layout.low, layout.high)
    low, high = _range(given, zero_point)
    return encode_range(low, high, layout, precision)


def given_weight(
    given: ReadEncoding, weight: Array, axis: int | None, layout: TensorFormat
) -> Encoding | None:
    """The encoding of a weight in a format; None if the file's scales don't fit the format.

    Values beyond the file's scales saturate, as they do in the file: scales that were learned may
    cut off the largest weights.

    Args:
        given: What the file says.
        weight: The values.
        axis: The axis along which the dialect takes scales; None for one scale.
        layout: The format to write.
    """
    vector = given.scale.size > 1
    if given.dtype not in _CENTER or not _is_sound(given):
        return None
    if vector and given.axis % weight.ndim != axis:
        return None
    if layout.dtype not in _CENTER or (_zero_points(given) != _CENTER[given.dtype]).any():
        return None
    scale = given.scale.reshape(-1 if vector else ()).astype(np.float32)
    steps = layout.high - layout.center
    low = layout.low
    if steps == _WHOLE:
        low = layout.center - 128  # a step that our own encodings leave out, and the file may use
    elif _most_steps(weight, scale, axis) > steps + 0.5:
        scale = scale * np.float32(_WHOLE / steps)
    zero_points = np.full(scale.shape, layout.center).astype(layout.dtype.numpy())
    return Encoding(layout.dtype, scale, zero_points, low, layout.high, axis if vector else None)


def _most_steps(weight: Array, scale: Array, axis: int | None) -> float:
    """How far from zero the weight's quantized values go."""
    if scale.ndim:
        weight = np.moveaxis(weight, axis or 0, -1)
    return float(np.abs(weight.astype(np.float32) / scale).max(initial=0.0))


def _moved(zero_point: int, dtype: ir.DataType | None, layout: TensorFormat) -> int | None:
    """The zero point in the format that leaves every step where it is; None if there is none."""
    if dtype == layout.dtype == ir.DataType.FLOAT8E4M3FN:
        return zero_point
    if dtype not in _CENTER or layout.dtype not in _CENTER:
        return None
    moved = zero_point - _CENTER[dtype] + _CENTER[layout.dtype]
    return moved if not layout.symmetric or moved == layout.center else None


def _zero_points(given: ReadEncoding) -> Array:
    if given.zero_point is None or not given.zero_point.size:
        return np.zeros(given.scale.shape, np.int64)
    return given.zero_point.astype(np.int64)


def _range(given: ReadEncoding, zero_point: Array) -> tuple[float, float]:
    assert given.dtype is not None
    low, high = float(given.dtype.min), float(given.dtype.max)
    scale = given.scale.astype(np.float64)
    return float(((low - zero_point) * scale).min()), float(((high - zero_point) * scale).max())
