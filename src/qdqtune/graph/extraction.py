"""Extraction of a subgraph as a separate model, with its shapes and types."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx
import onnx_ir as ir
from onnx.helper import make_tensor_value_info

from qdqtune.graph.control_flow_bodies import has_body
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.prepared_model import PreparedModel
from qdqtune.records.errors import ModelError

Dims = Sequence["int | str | None"]
"""A shape; names and None are open dims."""


def extract(
    base: PreparedModel,
    nodes: Collection[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
    dims: Mapping[str, Dims],
) -> ir.Model:
    """Extract nodes from a model.

    Args:
        base: The model; its weights are referenced, not copied.
        nodes: Names of the nodes.
        inputs: Tensors that they read from other nodes, except constants.
        outputs: Their tensors that other nodes read.
        dims: Shapes of inputs and outputs; missing ones stay open.

    Raises:
        ModelError: If a type is unknown, or a node has a body, which may read anything.
    """
    index = base.index
    wanted = sorted(nodes, key=index.position.__getitem__)
    if any(has_body(index.node[name]) for name in wanted):
        raise ModelError("A subgraph with control flow can't be cut out.", "It stays float.")
    proto = onnx.ModelProto.FromString(base.assemble((), ()))
    del proto.metadata_props[:]
    graph = proto.graph
    del graph.input[:], graph.output[:]
    graph.name = "subgraph"
    for name in wanted:
        graph.node.add().CopyFrom(base.nodes[index.position[name]])
    read = {tensor for node in graph.node for tensor in node.input if tensor}
    for tensor in sorted(read & base.constant_parts.keys()):
        graph.MergeFromString(base.constant_parts[tensor])
    graph.input.extend(_info(index, tensor, dims.get(tensor)) for tensor in inputs)
    graph.output.extend(_info(index, tensor, dims.get(tensor)) for tensor in outputs)
    model = base.load(proto.SerializeToString())
    for value in (value for node in model.graph for value in node.outputs):
        known = index.value.get(value.name or "")
        if known is not None and value.shape is None:
            value.type, value.shape = known.type, known.shape
    return model


def _info(index: GraphIndex, tensor: str, dims: Dims | None) -> onnx.ValueInfoProto:
    dtype = index.dtype(tensor)
    if dtype is None:
        raise ModelError(f"The type of {tensor!r} is not known.", "The subgraph stays float.")
    return make_tensor_value_info(tensor, dtype.value, dims)
