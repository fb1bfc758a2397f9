"""From a set of ops to the one placement that makes each of them an integer kernel.

The ops may be named by a user (op types, nodes, tensors), or quantized in a placement of another
dialect. Also the tensors that share an encoding, because ops only move values between them.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op
from qdqtune.qdq._at_run_time import why_not_by_engine, why_not_dynamic
from qdqtune.qdq._dialect import Dialect, Output
from qdqtune.qdq._op_units import (
    canonical,
    close,
    is_fused_with_norm,
    merge,
    operands,
    passes_values_through,
    role_rule,
    rule_of,
    unit,
    unit_outputs,
    why_not,
)
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Edge, Placement

_NOTHING = Placement()


class SharedEncodings:
    """The tensors of a graph by what they are copies of.

    Args:
        index: The graph.
        dialect: It says which ops only move values.

    Attributes:
        copied_from: By which edge a tensor is a copy of another.
        joined: Edges that meet in an op with several operands that only moves values.
        multiplied: Edges by which activations take the place of a weight.
    """

    def __init__(self, index: GraphIndex, dialect: Dialect) -> None:
        self._index = index
        moving = (node for node in index.nodes if passes_values_through(index, dialect, node))
        self._moves = [
            (edges, [output.name or "" for output in node.outputs])
            for node in moving
            if (edges := tuple(operands(node, role_rule(dialect, node))))
        ]
        self.copied_from = {name: edges[0] for edges, names in self._moves for name in names}
        self.joined = [edges for edges, _ in self._moves if len(edges) > 1]
        self.multiplied = [
            Edge(value.name or "", node.name or "", 1)
            for node in index.nodes
            if is_op(node, *WEIGHTED_OPS)
            for value in node.inputs[1:2]
            if value is not None and not index.is_constant(value.name or "")
        ]

    def propagated(self, edges: frozenset[Edge]) -> frozenset[Edge]:
        """Edges, and those that see quantized values because ops moved them there.

        Args:
            edges: An effective placement (`GraphIndex.effective`).
        """
        found = set(edges)
        for moved, outputs in self._moves:
            if found.issuperset(moved):
                found.update(edge for name in outputs for edge in self._index.readers(name))
        return frozenset(found)


class Siblings:
    """Which tensors share an encoding in one placement.

    Args:
        shared: The graph's.
        wanted: The edges that see quantized values.
    """

    def __init__(self, shared: SharedEncodings, wanted: frozenset[Edge]) -> None:
        self.wanted = wanted
        self._copied_from = shared.copied_from
        self._joined: dict[str, tuple[str, ...]] = {}
        for edges in shared.joined:
            if wanted.issuperset(edges):
                sources = {self._source(edge.tensor) for edge in edges}
                together = sources.union(*(self._joined.get(source, ()) for source in sources))
                self._joined.update(dict.fromkeys(together, tuple(sorted(together))))
        self._multiplied = {
            self._source(edge.tensor) for edge in shared.multiplied if edge in wanted
        }

    def of(self, tensor: str) -> tuple[str, ...]:
        """The tensors whose ranges one encoding must span, sorted."""
        source = self._source(tensor)
        return self._joined.get(source, (source,))

    def is_multiplied(self, siblings: tuple[str, ...]) -> bool:
        """Whether one of these takes the place of a weight."""
        return not self._multiplied.isdisjoint(siblings)

    def _source(self, tensor: str) -> str:
        """What a tensor is a copy of, by way of the edges."""
        while (edge := self._copied_from.get(tensor)) is not None and edge in self.wanted:
            tensor = edge.tensor
        return tensor


class QuantizationPlanner:
    """Which ops of a graph a dialect can quantize, and what any set of them needs.

    Ops that only move values (`moving`) are quantized where what they move already is; all others
    that can be (`working`) whenever they are asked for.

    Args:
        index: The graph.
        dialect: Whose kernels.
        quant_type: One of the dialect's quant types.

    Attributes:
        compute: Names of ops with an integer kernel, in the graph's order.
        passthrough: Names of ops that follow, in the graph's order.
        units: What each of both needs.
        left_float: Node name to the reason why it can't be quantized.
        dynamic: Names of ops that can be dynamic, in the graph's order.
        dynamic_by_engine: Names of ops whose input the engine quantizes at run time if nothing but
            their weight is quantized, in the graph's order.
        unfused: Names of ops that the engine can be kept from fusing, in the graph's order.
        shared: What ops only move.
    """

    def __init__(self, index: GraphIndex, dialect: Dialect, quant_type: str = "int8") -> None:
        self.index = index
        self.dialect = dialect
        self.compute: dict[str, Placement] = {}
        self.passthrough: dict[str, Placement] = {}
        self.left_float: dict[str, str] = {}
        for node in index.nodes:
            name = node.name or ""
            if node.op_type in dialect.fused_activations and rule_of(dialect, node) is None:
                continue  # part of the op before it
            reason = why_not(index, dialect, node, quant_type)
            if reason:
                self.left_float[name] = reason
                continue
            kind = self.passthrough if role_rule(dialect, node).same_scale else self.compute
            kind[name] = unit(index, dialect, node, whole=True)
        self.units = {**self.compute, **self.passthrough}
        self.dynamic = tuple(
            node.name or ""
            for node in index.nodes
            if node.op_type in dialect.dynamic and not why_not_dynamic(index, dialect, node)
        )
        self.dynamic_by_engine = tuple(
            name
            for name in self.compute
            if not why_not_by_engine(index, dialect, index.node[name]) and self.weight_edges(name)
        )
        self.unfused = tuple(
            node.name or "" for node in index.nodes if is_fused_with_norm(dialect, node)
        )
        self.shared = SharedEncodings(index, dialect)

    def placement(
        self,
        names: Collection[str],
        weights_only: Collection[str] = (),
        quantized_before: Collection[str] = (),
        float_weights: Collection[str] = (),
        dynamic: Collection[str] = (),
        unfused: Collection[str] = (),
    ) -> Placement:
        """The places that quantize these ops, in canonical form.

        Args:
            names: Ops of `working` and `moving`; others count for nothing.
            weights_only: Ops of which only the weights are quantized.
            quantized_before: Tensors that are taken to be quantized by who makes them: ops that
                only move values follow.
            float_weights: Ops among them whose weights are left float, for the engine to quantize.
            dynamic: Ops whose input is quantized at run time, unless they are among `names`: they
                become dynamic, or where the engine does the rest, only their weights are quantized.
            unfused: Ops that are kept from being fused, unless they are among the others.
        """
        wanted = frozenset(names)
        at_run_time = frozenset(dynamic).intersection(self.dynamic) - wanted
        whole = merge(places for name, places in self.compute.items() if name in wanted)
        edges, outputs = set(whole.edges), set(whole.outputs)
        for name in float_weights:
            edges -= self._own_constants(name)
        quantized = {edge.tensor for edge in edges} | outputs | set(quantized_before)
        for name, places in self.passthrough.items():
            if name in wanted and any(
                edge.tensor in quantized or self.index.is_constant(edge.tensor)
                for edge in places.edges
            ):
                edges |= places.edges
                outputs |= places.outputs
                quantized |= places.outputs
        if self.dialect.propagates_dq:
            self._propagate_dq(wanted, edges, outputs)
        by_engine = frozenset(dynamic).intersection(self.dynamic_by_engine) - wanted
        stored = (frozenset(weights_only) | by_engine) - at_run_time
        edges.update(edge for name in stored for edge in self.weight_edges(name))
        apart = frozenset(unfused).intersection(self.unfused) - wanted
        whole = Placement(frozenset(edges), frozenset(outputs), at_run_time, apart)
        return canonical(self.index, whole)

    @property
    def may_be_dynamic(self) -> frozenset[str]:
        """Names of the ops whose input can be quantized at run time, by a kernel or the engine."""
        return frozenset((*self.dynamic, *self.dynamic_by_engine))

    def at_run_time(self, placement: Placement) -> frozenset[str]:
        """Names of the ops whose input is quantized at run time in a placement."""
        by_engine = self.stored(placement).intersection(self.dynamic_by_engine)
        return placement.dynamic | (by_engine - self.quantized(placement))

    def why_not_at_run_time(self, node: ir.Node) -> str:
        """Why a node's input can't be quantized at run time; empty if it can."""
        if node.op_type in self.dialect.dynamic:
            return why_not_dynamic(self.index, self.dialect, node)
        reason = why_not_by_engine(self.index, self.dialect, node)
        return reason or self.left_float.get(node.name or "", "")

    @property
    def candidate_edges(self) -> Placement:
        """Every place that a choice can come to; moved pairs stand elsewhere in each of them."""
        whole = self.placement(self.units)
        return merge([whole, *self.units.values()]) if self.dialect.propagates_dq else whole

    def quantized(self, placement: Placement) -> frozenset[str]:
        """Names of the ops that are integer kernels in a placement.

        Where pairs stand before passthrough ops only, what reads their results counts as well.
        """
        edges = self.index.effective(placement)
        if self.dialect.propagates_dq:
            edges = self.shared.propagated(edges)
        return frozenset(name for name, places in self.units.items() if places.edges <= edges)

    def stored(self, placement: Placement) -> frozenset[str]:
        """Names of the ops whose weights are quantized in a placement, whatever else is."""
        edges = self.index.effective(placement)
        return frozenset(n for n in self.compute if (own := self.weight_edges(n)) and own <= edges)

    def fed(self, placement: Placement) -> frozenset[str]:
        """Names of the ops that read and write quantized values, whatever their weights are."""
        edges = self.index.effective(placement)
        return frozenset(
            name
            for name, places in self.units.items()
            if places.edges - self._own_constants(name) <= edges
        )

    def _own_constants(self, name: str) -> frozenset[Edge]:
        """Where an op that has a weight reads constants: that, and a bias."""
        if not self.weight_edges(name):
            return frozenset()
        edges = self.compute[name].edges
        return frozenset(e for e in edges if e.node == name and self.index.is_constant(e.tensor))

    def weight_edges(self, name: str) -> frozenset[Edge]:
        """Where an op reads its weight, if that is a constant."""
        weight = role_rule(self.dialect, self.index.node[name]).weight
        return frozenset(
            edge
            for edge in self.compute.get(name, _NOTHING).edges
            if edge.node == name and edge.position == weight and self.index.is_constant(edge.tensor)
        )

    def _propagate_dq(self, wanted: frozenset[str], edges: set[Edge], outputs: set[str]) -> None:
        """Put pairs before passthrough ops, not behind them."""
        quantized = {edge.tensor for edge in edges} | outputs
        for name, places in reversed(self.passthrough.items()):
            if name in wanted and not quantized.isdisjoint(places.outputs):
                edges |= places.edges
                quantized |= places.tensors
        moved: set[str] = set()
        for name, places in self.passthrough.items():
            if name in wanted and places.edges <= edges:
                moved |= places.outputs
        edges.difference_update([edge for edge in edges if edge.tensor in moved])
        outputs -= moved


@dataclass(frozen=True)
class Selection:
    """What a user's choice came to.

    Attributes:
        placement: Complete in the dialect's sense.
        quantized: Names of the nodes that were chosen and can be quantized.
        left_float: Node name to the reason, for chosen nodes that can't.
    """

    placement: Placement
    quantized: tuple[str, ...] = ()
    left_float: dict[str, str] = field(default_factory=dict)


def select_ops(
    index: GraphIndex,
    dialect: Dialect,
    op_types: Collection[str],
    quant_type: str = "int8",
    left_out: Collection[str] = (),
) -> Selection:
    """Quantize every op of these types for which the dialect has an integer kernel.

    Ops that only move values follow: they are quantized where what they move already is. A
    tensor that is quantized for one op is so for all that read it: that completes the residual
    Adds between quantized Convs.

    Args:
        index: The graph.
        dialect: Whose kernels.
        op_types: The types.
        quant_type: One of the dialect's quant types.
        left_out: Names of nodes that are not meant.

    Raises:
        UsageError: If the model has no op of a named type.
    """
    present = {node.op_type for node in index.nodes}
    for op_type in op_types:
        if op_type not in present:
            raise unknown("op type", op_type, present)
    planner = QuantizationPlanner(index, dialect, quant_type)
    chosen = [
        name
        for name in planner.units
        if index.node[name].op_type in op_types and name not in left_out
    ]
    placement = planner.placement(chosen)
    quantized = planner.quantized(placement)
    return Selection(
        _shared(index, placement),
        tuple(name for name in chosen if name in quantized),
        {
            name: reason
            for name, reason in planner.left_float.items()
            if index.node[name].op_type in op_types
        },
    )


def select_dynamic(
    index: GraphIndex,
    dialect: Dialect,
    names: Iterable[str],
    quant_type: str = "int8",
    left_out: Collection[str] = (),
) -> Selection:
    """Quantize the inputs of these ops at run time.

    Args:
        index: The graph.
        dialect: Whose kernels.
        names: Op types, and names of nodes.
        quant_type: One of the dialect's quant types.
        left_out: Names of nodes that are not meant.

    Raises:
        UsageError: If the model has no such op or node, a named node can't be quantized so, or the
            dialect has no op of this kind.
    """
    if not dialect.dynamic and not dialect.dynamic_by_engine:
        raise nothing_dynamic(dialect)
    planner = QuantizationPlanner(index, dialect, quant_type)
    present = {node.op_type for node in index.nodes}
    possible = planner.may_be_dynamic
    chosen: dict[str, None] = {}
    left_float: dict[str, str] = {}
    for name in names:
        if name not in present and name not in index.node:
            raise unknown("op type or node", name, {*present, *index.node})
        alike = [node for node in index.nodes if name == node.op_type]
        for node in alike or [index.node[name]]:
            if node.name in left_out:
                continue
            if node.name in possible:
                chosen[node.name or ""] = None
                continue
            reason = planner.why_not_at_run_time(node)
            if not alike:
                raise UsageError(
                    f"The node {name!r} can't be quantized at run time: {reason}.", "Leave it out."
                )
            left_float[node.name or ""] = reason
    return Selection(planner.placement((), dynamic=chosen), tuple(chosen), left_float)


def nothing_dynamic(dialect: Dialect) -> UsageError:
    """What to say of a dialect in which nothing is quantized at run time."""
    from qdqtune.qdq.dialects import dialects  # they are made of what is here

    able = [name for name, each in dialects().items() if each.dynamic or each.dynamic_by_engine]
    return UsageError(
        f"The {dialect.name} dialect quantizes no inputs at run time.",
        f"Calibrate them instead, or use another dialect: {', '.join(able)}.",
    )


def select_nodes(
    index: GraphIndex, dialect: Dialect, names: Iterable[str], quant_type: str = "int8"
) -> Selection:
    """Quantize these nodes, by name.

    Raises:
        UsageError: If there is no such node, or it reads nothing that can be quantized.
    """
    units = {}
    for name in names:
        if name not in index.node:
            raise unknown("node", name, index.node)
        units[name] = unit(index, dialect, index.node[name], whole=True)
        if not units[name].edges:
            reason = why_not(index, dialect, index.node[name], quant_type)
            raise UsageError(f"The node {name!r} can't be quantized: {reason}.", "Leave it out.")
    return Selection(merge(units.values()), tuple(units))


def select_tensors(index: GraphIndex, dialect: Dialect, names: Iterable[str]) -> Selection:
    """Quantize these tensors for all their readers; weighted readers become whole units.

    Raises:
        UsageError: If there is no such tensor, or it does not hold floats.
    """
    wanted = []
    for name in names:
        if name not in index.value:
            raise unknown("tensor", name, index.value)
        if not index.is_float(name):
            dtype = index.dtype(name)
            raise UsageError(
                f"The tensor {name!r} can't be quantized: it holds "
                f"{dtype.name.lower() if dtype else 'values of unknown type'}, not floats.",
                "Leave it out.",
            )
        wanted.append(Placement.of(index.readers(name)))
    placement = close(index, dialect, merge(wanted))
    return Selection(placement, tuple(sorted({edge.node for edge in placement.edges if edge.node})))


def _shared(index: GraphIndex, placement: Placement) -> Placement:
    """Let every node that reads a quantized activation read the quantized value."""
    activations = {edge.tensor for edge in placement.edges if not index.is_constant(edge.tensor)}
    readers = (edge for tensor in activations for edge in index.readers(tensor) if edge.node)
    return replace(placement, edges=placement.edges.union(readers))


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """What to say of a name that the model doesn't have, with those nearest to it."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=3)
    if near:
        hint = f"Did you mean {' or '.join(repr(match) for match in near)}?"
    else:
        shown = ", ".join(choices[:20]) + (", …" if len(choices) > 20 else "")
        hint = f"It has: {shown}."
    return UsageError(f"The model has no {kind} {name!r}.", hint)


def translate(
    index: GraphIndex, dialect: Dialect, quant_type: str, placement: Placement
) -> Selection:
    """Quantize in a dialect what a placement of another quantizes: the same ops.

    A weighted op counts as quantized if both its operands are; another op if an input is and, where
    the dialect has no integer kernel without it, the output. What else the other dialect wants
    around an op is left out, and what this one wants is added.

    Args:
        index: The float model.
        dialect: The dialect to write.
        quant_type: One of its quant types.
        placement: A placement in any dialect's style.
    """
    effective = _transferred(index, index.effective(placement))
    tensors = {edge.tensor for edge in effective}
    positions: defaultdict[str, set[int]] = defaultdict(set)
    for edge in effective:
        positions[edge.node].add(edge.position)
    left_float: dict[str, str] = {}
    units: dict[str, Placement] = {}
    dynamic: set[str] = set()
    planner = QuantizationPlanner(index, dialect, quant_type)
    for name, node in index.node.items():
        if name in placement.dynamic:
            reason = planner.why_not_at_run_time(node)
            if reason:
                left_float[name] = reason
            else:
                dynamic.add(name)
            continue
        if not _is_quantized(index, dialect, node, positions[name], tensors):
            continue
        reason = why_not(index, dialect, node, quant_type)
        if reason:
            left_float[name] = reason
        else:
            wanted = placement.outputs.intersection(value.name or "" for value in node.outputs)
            units[name] = unit(index, dialect, node, whole=bool(wanted))
    whole = planner.placement(units) if dialect.propagates_dq else merge(units.values())
    unfused = (
        name
        for name in placement.unfused.difference(units)
        if name in index.node and is_fused_with_norm(dialect, index.node[name])
    )
    at_run_time = planner.placement((), dynamic=dynamic)
    whole = merge([whole, at_run_time, Placement.of(unfused=unfused)])
    return Selection(whole, (*units, *sorted(dynamic)), left_float)


def _transferred(index: GraphIndex, edges: frozenset[Edge]) -> frozenset[Edge]:
    """Edges, and those that see values which ops of any dialect only moved there."""
    from qdqtune.qdq.dialects import dialects  # they are made of what is here

    kinships = [SharedEncodings(index, dialect) for dialect in dialects().values()]
    before: frozenset[Edge] = frozenset()
    while edges != before:
        before = edges
        for shared in kinships:
            edges = shared.propagated(edges)
    return edges


def _is_quantized(
    index: GraphIndex, dialect: Dialect, node: ir.Node, positions: set[int], tensors: set[str]
) -> bool:
    """Whether a node with these quantized inputs, among these quantized tensors, is meant."""
    if is_op(node, *WEIGHTED_OPS):
        return positions >= {0, 1}
    rule = rule_of(dialect, node)
    if not positions or rule is None:
        return False
    return rule.output is not Output.REQUIRED or tensors.issuperset(
        unit_outputs(index, dialect, node)
    )
