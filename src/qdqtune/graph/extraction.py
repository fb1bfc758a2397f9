"""A subgraph of a model as a model of its own, with the shapes and types that it has in there."""

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
"""A shape; names and None are open."""


def extract(
    base: PreparedModel,
    nodes: Collection[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
    dims: Mapping[str, Dims],
) -> ir.Model:
    """Cut nodes out of a model.

    Args:
        base: The model; weights stay where it has them.
        nodes: Names of the nodes.
        inputs: Tensors that they read from others, constants left out.
        outputs: Tensors that others read of them.
        dims: Shapes of inputs and outputs; those that are missing stay open.

    Raises:
        ModelError: If a type is not known, or a node has a body, which may read anything.
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
