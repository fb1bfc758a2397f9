"""From what a user names (op types, nodes, tensors), or a file holds, to a placement."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op
from qdqtune.qdq._dialect import Dialect, Output
from qdqtune.qdq._op_units import close, merge, rule_of, unit, unit_outputs, why_not
from qdqtune.qdq._quantization_planner import QuantizationPlanner, SharedEncodings
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Edge, Placement


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
    index: GraphIndex, dialect: Dialect, op_types: Collection[str], quant_type: str = "int8"
) -> Selection:
    """Quantize every op of these types for which the dialect has an integer kernel.

    Ops that only move values follow: they are quantized where what they move already is. A
    tensor that is quantized for one op is so for all that read it: that completes the residual
    Adds between quantized Convs.

    Raises:
        UsageError: If the model has no op of a named type.
    """
    present = {node.op_type for node in index.nodes}
    for op_type in op_types:
        if op_type not in present:
            raise unknown("op type", op_type, present)
    planner = QuantizationPlanner(index, dialect, quant_type)
    chosen = [name for name in planner.units if index.node[name].op_type in op_types]
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
    return Placement(placement.edges.union(readers), placement.outputs)


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
    for name, node in index.node.items():
        if not _is_quantized(index, dialect, node, positions[name], tensors):
            continue
        reason = why_not(index, dialect, node, quant_type)
        if reason:
            left_float[name] = reason
        else:
            wanted = placement.outputs.intersection(value.name or "" for value in node.outputs)
            units[name] = unit(index, dialect, node, whole=bool(wanted))
    if dialect.propagates_dq:
        whole = QuantizationPlanner(index, dialect, quant_type).placement(units)
    else:
        whole = merge(units.values())
    return Selection(whole, tuple(units), left_float)


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
