"""How real numbers become few bits: scales and zero points, and the arithmetic on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdqtune.graph._weights import slabs

Array = npt.NDArray[Any]

_SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
_INT32_MAX = 2**31 - 1


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
    least_scale: Array | None = None,
    precision: ir.DataType = ir.DataType.FLOAT,
) -> Encoding:
    """Scales for a constant tensor, one per channel along `axis`, or one in all for None.

    Args:
        weight: The values.
        layout: A symmetric format.
        axis: The channel axis.
        least_scale: A lower bound per channel (see `least_weight_scale`).
        precision: The float type in which the scale will be written.
    """
    scale = _peaks(weight, axis).astype(np.float64) / (layout.high - layout.center)
    if least_scale is not None:
        scale = np.maximum(scale, least_scale)
    return _encoding(scale, layout.center, layout, axis, precision)


def encode_bias(bias: Array, data: Encoding, weight: Encoding) -> Encoding:
    """The int32 encoding of a bias: its scale is forced, input scale times weight scale."""
    scale = (data.scale.astype(np.float64) * weight.scale.astype(np.float64)).astype(np.float32)
    zero_point = np.zeros(scale.shape, np.int32)
    axis = bias.ndim - 1 if scale.ndim else None
    return Encoding(ir.DataType.INT32, scale, zero_point, -_INT32_MAX, _INT32_MAX, axis)


def least_weight_scale(bias: Array, data: Encoding) -> Array:
    """The smallest weight scale per channel with which the bias still fits into int32.

    A dead channel has weights near zero and an ordinary bias; on the scale of its own weights
    that bias would overflow.
    """
    magnitude = np.abs(bias.astype(np.float64)).reshape(-1)
    return np.asarray(magnitude / (float(data.scale) * (_INT32_MAX // 2)))


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
    shape = [1] * rank
    shape[axis] = -1
    return vector.reshape(shape)
