"""The placement of a file, in the terms of another dialect."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import WEIGHTED_OPS, is_op
from qdqtune.qdq.dialect import Dialect, Output
from qdqtune.qdq.op_units import merge, rule_of, unit, unit_outputs, why_not
from qdqtune.qdq.quantization_planner import QuantizationPlanner
from qdqtune.qdq.selection import Selection
from qdqtune.qdq.shared_encodings import SharedEncodings
from qdqtune.records.placement import Edge, Placement


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
    positions: dict[str, set[int]] = {}
    for edge in effective:
        if edge.node:
            positions.setdefault(edge.node, set()).add(edge.position)
    left_float: dict[str, str] = {}
    units, names = [], []
    for node in index.nodes:
        if not _is_quantized(index, dialect, node, positions.get(node.name or "", set()), tensors):
            continue
        reason = why_not(index, dialect, node, quant_type)
        if reason:
            left_float[node.name or ""] = reason
            continue
        wanted = placement.outputs.intersection(value.name or "" for value in node.outputs)
        units.append(unit(index, dialect, node, whole=bool(wanted)))
        names.append(node.name or "")
    if dialect.propagates_dq:
        units = [QuantizationPlanner(index, dialect, quant_type).placement(names)]
    return Selection(merge(units), tuple(names), left_float)


def _transferred(index: GraphIndex, edges: frozenset[Edge]) -> frozenset[Edge]:
    """Edges, and those that see values which ops of any dialect only moved there."""
    from qdqtune.qdq.dialects import DIALECTS  # they are made of what is here

    kinships = [SharedEncodings(index, dialect) for dialect in DIALECTS.values()]
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
