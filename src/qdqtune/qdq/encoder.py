"""From a placement to pairs: which tensor gets which encoding, for which readers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx_ir as ir

from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import weight_axis
from qdqtune.qdq.dialect import Dialect
from qdqtune.qdq.encoding import (
    Array,
    Encoding,
    encode_bias,
    encode_range,
    encode_weight,
    least_weight_scale,
)
from qdqtune.qdq.units import role_rule
from qdqtune.records.errors import UsageError
from qdqtune.records.placement import Edge
from qdqtune.records.ranges import Ranges

Role = Literal["activation", "constant", "weight", "bias"]


@dataclass
class Pair:
    """One tensor, quantized one way, and who reads it so.

    Attributes:
        tensor: The tensor.
        role: What it is to its readers.
        encoding: How it is quantized.
        edges: The readers.
    """

    tensor: str
    role: Role
    encoding: Encoding
    edges: list[Edge] = field(default_factory=list)


class Encoder:
    """Finds encodings for the edges of a placement; what it computed once it remembers.

    Args:
        index: The graph.
        dialect: The dialect.
        quant_type: One of the dialect's quant types.
        ranges: Ranges of the activations.
    """

    def __init__(
        self, index: GraphIndex, dialect: Dialect, quant_type: str, ranges: Ranges
    ) -> None:
        self.index = index
        self.dialect = dialect
        self.quant_type = quant_type
        self.format = dialect.format_of(quant_type)
        self.ranges = ranges
        self._rules = {node.name: role_rule(dialect, node) for node in index.nodes}
        self._roles: dict[Edge, Role] = {}
        self._activations: dict[str, Encoding] = {}
        self._weights: dict[tuple[str, int | None], Encoding] = {}
        self._fitted: dict[tuple[object, ...], Encoding] = {}
        self._biases: dict[tuple[object, ...], Encoding] = {}

    def pairs(self, edges: Iterable[Edge]) -> list[Pair]:
        """Group edges into pairs: readers that can share one encoding share one pair.

        Args:
            edges: An effective placement (`GraphIndex.effective`).

        Raises:
            UsageError: If an edge is not of this model, or a tensor has no range.
        """
        wanted = frozenset(edges)
        found: dict[tuple[object, ...], Pair] = {}
        for edge in sorted(wanted):
            role = self._roles.get(edge)
            if role is None:
                self._check(edge)
                role = self._roles[edge] = self._role(edge)
            encoding = self._encode(edge, role, wanted)
            key = (edge.tensor, *encoding.key)
            found.setdefault(key, Pair(edge.tensor, role, encoding)).edges.append(edge)
        return list(found.values())

    def _check(self, edge: Edge) -> None:
        index = self.index
        if edge.tensor not in index.value:
            raise UsageError(
                f"The placement names the tensor {edge.tensor!r}, which the model doesn't have.",
                "Is it a placement of another model?",
            )
        if not index.has(edge):
            reader = f"input {edge.position} of {edge.node!r}" if edge.node else "a graph output"
            raise UsageError(
                f"The placement names {edge.tensor!r} as {reader}, which it is not in this model.",
                "Is it a placement of another model?",
            )
        if not index.is_float(edge.tensor):
            raise UsageError(f"The tensor {edge.tensor!r} does not hold floats.")

    def _role(self, edge: Edge) -> Role:
        if not self.index.is_constant(edge.tensor):
            return "activation"
        if edge.node:
            rule = self._rules[edge.node]
            if edge.position == rule.weight:
                return "weight"
            if edge.position == rule.bias:
                return "bias"
        return "constant"

    def _encode(self, edge: Edge, role: Role, wanted: frozenset[Edge]) -> Encoding:
        if role == "activation":
            return self._activation(edge.tensor, wanted)
        if role == "constant":
            return self._constant(edge.tensor)
        node = self.index.node[edge.node]
        if role == "weight":
            return self._weight(node, wanted)
        for position in (0, 1):
            value = node.inputs[position]
            assert value is not None
            if Edge(value.name or "", edge.node, position) not in wanted:
                raise UsageError(
                    f"The bias of {edge.node!r} can't be quantized without its input and weight.",
                    f"Add {value.name!r} (input {position}) to the placement, or drop the bias.",
                )
        data, weight = self._data(node, wanted), self._weight(node, wanted)
        key = (edge.tensor, data.key, weight.key)
        if key not in self._biases:
            self._biases[key] = encode_bias(self._values(edge.tensor), data, weight)
        return self._biases[key]

    def _data(self, node: ir.Node, wanted: frozenset[Edge]) -> Encoding:
        value = node.inputs[0]
        name = value.name or "" if value is not None else ""
        if self.index.is_constant(name):
            return self._constant(name)
        return self._activation(name, wanted)

    def _activation(self, tensor: str, wanted: frozenset[Edge]) -> Encoding:
        """The encoding of an activation: its own, or that of the tensor it is a copy of."""
        while True:
            node = self.index.value[tensor].producer()
            if node is None or not self._rules[node.name].same_scale:
                break
            source = node.inputs[0]
            if source is None or Edge(source.name or "", node.name or "", 0) not in wanted:
                break
            tensor = source.name or ""
            if self.index.is_constant(tensor):
                return self._constant(tensor)
        if tensor not in self._activations:
            if tensor not in self.ranges.by_tensor:
                raise UsageError(
                    f"No range is known for the tensor {tensor!r}.",
                    "Calibrate the model that is quantized: the ranges are of another one.",
                )
            low, high = self.ranges.by_tensor[tensor]
            self._activations[tensor] = encode_range(low, high, self.format.activation)
        return self._activations[tensor]

    def _constant(self, tensor: str) -> Encoding:
        if tensor not in self._activations:
            values = self._values(tensor).astype(np.float32)
            low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
            self._activations[tensor] = encode_range(low, high, self.format.activation)
        return self._activations[tensor]

    def _weight(self, node: ir.Node, wanted: frozenset[Edge]) -> Encoding:
        value = node.inputs[1]
        assert value is not None
        name = value.name or ""
        if not self.index.is_constant(name):
            return self._activation(name, wanted)
        axis = self._axis(node, value)
        key = (name, axis)
        if key not in self._weights:
            self._weights[key] = encode_weight(self._values(name), self.format.weight, axis)
        encoding = self._weights[key]
        bias = self._bias(node, wanted)
        return (
            encoding if bias is None else self._fit(encoding, name, bias, self._data(node, wanted))
        )

    def _fit(self, encoding: Encoding, weight: str, bias: str, data: Encoding) -> Encoding:
        """The weight's encoding, coarser where the bias would not fit into int32 otherwise."""
        key = (weight, bias, encoding.axis, data.key)
        if key not in self._fitted:
            least = least_weight_scale(self._values(bias), data)
            if (encoding.scale < least).any():
                least = least if encoding.axis is not None else least.max()
                values = self._values(weight)
                encoding = encode_weight(values, self.format.weight, encoding.axis, least)
            self._fitted[key] = encoding
        return self._fitted[key]

    def _bias(self, node: ir.Node, wanted: frozenset[Edge]) -> str | None:
        position = self._rules[node.name].bias
        if position is None or position >= len(node.inputs) or node.inputs[position] is None:
            return None
        name = node.inputs[position].name or ""  # type: ignore[union-attr]
        return name if Edge(name, node.name or "", position) in wanted else None

    def _axis(self, node: ir.Node, weight: ir.Value) -> int | None:
        assert weight.const_value is not None
        rank = len(weight.const_value.shape)
        axis = weight_axis(node)
        if rank < 2 or (axis < 0 and rank > 2 and not self.dialect.batched_weight_axes):
            return None
        return axis % rank

    def _values(self, tensor: str) -> Array:
        constant = self.index.value[tensor].const_value
        assert constant is not None
        return constant.numpy()
