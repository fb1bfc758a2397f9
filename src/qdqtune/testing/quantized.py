"""Single quantized ops in an engine's own dialect, with ordinary and with extreme values."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from qdqtune.graph.prepared_model import PreparedModel
from qdqtune.graph.shapes import infer_shapes
from qdqtune.graph.temporary_files import TemporaryFolder
from qdqtune.qdq.dialects import dialect_named
from qdqtune.qdq.insert import Inserter
from qdqtune.qdq.selection import select_ops
from qdqtune.records.ranges import Ranges
from qdqtune.testing.models import Array, Arrays, model_of, reference

_OUTPUT = "h"


@dataclass(frozen=True)
class QuantizedOp:
    """An op to quantize: it reads `x` (or `x` and `x2`) and writes `h`; the output `y` is -`h`.

    Not by Neg: TensorRT 8.6 was seen to have no kernel for one behind an integer Conv.

    Attributes:
        text: The model.
        weight: Shape of its weight `w`; empty if it has none.
        channels: Axis of the weight's output channels.
        bias: Whether it has a bias `b`.
    """

    text: str
    weight: tuple[int, ...] = ()
    channels: int = 0
    bias: bool = False


OPS: dict[str, QuantizedOp] = {
    "Conv": QuantizedOp(
        "g (float[1,32,6,6] x) => (float[1,16,4,4] y)"
        "{ h = Conv<kernel_shape=[3,3]>(x, w, b) y = Sub(zero, h) }",
        weight=(16, 32, 3, 3),
        bias=True,
    ),
    "pointwise Conv": QuantizedOp(
        "g (float[1,64,4,4] x) => (float[1,16,4,4] y)"
        "{ h = Conv<kernel_shape=[1,1]>(x, w) y = Sub(zero, h) }",
        weight=(16, 64, 1, 1),
    ),
    "depthwise Conv": QuantizedOp(
        "g (float[1,32,6,6] x) => (float[1,32,4,4] y)"
        "{ h = Conv<group=32, kernel_shape=[3,3]>(x, w) y = Sub(zero, h) }",
        weight=(32, 1, 3, 3),
    ),
    "Gemm": QuantizedOp(
        "g (float[4,64] x) => (float[4,16] y) { h = Gemm<transB=1>(x, w, b) y = Sub(zero, h) }",
        weight=(16, 64),
        bias=True,
    ),
    "MatMul": QuantizedOp(
        "g (float[3,64] x) => (float[3,16] y) { h = MatMul(x, w) y = Sub(zero, h) }",
        weight=(64, 16),
        channels=1,
    ),
    "Add": QuantizedOp(
        "g (float[1,16,6,6] x, float[1,16,6,6] x2) => (float[1,16,6,6] y)"
        "{ h = Add(x, x2) y = Sub(zero, h) }",
    ),
}
"""By name; the op type is its last word."""


@dataclass(frozen=True)
class QuantizedModel:
    """A Q/DQ model of one op.

    Attributes:
        model: The model; not to be changed.
        feeds: Its inputs.
        expected: Its outputs by ONNX's reference, op by op: nothing is fused.
        step: The size of one quantization step of the output; None if that is not quantized.
    """

    model: onnx.ModelProto
    feeds: Arrays
    expected: Arrays
    step: float | None


def op_type_of(name: str) -> str:
    """The op type of one of `OPS`."""
    return name.split()[-1]


@functools.cache
def quantized_op(name: str, dialect: str, quant_type: str, *, extreme: bool) -> QuantizedModel:
    """Quantizes an op.

    Args:
        name: One of `OPS`.
        dialect: How to write it, by name.
        quant_type: One of the dialect's.
        extreme: Whether all values are the largest there are, which is when short sums overflow.

    Raises:
        ValueError: If the dialect leaves it float.
    """
    op = OPS[name]
    rng = np.random.default_rng(len(name))
    proto = model_of(op.text, **_constants(op, rng, extreme=extreme))
    feeds = {value.name: _input(value, rng, extreme=extreme) for value in proto.graph.input}
    result = -reference(proto, feeds)["y"]
    ranges = {key: (float(array.min()), float(array.max())) for key, array in feeds.items()}
    # Wider than needed, and not evenly: a result half way between two steps would be a tie.
    ranges[_OUTPUT] = (1.03 * float(result.min()), 1.1 * float(result.max()))
    quantized, step = _quantize(proto, op_type_of(name), dialect, quant_type, Ranges(ranges))
    return QuantizedModel(quantized, feeds, reference(quantized, feeds), step)


def _quantize(
    proto: onnx.ModelProto, op_type: str, dialect: str, quant_type: str, ranges: Ranges
) -> tuple[onnx.ModelProto, float | None]:
    """The Q/DQ model, and the step of its op's result."""
    model = ir.from_proto(proto)
    infer_shapes(model)
    dialect_choice = dialect_named(dialect)
    with TemporaryFolder() as folder:
        inserter = Inserter(PreparedModel(model, folder), dialect_choice, quant_type, ranges)
        chosen = select_ops(inserter.index, dialect_choice, [op_type], quant_type)
        if not chosen.placement:
            raise ValueError(f"{dialect} does not quantize {op_type}: {chosen.left_float}")
        pairs = inserter.encoder.pairs(inserter.index.effective(chosen.placement))
        quantized = onnx.load(inserter.write(chosen.placement, "quantized"))
    scales = [float(pair.encoding.scale) for pair in pairs if pair.tensor == _OUTPUT]
    return quantized, scales[0] if scales else None


def _constants(op: QuantizedOp, rng: np.random.Generator, *, extreme: bool) -> Arrays:
    zero = {"zero": np.zeros((), np.float32)}
    if not op.weight:
        return zero
    channels = op.weight[op.channels]
    shape = [1] * len(op.weight)
    shape[op.channels] = channels
    if extreme:
        # Half of the channels sum up to the largest number, the others to the smallest.
        signs = np.where(np.arange(channels) % 2, -1.0, 1.0).reshape(shape)
        weight = np.broadcast_to(signs, op.weight)
    else:
        sizes = 2.0 ** rng.uniform(-3.0, 1.0, channels)
        weight = rng.standard_normal(op.weight) * sizes.reshape(shape)
    constants = {**zero, "w": np.ascontiguousarray(weight, np.float32)}
    if op.bias:
        bias = np.zeros(channels) if extreme else rng.standard_normal(channels)
        constants["b"] = bias.astype(np.float32)
    return constants


def _input(value: onnx.ValueInfoProto, rng: np.random.Generator, *, extreme: bool) -> Array:
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    if extreme:
        return np.ones(shape, np.float32)
    # Not centered: zero is neither at an end nor in the middle of what it is quantized to.
    return rng.uniform(-0.7, 1.3, shape).astype(np.float32)
