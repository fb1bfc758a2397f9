"""Whether single tensors are insertion points, and for which consumers."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from qdqtune.autotune.patterns.eligibility import why_not
from qdqtune.autotune.patterns.insertion_points import edge_with_operand
from qdqtune.autotune.patterns.resolved import ResolvedInsertionPoint
from qdqtune.autotune.regions.region import Region
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import QDQ_OPS
from qdqtune.qdq.dialects import DIALECTS


def get_autotuner_quantizable_ops() -> set[str]:
    """Op types for which some engine has an integer kernel."""
    return {op_type for dialect in DIALECTS.values() for op_type in dialect.rules}


def get_autotuner_skip_ops() -> set[str]:
    """Op types of the ONNX standard whose inputs are never insertion points."""
    standard = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    return (standard | QDQ_OPS) - get_autotuner_quantizable_ops()


def skip_invalid_insertion_points(
    graph: GraphIndex, tensor_name: str, region_or_node: Region | ir.Node
) -> bool:
    """Whether a tensor is not an insertion point for a node, or for any node of a region.

    Args:
        graph: The graph.
        tensor_name: The tensor.
        region_or_node: The consumer.
    """
    return not _uses(graph, tensor_name, _positions(graph, region_or_node))


def resolve_region_io_insertion_points(
    region: Region | None, graph: GraphIndex, tensor_name: str
) -> set[ResolvedInsertionPoint]:
    """Return the edges where quantizing a tensor that enters or leaves a region can pay off.

    Args:
        region: Only its nodes are considered, unless it produces the tensor; None for the whole
            graph.
        graph: The graph.
        tensor_name: The tensor.

    Returns:
        The edges, with the other operands of weighted ops.
    """
    everywhere = range(len(graph.nodes))
    positions: Iterable[int] = everywhere
    if region is not None:
        inside = region.get_region_nodes_and_descendants()
        value = graph.value.get(tensor_name)
        producer = value.producer() if value is not None else None
        made_inside = producer is not None and graph.position[producer.name or ""] in inside
        positions = everywhere if made_inside else inside
    found: set[ResolvedInsertionPoint] = set()
    for node, position in _uses(graph, tensor_name, positions):
        found |= edge_with_operand(graph, node, position)
    return found


def _positions(graph: GraphIndex, region_or_node: Region | ir.Node) -> Iterable[int]:
    if isinstance(region_or_node, Region):
        return region_or_node.get_region_nodes_and_descendants()
    return [graph.position[region_or_node.name or ""]]


def _uses(graph: GraphIndex, tensor: str, positions: Iterable[int]) -> list[tuple[int, int]]:
    """Return where these nodes read the tensor and it can pay off: node and input positions."""
    if tensor not in graph.value:
        return []
    wanted = positions if isinstance(positions, range | set) else set(positions)
    edges = ((graph.position[e.node], e.position) for e in graph.readers(tensor) if e.node)
    return [
        (node, position)
        for node, position in edges
        if node in wanted and not why_not(graph, node, position)
    ]
