"""Plans the type of every value and reader before the model is changed."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

from qdqtune.graph.constants import constant_of
from qdqtune.graph.op_classes import COPY_OPS, QUANTIZE, is_op
from qdqtune.graph.precision_rules import Keeper
from qdqtune.graph.precision_types import Change, Slots, chooses_type, dtype_of, takes_any_type

# Ops that join or pad values, besides those with one input.
_PASSTHROUGH_OPS = COPY_OPS | {"Concat", "DepthToSpace", "Pad", "SpaceToDepth"}


class Plan:
    """The types of a converted model.

    Args:
        model: The model, with named nodes and inferred types.
        change: The types to replace.
        keep_io: Whether inputs and outputs keep their types.
        keep_nodes: Names of nodes to keep.
        keep_ops: Op types to keep.

    Attributes:
        kept: Name to reason for kept nodes.
        converted: Names of nodes that change.
        saturating: Constants that hold masks or bounds beyond the range.
        given: The new type of every affected value, except constants.

    Raises:
        UsageError: If a node does not exist.
    """

    def __init__(
        self,
        model: ir.Model,
        change: Change,
        *,
        keep_io: bool,
        keep_nodes: Collection[str],
        keep_ops: Collection[str],
    ) -> None:
        self.change = change
        self._graph = model.graph
        self._keep_io = keep_io
        keeper = Keeper(model, change, keep_nodes, keep_ops)
        self._slots = keeper.slots
        self.kept = keeper.kept()
        self.saturating = keeper.saturating
        self._stays = set(self.kept)
        # When converting to float32 all other types are replaced, so keeping a node gains nothing.
        if change.target != ir.DataType.FLOAT:
            self._stays |= self._in_between()
        self.given: dict[ir.Value, ir.DataType] = dict(self._given())
        self.converted = tuple(
            name
            for node in self._graph
            if (name := node.name or "") not in self._stays
            and self._slots_of(node).concerned
            and (not chooses_type(node) or self.given.get(node.outputs[0]) == change.target)
        )

    def wanted(self, node: ir.Node, position: int) -> ir.DataType | None:
        """Return the type that a node needs on an affected input; None if any will do."""
        value = node.inputs[position]
        assert value is not None
        stays = node.graph is not self._graph or node.name in self.kept
        if not stays and takes_any_type(node, position):
            return None
        if (
            not stays
            and node.name not in self._stays
            and position in self._slots_of(node).input_set
        ):
            return self.change.target
        return dtype_of(value)

    def wanted_outside(self, value: ir.Value) -> ir.DataType | None:
        """Return the type that callers of the model expect of an affected output."""
        return dtype_of(value) if self._keep_io else self.change.target

    def _slots_of(self, node: ir.Node) -> Slots:
        return self._slots.get(node.name or "", Slots(whole=True))

    def _given(self) -> Iterator[tuple[ir.Value, ir.DataType]]:
        """Yield new types: readers decide for nodes that choose, keeping decides for others."""
        target = self.change.target
        for value in self._graph.inputs:
            if self.change.concerns(value):
                yield value, self._input_type(value)
        for node in self._graph:
            movable = self._slots_of(node).outputs if node.name not in self._stays else ()
            for position, value in enumerate(node.outputs):
                if not self.change.concerns(value) or constant_of(value) is not None:
                    continue
                changes = position in movable
                if changes and chooses_type(node):
                    changes = self._wanted_types(value) == {target}
                old = dtype_of(value)
                assert old is not None
                yield value, target if changes else old

    def _input_type(self, value: ir.Value) -> ir.DataType:
        old = dtype_of(value)
        assert old is not None
        return old if self._keep_io else self.change.target

    def _wanted_types(self, value: ir.Value) -> set[ir.DataType | None]:
        wanted = {self.wanted(user, position) for user, position in value.uses()}
        if value.is_graph_output():
            wanted.add(self.wanted_outside(value))
        return wanted - {None}

    def _in_between(self) -> set[str]:
        """Return nodes that only move or compare values between kept nodes: they need no Cast.

        All candidates are assumed to qualify; those with a neighbour that changes are removed until
        none is left.
        """
        quiet = {
            node.name or "": node
            for node in self._graph
            if node.name not in self.kept and self._could_stay(node)
        }
        pending = list(quiet.values())
        while pending:
            node = pending.pop()
            if node.name not in quiet or self._is_among_staying(node, quiet):
                continue
            del quiet[node.name]
            pending += [user for output in node.outputs for user, _ in output.uses()]
            producers = [value.producer() for value in node.inputs if value is not None]
            pending += [producer for producer in producers if producer is not None]
        return set(quiet)

    def _could_stay(self, node: ir.Node) -> bool:
        found = self._slots_of(node)
        # A QuantizeLinear follows its DequantizeLinear: engines look for equal scales.
        if not found.concerned or chooses_type(node) or is_op(node, QUANTIZE):
            return False
        return is_op(node, *_PASSTHROUGH_OPS) or not found.outputs

    def _is_among_staying(self, node: ir.Node, quiet: Collection[str]) -> bool:
        return all(
            self._arrives_unchanged(value, quiet)
            for value in node.inputs
            if value is not None and self.change.concerns(value)
        ) and all(
            self._leaves_unchanged(value, quiet)
            for value in node.outputs
            if self.change.concerns(value)
        )

    def _arrives_unchanged(self, value: ir.Value, quiet: Collection[str]) -> bool:
        producer = value.producer()
        if constant_of(value) is not None:
            return True
        if producer is None:
            return self._keep_io
        return producer.name in self.kept or producer.name in quiet or chooses_type(producer)

    def _leaves_unchanged(self, value: ir.Value, quiet: Collection[str]) -> bool:
        if value.is_graph_output() and not self._keep_io:
            return False
        return all(
            user.graph is not self._graph
            or user.name in self.kept
            or user.name in quiet
            or takes_any_type(user, position)
            or position not in self._slots_of(user).input_set
            for user, position in value.uses()
        )
