"""A placement in the terms of quantizers that know nodes and op types, not edges."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from qdqtune.graph.index import GraphIndex
from qdqtune.records.placement import Edge

#: Node names and op types to quantize, inputs to leave float, op types with quantized outputs.
OrtSettings = tuple[list[str], list[str], list[tuple[ir.Node, ir.Node, str]], list[str]]

# The op types that such a quantizer takes for fp8.
_FP8_OPS = frozenset({"Add", "Conv", "Gemm", "MatMul"})


def ort_settings(index: GraphIndex, edges: Collection[Edge], quant_type: str) -> OrtSettings:
    """Describe a placement by nodes; single edges are what such quantizers are told to leave out.

    Args:
        index: The graph.
        edges: Every edge that sees a quantized value.
        quant_type: What it is quantized to.

    Returns:
        Names of the nodes that read something quantized; their op types; inputs of those nodes
        that stay float all the same, as maker, reader and tensor; op types of nodes that read
        nothing quantized, but whose result is.
    """
    wanted = set(edges)
    readers = {edge.node for edge in wanted if edge.node}
    if quant_type == "fp8":
        readers = {name for name in readers if index.node[name].op_type in _FP8_OPS}
    nodes = [node for node in index.nodes if node.name in readers]
    makers = [index.value[tensor].producer() for tensor in sorted({e.tensor for e in wanted})]
    outputs = {node.op_type for node in makers if node is not None and node.name not in readers}
    left_float = []
    for node in nodes:
        for position, value in enumerate(node.inputs):
            name = value.name or "" if value is not None else ""
            producer = index.value[name].producer() if name else None
            is_quantized = Edge(name, node.name or "", position) in wanted
            if producer is not None and not is_quantized and index.is_float(name):
                left_float.append((producer, node, name))
    op_types = sorted({node.op_type for node in nodes})
    return [node.name or "" for node in nodes], op_types, left_float, sorted(outputs)
