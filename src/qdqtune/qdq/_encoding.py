"""How real numbers become few bits: scales and zero points, and the arithmetic on them.

Encodings are computed from ranges and values, or come from a Q/DQ model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdqtune.graph._weights import slabs

Array = npt.NDArray[Any]

_SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
_INT32_MAX = 2**31 - 1
_WHOLE = 127  # steps to each side in eight bits
# Element types that hold the same steps, and the value in their middle.
_CENTER = {ir.DataType.INT8: 0, ir.DataType.UINT8: 128}
_WITH_RANGE = (
    ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16,
    ir.DataType.FLOAT8E4M3FN,
)  # fmt: skip


@dataclass(frozen=True)
class TensorFormat:
    """A quantized number format and how a range is laid onto it.

    Attributes:
        dtype: Element type of the quantized tensor.
        low: Smallest quantized value in use.
        high: Largest quantized value in use; fewer bits than the type has are a smaller `high`.
        symmetric: Whether real zero sits in the middle of the format, at `center`.
        center: The zero point of a symmetric format.
    """

    dtype: ir.DataType
    low: int
    high: int
    symmetric: bool
    center: int = 0


@dataclass(frozen=True)
class Encoding:
    """The scale and zero point of one tensor; vectors along `axis` if per channel.

    Attributes:
        dtype: Element type of the quantized tensor.
        scale: Real size of one step, float32, a scalar or a vector.
        zero_point: The quantized value of real zero, same shape as `scale`.
        low: Smallest quantized value in use.
        high: Largest quantized value in use.
        axis: The channel axis, or None for one scale per tensor.
    """

    dtype: ir.DataType
    scale: Array
    zero_point: Array
    low: int
    high: int
    axis: int | None = None

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for encodings that are equal bit by bit."""
        scale, zero_point = self.scale.tobytes(), self.zero_point.tobytes()
        return (self.dtype, scale, zero_point, self.low, self.high, self.axis)

    @property
    def span(self) -> tuple[float, float]:
        """The smallest and the largest real number that can be written."""
        scale, middle = self.scale.astype(np.float64), self.zero_point.astype(np.float64)
        low, high = (self.low - middle) * scale, (self.high - middle) * scale
        return float(low.min()), float(high.max())


def encode_range(
    low: float, high: float, layout: TensorFormat, precision: ir.DataType = ir.DataType.FLOAT
) -> Encoding:
    """One scale for a tensor whose values lie between `low` and `high`.

    Real zero is always exact: padding, Relu and zero-initialised buffers depend on it.

    Args:
        low: Smallest value.
        high: Largest value.
        layout: The format.
        precision: The float type in which the scale will be written.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    if layout.symmetric:
        scale = max(-low, high) / (layout.high - layout.center)
        zero_point = layout.center
    else:
        scale = (high - low) / (layout.high - layout.low)
        steps = round(-low / scale) if scale >= _SMALLEST_SCALE else 0
        zero_point = min(layout.low + steps, layout.high)
    return _encoding(np.array(scale), zero_point, layout, None, precision)


def encode_weight(
    weight: Array,
    layout: TensorFormat,
    axis: int | None,
    precision: ir.DataType = ir.DataType.FLOAT,
) -> Encoding:
    """Scales for a constant tensor, one per channel along `axis`, or one in all for None.

    Args:
        weight: The values.
        layout: A symmetric format.
        axis: The channel axis.
        precision: The float type in which the scale will be written.
    """
    scale = _peaks(weight, axis).astype(np.float64) / (layout.high - layout.center)
    return _encoding(scale, layout.center, layout, axis, precision)


def encode_bias(bias: Array, data: Encoding, weight: Encoding) -> Encoding:
    """The int32 encoding of a bias: its scale is forced, input scale times weight scale."""
    scale = (data.scale.astype(np.float64) * weight.scale.astype(np.float64)).astype(np.float32)
    zero_point = np.zeros(scale.shape, np.int32)
    axis = bias.ndim - 1 if scale.ndim else None
    return Encoding(ir.DataType.INT32, scale, zero_point, -_INT32_MAX, _INT32_MAX, axis)


def fit_bias(weight: Encoding, bias: Array, data: Encoding, precision: ir.DataType) -> Encoding:
    """The encoding of a weight, coarser where the bias would not fit into int32 otherwise.

    A dead channel has weights near zero and an ordinary bias; on the scale of its own weights
    that bias would overflow.

    Args:
        weight: The weight's own encoding.
        bias: The values of the bias.
        data: The encoding of the input.
        precision: The float type in which the scale will be written.
    """
    magnitude = np.abs(bias.astype(np.float64)).reshape(-1)
    least = magnitude / (float(data.scale) * (_INT32_MAX // 2))
    if not (weight.scale < least).any():
        return weight
    coarser = np.maximum(weight.scale, least if weight.axis is not None else least.max())
    return replace(weight, scale=coarser.astype(precision.numpy()).astype(np.float32))


def quantize(values: Array, encoding: Encoding) -> Array:
    """Real numbers to quantized ones: round half to even, then saturate."""
    rank, axis = values.ndim, encoding.axis
    scale = np.broadcast_to(_along_axis(encoding.scale, rank, axis), values.shape)
    zero_point = np.broadcast_to(_along_axis(encoding.zero_point, rank, axis), values.shape)
    # Biases need more digits than float32 has.
    wide = np.float64 if encoding.dtype == ir.DataType.INT32 else np.float32
    result = np.empty(values.shape, encoding.dtype.numpy())
    for slab in slabs(values):
        scaled = values[slab].astype(wide) / scale[slab]
        if encoding.dtype != ir.DataType.FLOAT8E4M3FN:
            scaled = np.rint(scaled) + zero_point[slab]
        result[slab] = np.clip(scaled, encoding.low, encoding.high).astype(result.dtype)
    return result


def dequantize(values: Array, scale: Array, zero_point: Array | None, axis: int) -> Array:
    """Quantized numbers to real ones, in the scale's own float type."""
    if scale.size == 1:  # one scale for all, whether written as a scalar or as a vector
        scale = scale.reshape(())
        zero_point = None if zero_point is None else zero_point.reshape(())
    per_axis = axis if scale.ndim else None
    real = values.astype(np.float32)
    if values.dtype == np.int32:
        real = values.astype(np.float64)
    if zero_point is not None and zero_point.size:
        real = real - _along_axis(zero_point, values.ndim, per_axis).astype(real.dtype)
    wide = _along_axis(scale, values.ndim, per_axis).astype(real.dtype)
    return np.asarray((real * wide).astype(scale.dtype))


def _peaks(values: Array, axis: int | None) -> Array:
    """The largest magnitude, or that of each channel along `axis`."""
    others = None if axis is None else tuple(i for i in range(values.ndim) if i != axis)
    peaks = np.zeros(() if axis is None else values.shape[axis], np.float32)
    for slab in slabs(values):
        found = np.abs(values[slab].astype(np.float32)).max(axis=others, initial=0.0)
        channels = slab[axis] if axis is not None and axis < len(slab) else ...
        peaks[channels] = np.maximum(peaks[channels], found)
    return peaks


def _encoding(
    scale: Array, zero_point: int, layout: TensorFormat, axis: int | None, precision: ir.DataType
) -> Encoding:
    # A tensor of zeros has no scale of its own; any will do.
    usable = np.where(scale >= _SMALLEST_SCALE, scale, 1.0)
    # Values are quantized with the scale that will be in the file: rounded, and never to zero.
    least = np.maximum(usable, float(precision.tiny))
    usable = np.asarray(least, precision.numpy()).astype(np.float32)
    zero_points = np.full(usable.shape, zero_point).astype(layout.dtype.numpy())
    return Encoding(layout.dtype, usable, zero_points, layout.low, layout.high, axis)


def _along_axis(vector: Array, rank: int, axis: int | None) -> Array:
    if axis is None or vector.ndim == 0:
        return vector
    end = axis % rank + 1
    return vector.reshape([1] * (end - vector.ndim) + list(vector.shape) + [1] * (rank - end))


@dataclass(frozen=True)
class ReadEncoding:
    """Scale and zero point of a tensor as found in a file.

    Attributes:
        dtype: Element type of the quantized tensor.
        scale: A scalar, a vector along `axis`, or a matrix along that and the axis before.
        zero_point: Same shape, or None if the file leaves it out.
        axis: The node's axis attribute; meaningful unless `scale` is a scalar.
    """

    dtype: ir.DataType | None
    scale: Array
    zero_point: Array | None
    axis: int


def wider(one: ReadEncoding, other: ReadEncoding) -> ReadEncoding:
    """Of two encodings of a tensor, for different readers of it, the one with larger steps."""
    return other if other.scale.max(initial=0) > one.scale.max(initial=0) else one


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
    given: ReadEncoding | None, layout: TensorFormat, precision: ir.DataType
) -> Encoding | None:
    """The encoding of an activation in a format; None if the file's tells nothing about it.

    Args:
        given: What the file says, if anything.
        layout: The format to write.
        precision: The float type in which the scale will be written.
    """
    if given is None or not tells_range(given):
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
    given: ReadEncoding | None, weight: Array, axis: int | None, layout: TensorFormat
) -> Encoding | None:
    """The encoding of a weight in a format; None if the file's scales don't fit the format.

    Values beyond the file's scales saturate, as they do in the file: scales that were learned may
    cut off the largest weights.

    Args:
        given: What the file says, if anything.
        weight: The values.
        axis: The axis along which the dialect takes scales; None for one scale.
        layout: The format to write.
    """
    if given is None or given.dtype not in _CENTER or not _is_sound(given):
        return None
    vector = given.scale.size > 1
    if given.scale.ndim > 1 or (vector and given.axis % weight.ndim != axis):
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
