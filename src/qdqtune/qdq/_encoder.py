"""From a placement to pairs: which tensor gets which encoding, for which readers."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import weight_axis
from qdqtune.graph._weights import values_of
from qdqtune.qdq._dialect import Dialect, QuantFormat
from qdqtune.qdq._encoding import (
    Array,
    Encoding,
    ReadEncoding,
    TensorFormat,
    encode_bias,
    encode_range,
    encode_weight,
    fit_bias,
    given_activation,
    given_weight,
)
from qdqtune.qdq._op_units import bias_edges, is_channel_bias, role_rule
from qdqtune.qdq._quantization_planner import SharedEncodings, Siblings
from qdqtune.qdq._smoothing import Smoothing, input_axis
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Edge
from qdqtune.records._ranges import Ranges

# Encodings of weights by themselves, which depend on nothing else.
_OWN = "weight"

Role = Literal["activation", "constant", "weight", "bias"]


@dataclass
class Pair:
    """One tensor, quantized one way, and who reads it so.

    Attributes:
        tensor: The tensor.
        role: What it is to its readers.
        encoding: How it is quantized.
        edges: The readers.
        smoothing: How it is smoothed, as the input of products or as their weight.
    """

    tensor: str
    role: Role
    encoding: Encoding
    edges: list[Edge] = field(default_factory=list)
    smoothing: Smoothing | None = None


@dataclass(frozen=True)
class Changes:
    """Changes to a float model that make its quantized form more accurate.

    Attributes:
        shifts: What is taken off biases while their ops are quantized, by tensor.
        smoothings: How inputs are smoothed while they and the weight are quantized, by the names of
            the products that read them.
    """

    shifts: Mapping[str, Array] = field(default_factory=dict)
    smoothings: Mapping[str, Smoothing] = field(default_factory=dict)


@dataclass(frozen=True)
class _Operands:
    """What a weighted op reads: looked up once, asked for in every candidate."""

    data: Edge
    weight: Edge
    axis: int | None
    bias: Edge | None


class Encoder:
    """Finds encodings for the edges of a placement; what it computed once it remembers.

    Args:
        index: The graph.
        dialect: The dialect.
        quant_type: One of the dialect's quant types.
        ranges: Ranges of the activations.
        given: Encodings by tensor that came with the model; they go before ranges and values.

    Attributes:
        changes: What is changed in the float model where it is quantized.
    """

    def __init__(
        self,
        index: GraphIndex,
        dialect: Dialect,
        quant_type: str,
        ranges: Ranges,
        given: Mapping[str, ReadEncoding] | None = None,
    ) -> None:
        self.index = index
        self.dialect = dialect
        self.quant_type = quant_type
        dialect.format_of(quant_type)  # a type that it doesn't have is refused here
        self.ranges = ranges
        self.given = given or {}
        self.changes = Changes()
        self._rules = {node.name: role_rule(dialect, node) for node in index.nodes}
        self._shared = SharedEncodings(index, dialect)
        self._operands: dict[str, _Operands] = {}
        self._roles: dict[Edge, Role] = {}
        # Encodings that were computed once, and those among them that ranges don't matter to.
        self._activations: dict[tuple[object, ...], Encoding] = {}
        self._constants: dict[tuple[object, ...], Encoding] = {}

    @property
    def format(self) -> QuantFormat:
        """The formats of the quant type."""
        return self.dialect.format_of(self.quant_type)

    def with_ranges(self, ranges: Ranges) -> Encoder:
        """Another one, with other ranges and no shifts; what doesn't depend on them is shared."""
        other = self.with_shifts({}) if self.changes.shifts else copy.copy(self)
        other.ranges = ranges
        other._activations = {}
        return other

    def with_shifts(self, shifts: Mapping[str, Array]) -> Encoder:
        """Another one, which corrects biases; see `shifted`."""
        other = copy.copy(self)
        other.changes = replace(self.changes, shifts=shifts)
        other._constants = {key: kept for key, kept in self._constants.items() if key[0] == _OWN}
        return other

    def with_smoothings(self, smoothings: Mapping[str, Smoothing]) -> Encoder:
        """Another one, which smooths inputs; biases are not corrected in it."""
        other = self.with_shifts({})
        other.changes = Changes(smoothings=smoothings)
        known = other._constants.items()  # of weights, smoothed or not
        other._constants = {key: kept for key, kept in known if not key[-1]}
        return other

    def smoothed(self, edges: Collection[Edge], dynamic: Collection[str]) -> list[str]:
        """The names of the products whose input is smoothed in an effective placement.

        Args:
            edges: Its edges.
            dynamic: Its dynamic ops.
        """
        operands = {name: self._operands_of(name) for name in self.changes.smoothings}
        return [
            name
            for name, each in operands.items()
            if name in dynamic or (each.data in edges and each.weight in edges)
        ]

    def values(self, pair: Pair) -> Array:
        """The values of a constant as they are to be quantized."""
        if pair.role == "bias":
            return self.shifted(pair.tensor)
        return self._multiplied(pair.tensor, pair.edges[0].node, pair.smoothing)

    def shifted(self, tensor: str) -> Array:
        """The values of a constant, less its shift if it has one."""
        values = self._values(tensor)
        shift = self.changes.shifts.get(tensor)
        if shift is None:
            return values
        return (values.astype(np.float64) - shift.reshape(values.shape)).astype(values.dtype)

    def digest(self) -> str:
        """A hash of what scales and biases come from: ranges, given encodings, shifts."""
        digest = hashlib.blake2b(self.ranges.digest().encode(), digest_size=16)
        for name in sorted(self.given):
            digest.update(repr((name, self.given[name])).encode())
        for name, shift in sorted(self.changes.shifts.items()):
            digest.update(name.encode() + shift.tobytes())
        for name, smoothing in sorted(self.changes.smoothings.items()):
            digest.update(name.encode() + smoothing.factors.tobytes())
        return digest.hexdigest()

    def pairs(self, edges: Iterable[Edge]) -> list[Pair]:
        """Group edges into pairs: readers that can share one encoding share one pair.

        Args:
            edges: An effective placement (`GraphIndex.effective`).

        Raises:
            UsageError: If an edge is not of this model, or a tensor has no range.
        """
        written = frozenset(edges)
        seen = self._shared.propagated(written) if self.dialect.propagates_dq else written
        siblings = Siblings(self._shared, seen)
        found: dict[tuple[object, ...], Pair] = {}
        for edge in sorted(written):
            role = self._roles.get(edge)
            if role is None:
                self._check(edge)
                role = self._roles[edge] = self._role(edge)
            encoding = self._encode(edge, role, siblings)
            smoothing = self._smoothing(edge, siblings)
            key = (edge.tensor, smoothing is None, *encoding.key)
            pair = Pair(edge.tensor, role, encoding, smoothing=smoothing)
            found.setdefault(key, pair).edges.append(edge)
        return list(found.values())

    def dynamic_weight(self, name: str, position: int) -> tuple[Array, Encoding]:
        """A dynamic op's weight, which it reads at this position, and its encoding."""
        node, smoothing = self.index.node[name], self.changes.smoothings.get(name)
        tensor = self.index.reads(node)[position]
        encoding = self._own_weight(tensor, self._axis(node, tensor), name, smoothing)
        return self._multiplied(tensor, name, smoothing), encoding

    def _check(self, edge: Edge) -> None:
        index = self.index
        index.require(edge.tensor)
        if not index.has(edge):
            reader = f"input {edge.position} of {edge.node!r}" if edge.node else "a graph output"
            raise UsageError(
                f"The placement names {edge.tensor!r} as {reader}, which it is not in this model.",
                "Is it a placement of another model?",
            )
        if not index.is_float(edge.tensor):
            raise UsageError(
                f"The tensor {edge.tensor!r} does not hold floats.", "Take it out of the placement."
            )

    def _role(self, edge: Edge) -> Role:
        if not self.index.is_constant(edge.tensor):
            return "activation"
        if edge.node:
            rule = self._rules[edge.node]
            if edge.position == rule.weight:
                return "weight"
            if edge.position == rule.bias and is_channel_bias(
                self.index, self.index.node[edge.node], edge.tensor
            ):
                return "bias"
        return "constant"

    def _encode(self, edge: Edge, role: Role, siblings: Siblings) -> Encoding:
        if role in ("activation", "constant"):
            return self._data(edge, siblings)
        operands = self._operands_of(edge.node)
        if role == "weight":
            return self._weight(operands, siblings)
        for operand in (operands.data, operands.weight):
            if operand not in siblings.wanted:
                raise UsageError(
                    f"The bias of {edge.node!r} can't be quantized without its input and weight.",
                    f"Add {operand.tensor!r} (input {operand.position}) to the placement, or drop "
                    "the bias.",
                )
        data = self._data(operands.data, siblings)
        weight = self._weight(operands, siblings)
        key = ("bias", edge.tensor, data.key, weight.key)
        if key not in self._constants:
            self._constants[key] = encode_bias(self.shifted(edge.tensor), data, weight)
        return self._constants[key]

    def _smoothing(self, edge: Edge, siblings: Siblings) -> Smoothing | None:
        """How the input or weight of a product is smoothed: only if both are quantized."""
        smoothing = self.changes.smoothings.get(edge.node)
        if smoothing is None:
            return None
        operands = self._operands_of(edge.node)
        both = (operands.data, operands.weight)
        is_either = edge in both and siblings.wanted.issuperset(both)
        return smoothing if is_either else None

    def _data(self, edge: Edge, siblings: Siblings) -> Encoding:
        """The encoding of what an op reads; smoothed, it has one of its own."""
        found = self._smoothing(edge, siblings)
        if found is None:
            return self._operand(edge.tensor, siblings)
        layout, precision = self.format.activation, self._precision(edge.tensor)
        return encode_range(found.low, found.high, layout, precision)

    def _operand(self, tensor: str, siblings: Siblings) -> Encoding:
        """The encoding of a tensor: its own, or one for all that it is moved together with."""
        together = (tensor,) if self.index.is_constant(tensor) else siblings.of(tensor)
        is_constant = len(together) == 1 and self.index.is_constant(together[0])
        layout = self.format.operand
        if layout is None or is_constant or not siblings.is_multiplied(together):
            layout = self.format.activation
        return self._together(together, layout)

    def _together(self, tensors: tuple[str, ...], layout: TensorFormat) -> Encoding:
        """The one encoding of tensors: what came with the model if that is the same for all."""
        key = (layout, tensors)
        if key not in self._activations:
            given = [
                given_activation(self.given.get(name), layout, self._precision(name))
                for name in tensors
            ]
            first = given[0]
            if first is None or any(each is None or each.key != first.key for each in given):
                lows, highs = zip(*map(self._span, tensors, given), strict=True)
                first = encode_range(min(lows), max(highs), layout, self._precision(tensors[0]))
            self._activations[key] = first
        return self._activations[key]

    def _span(self, tensor: str, given: Encoding | None) -> tuple[float, float]:
        """The range of a tensor's values: what came with the model goes before what was seen."""
        if given is not None:
            return given.span
        if self.index.is_constant(tensor):
            values = self._values(tensor)
            return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
        if tensor not in self.ranges.by_tensor:
            raise UsageError(
                f"No range is known for the tensor {tensor!r}.",
                "Either it took infinite or undefined values, or another model was calibrated.",
            )
        return self.ranges.by_tensor[tensor]

    def _weight(self, operands: _Operands, siblings: Siblings) -> Encoding:
        name = operands.weight.tensor
        if not self.index.is_constant(name):
            return self._operand(name, siblings)
        smoothing = self._smoothing(operands.weight, siblings)
        encoding = self._own_weight(name, operands.axis, operands.weight.node, smoothing)
        bias = operands.bias
        if bias is None or bias not in siblings.wanted:
            return encoding
        data = self._data(operands.data, siblings)
        key = ("weight for a bias", name, bias.tensor, operands.axis, data.key, encoding.key)
        if key not in self._constants:
            precision = self._precision(name)
            self._constants[key] = fit_bias(encoding, self.shifted(bias.tensor), data, precision)
        return self._constants[key]

    def _own_weight(
        self, name: str, axis: int | None, op: str, smoothing: Smoothing | None
    ) -> Encoding:
        """The encoding of a weight by itself, whatever bias is added to its products."""
        key = (_OWN, name, axis, smoothing is not None)
        if key not in self._constants:
            values, layout = self._multiplied(name, op, smoothing), self.format.weight
            kept = given_weight(self.given.get(name), values, axis, layout)
            self._constants[key] = kept or encode_weight(
                values, layout, axis, self._precision(name)
            )
        return self._constants[key]

    def _multiplied(self, name: str, op: str, smoothing: Smoothing | None) -> Array:
        """The values of a weight, for the smoothed input if the op's input is smoothed."""
        values = self._values(name)
        if smoothing is None:
            return values
        return smoothing.multiplied(values, input_axis(self.index.node[op]))

    def _operands_of(self, name: str) -> _Operands:
        if name not in self._operands:
            node = self.index.node[name]
            data, weight, *_ = (
                Edge(each, name, i) for i, each in enumerate(self.index.reads(node))
            )
            bias = next(iter(bias_edges(self.index, node, self._rules[name])), None)
            self._operands[name] = _Operands(data, weight, self._axis(node, weight.tensor), bias)
        return self._operands[name]

    def _axis(self, node: ir.Node, weight: str) -> int | None:
        rank = len(self.index.shape(weight) or ())
        axis = weight_axis(node)
        if not self.dialect.per_channel or rank < 2:
            return None
        if axis < 0 and rank > 2 and not self.dialect.batched_weight_axes:
            return None
        return axis % rank

    def _precision(self, tensor: str) -> ir.DataType:
        return self.index.dtype(tensor) or ir.DataType.FLOAT

    def _values(self, tensor: str) -> Array:
        constant = self.index.value[tensor].const_value
        assert constant is not None
        if not self.index.is_finite(tensor):
            raise UsageError(
                f"The constant {tensor!r} can't be quantized: it holds infinite or undefined "
                "values.",
                "Leave the op that reads it float.",
            )
        return values_of(constant)
