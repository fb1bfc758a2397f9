"""Builds a graph node by node, with seeded weights.

Every value knows its shape and its estimated distribution, channel by channel.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]

_KEPT_BITS = 16
_LANES = np.uint64(0x0000_FFFF_0000_FFFF)
_LOW_HALF = np.uint64(0xFFFF_FFFF)
_SUM_MEAN = 4 * (2**16 - 1) // 2
# The standard deviation of the logarithm of a channel's magnitude.
_SPREAD = 0.3
_SUM_STD = float(np.sqrt(4 * (2**32 - 1) / 12))


def rounded(values: Float64s) -> Float32s:
    """Rounds to 16 significant bits, so that the last bits of float64 arithmetic don't matter."""
    fraction, exponent = np.frexp(values)
    grid = 2.0**_KEPT_BITS
    return np.ldexp(np.round(fraction * grid) / grid, exponent).astype(np.float32)


class SeededWeights:
    """Draws tensors; each depends on the seed and on its own name, not on the order of the draws.

    Args:
        seed: Any integer from 0 on.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def normal(
        self,
        name: str,
        shape: Sequence[int],
        *,
        std: float = 1.0,
        centre: float = 0.0,
        channel_axis: int | None = None,
    ) -> Float32s:
        """Draws bell-shaped values.

        Args:
            name: The tensor's name.
            shape: Its shape.
            std: The root mean square of their distances from the centre.
            centre: Their mean.
            channel_axis: The axis along which magnitudes differ, as they do in trained models.
        """
        draws = self._bell(name, shape)
        if channel_axis is None:
            factor = rounded(np.full(1, std / _SUM_STD))
        else:
            magnitudes = self.positive(
                f"{name}/magnitude", shape[channel_axis], size=std / _SUM_STD
            )
            along = [1] * len(shape)
            along[channel_axis] = -1
            factor = magnitudes.reshape(along)
        values: Float32s = draws * factor + rounded(np.full(1, centre))
        return values

    def positive(self, name: str, channels: int, *, size: float) -> Float32s:
        """Draws positive factors, log-normal, with root mean square `size`."""
        logarithms = self._bell(name, (channels,)).astype(np.float64) * (_SPREAD / _SUM_STD)
        # E[exp(2z)] = exp(2 spread²): divided out, the root mean square is `size`.
        return rounded(size * np.exp(logarithms - _SPREAD**2))

    def _bell(self, name: str, shape: Sequence[int]) -> Float32s:
        """Draws sums of four uniform 16-bit integers, centred: whole numbers, exact in float32."""
        source = np.random.SeedSequence([self._seed, zlib.crc32(name.encode())])
        raw = np.random.PCG64(source).random_raw(int(np.prod(shape)))
        pairs = (raw & _LANES) + ((raw >> np.uint64(16)) & _LANES)
        sums = (pairs & _LOW_HALF) + (pairs >> np.uint64(32))
        bell: Float32s = sums.astype(np.float32) - np.float32(_SUM_MEAN)
        return bell.reshape(tuple(shape))


Elementwise = Callable[[Float64s], Float64s]

_POINTS = 32
_RANKS = (np.arange(_POINTS) + 0.5) / _POINTS
_NORMAL_POINTS = np.array([NormalDist().inv_cdf(rank) for rank in _RANKS])
_NORMAL_POINTS /= _NORMAL_POINTS.std()
# Eight ways to pair the points of two independent values; each point meets eight others.
_PAIRINGS = [(np.arange(_POINTS) * 13 + 4 * shift) % _POINTS for shift in range(8)]


@dataclass(frozen=True)
class Marginal:
    """The distribution of a value.

    Attributes:
        points: Per channel, equally likely values in ascending order. One row if channels are not
            distinguished.
    """

    points: Float64s

    @classmethod
    def normal(cls, mean: Float64s | Float32s | float, var: Float64s | float) -> Marginal:
        """Builds normal distributions from means and variances."""
        centre = np.atleast_1d(np.asarray(mean, np.float64))
        return cls(centre[:, None] + np.sqrt(np.atleast_1d(var))[:, None] * _NORMAL_POINTS)

    @cached_property
    def moments(self) -> tuple[Float64s, Float64s]:
        """Mean and variance, per channel."""
        return self.points.mean(axis=1), self.points.var(axis=1)

    @property
    def mean_square(self) -> float:
        """The mean of the squared values, over all channels."""
        return float(np.mean(self.points**2))

    def through(self, activation: Elementwise) -> Marginal:
        """Applies an elementwise function."""
        return Marginal(np.sort(activation(self.points), axis=1))

    def scaled(self, factors: Float64s) -> Marginal:
        """Multiplies each channel by its own positive factor."""
        return Marginal(self.points * factors[:, None])

    def plus(self, other: Marginal) -> Marginal:
        """Adds an independent value."""
        sums = np.concatenate([self.points + other.points[:, pairs] for pairs in _PAIRINGS], axis=1)
        points = np.sort(sums, axis=1).reshape(len(sums), _POINTS, -1).mean(axis=2)
        # Using only some of all pairs, and averaging neighbours, loses a little of the spread.
        (mean, var), (other_mean, other_var) = self.moments, other.moments
        centre = points.mean(axis=1, keepdims=True)
        stretch = np.sqrt((var + other_var) / points.var(axis=1))
        return Marginal((points - centre) * stretch[:, None] + (mean + other_mean)[:, None])

    def average_of(self, count: int) -> Marginal:
        """Averages over `count` positions."""
        mean, var = self.moments
        return Marginal.normal(mean, var / count)

    def largest_of(self, count: int) -> Marginal:
        """Takes the largest of `count` positions."""
        positions = _RANKS ** (1.0 / count) * _POINTS - 0.5
        low = np.clip(np.floor(positions).astype(int), 0, _POINTS - 2)
        share = positions - low
        return Marginal(self.points[:, low] * (1 - share) + self.points[:, low + 1] * share)

    def channels(self, first: int, last: int) -> Marginal:
        """Selects the channels from `first` up to, not including, `last`."""
        return Marginal(self.points[first:last])

    def shuffled(self, groups: int) -> Marginal:
        """Reorders the channels as a channel shuffle does."""
        return Marginal(self.points[np.arange(len(self.points)).reshape(groups, -1).T.ravel()])


def concatenated(marginals: Sequence[Marginal]) -> Marginal:
    """Concatenates the channels of several values."""
    return Marginal(np.concatenate([marginal.points for marginal in marginals]))


OPSET = 17
IR_VERSION = 8
STANDARD_NORMAL = Marginal.normal(0.0, 1.0)


@dataclass(frozen=True)
class Value:
    """A tensor of the graph under construction.

    Attributes:
        name: Its name in the graph; empty for an omitted input.
        shape: Its static shape.
        marginal: The distribution of its values.
    """

    name: str
    shape: tuple[int, ...]
    marginal: Marginal = STANDARD_NORMAL


NO_VALUE = Value("", ())


class GraphBuilder:
    """Collects nodes and initializers.

    Args:
        name: The graph's name.
        seed: Seed of the weights.
        folded: Whether BatchNormalization is folded into the convolution before it.
        branches: The number of consecutive residual branches.
        open_batch: Whether the leading dim of inputs and outputs is the symbol N.

    Attributes:
        branch_gain: The spread of a branch's addition to a stream that starts with about 1. It
            falls with the number of branches: BatchNorm makes a stack of them chaotic, so errors of
            the estimated statistics would grow with every block.
    """

    def __init__(
        self,
        name: str,
        seed: int,
        *,
        folded: bool = False,
        branches: int = 1,
        open_batch: bool = False,
    ) -> None:
        self.weights = SeededWeights(seed)
        self.folded = folded
        self.branch_gain = min(0.5, 1.5 * branches**-0.5)
        self._name = name
        self._open_batch = open_batch
        self._inputs: list[onnx.ValueInfoProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}

    def input(
        self, name: str, shape: Sequence[int], elem_type: int = onnx.TensorProto.FLOAT
    ) -> Value:
        """Adds a graph input; floats are expected to be N(0, 1)."""
        self._inputs.append(helper.make_tensor_value_info(name, elem_type, shape))
        return Value(name, tuple(shape))

    def initializer(self, name: str, array: NDArray[Any]) -> Value:
        """Adds a constant tensor under a unique name."""
        assert name not in self._initializers, name
        self._initializers[name] = numpy_helper.from_array(array, name)
        return Value(name, array.shape)

    def parameters(self, name: str, **arrays: NDArray[Any]) -> list[Value]:
        """Adds the constants of a layer: `<name>.weight`, `<name>.bias` and so on."""
        return [self.initializer(f"{name}.{key}", array) for key, array in arrays.items()]

    def integers(self, name: str, numbers: Sequence[int]) -> Value:
        """Adds a constant vector of int64: a shape, axes, sizes."""
        return self.initializer(name, np.array(numbers, np.int64))

    def shared_scalar(self, name: str, number: float) -> Value:
        """Returns the only constant of that name, created on first use."""
        if name in self._initializers:
            return Value(name, ())
        return self.initializer(name, np.array(number, np.float32))

    def node(
        self,
        op_type: str,
        name: str,
        inputs: Sequence[Value],
        *,
        shape: Sequence[int] | None = None,
        marginal: Marginal | None = None,
        **attributes: Any,
    ) -> Value:
        """Adds a node with one output.

        Args:
            op_type: The ONNX operator.
            name: The node's name; its output is called `<name>_output`.
            inputs: Its inputs.
            shape: The output's shape; the first input's unless given.
            marginal: The output's distribution; the first input's unless given.
            **attributes: The operator's attributes.
        """
        output = Value(
            f"{name}_output",
            inputs[0].shape if shape is None else tuple(shape),
            inputs[0].marginal if marginal is None else marginal,
        )
        names = [value.name for value in inputs]
        self._nodes.append(helper.make_node(op_type, names, [output.name], name=name, **attributes))
        return output

    def split(self, name: str, x: Value, sizes: Sequence[int], *, axis: int) -> list[Value]:
        """Adds a Split into parts of the given sizes."""
        is_channels = len(x.marginal.points) == x.shape[axis]
        parts = []
        first = 0
        for index, size in enumerate(sizes):
            shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
            marginal = x.marginal.channels(first, first + size) if is_channels else x.marginal
            parts.append(Value(f"{name}_output_{index}", shape, marginal))
            first += size
        inputs = [x.name, self.integers(f"{name}.sizes", sizes).name]
        outputs = [part.name for part in parts]
        self._nodes.append(helper.make_node("Split", inputs, outputs, name=name, axis=axis))
        return parts

    def reshape(
        self, name: str, x: Value, shape: Sequence[int], marginal: Marginal | None = None
    ) -> Value:
        """Adds a Reshape to a static shape."""
        target = self.integers(f"{name}.shape", shape)
        return self.node("Reshape", name, [x, target], shape=shape, marginal=marginal)

    def transpose(self, name: str, x: Value, perm: Sequence[int]) -> Value:
        """Adds a Transpose."""
        return self.node("Transpose", name, [x], shape=[x.shape[axis] for axis in perm], perm=perm)

    def model(self, outputs: Mapping[str, Value]) -> onnx.ModelProto:
        """Finishes the model.

        Args:
            outputs: The graph outputs, by their names.
        """
        names = {value.name: name for name, value in outputs.items()}
        for node in self._nodes:
            for field in (node.input, node.output):
                for index, name in enumerate(field):
                    field[index] = names.get(name, name)
        infos = [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, value.shape)
            for name, value in outputs.items()
        ]
        for info in (*self._inputs, *infos) if self._open_batch else ():
            info.type.tensor_type.shape.dim[0].dim_param = "N"
        graph = helper.make_graph(
            self._nodes, self._name, self._inputs, infos, list(self._initializers.values())
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="qdqtune.zoo",
        )
