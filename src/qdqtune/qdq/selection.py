"""From what a user names (op types, nodes, tensors) to a placement."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from qdqtune.graph.index import GraphIndex
from qdqtune.qdq.dialect import Dialect
from qdqtune.qdq.units import close, merge, role_rule, rule_of, unit, why_not
from qdqtune.records.errors import UsageError
from qdqtune.records.placement import Placement


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
    chosen = [node for node in index.nodes if node.op_type in op_types]
    left_float = {}
    moving: list[ir.Node] = []
    working: list[ir.Node] = []
    for node in chosen:
        if node.op_type in dialect.fused_activations and rule_of(dialect, node) is None:
            continue  # part of the op before it
        reason = why_not(index, dialect, node, quant_type)
        if reason:
            left_float[node.name or ""] = reason
        else:
            (moving if role_rule(dialect, node).same_scale else working).append(node)
    units = [unit(index, dialect, node, whole=True) for node in working]
    followers = _follow(index, dialect, moving, units)
    units += (unit(index, dialect, node, whole=True) for node in followers)
    names = tuple(node.name or "" for node in (*working, *followers))
    return Selection(_shared(index, merge(units)), names, left_float)


def select_nodes(
    index: GraphIndex, dialect: Dialect, names: Iterable[str], quant_type: str = "int8"
) -> Selection:
    """Quantize these nodes, by name.

    Raises:
        UsageError: If there is no such node, or it reads nothing that can be quantized.
    """
    units, quantized = [], []
    for name in names:
        if name not in index.node:
            raise unknown("node", name, index.node)
        placement = unit(index, dialect, index.node[name], whole=True)
        if not placement.edges:
            reason = why_not(index, dialect, index.node[name], quant_type)
            raise UsageError(f"The node {name!r} can't be quantized: {reason}.", "Leave it out.")
        units.append(placement)
        quantized.append(name)
    return Selection(merge(units), tuple(quantized))


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


def _follow(
    index: GraphIndex, dialect: Dialect, moving: list[ir.Node], units: list[Placement]
) -> list[ir.Node]:
    """The moving ops whose input is quantized, directly or through another such op."""
    quantized = set(merge(units).tensors)
    followers = []
    for node in moving:
        value = node.inputs[0]
        assert value is not None
        if value.name in quantized or index.is_constant(value.name or ""):
            followers.append(node)
            quantized.update(unit(index, dialect, node, whole=True).outputs)
    return followers


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
