"""Finds the nodes of a layer for which a build found no kernel, from TensorRT's message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir

from qdqtune.engines.tensorrt._layer_info import Layer
from qdqtune.engines.tensorrt._layer_naming import NodeNames, map_layers
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import QDQ_OPS

# Names have dots in them, too: the one that ends the sentence is not followed by a name.
_NO_KERNEL = re.compile(
    r"Could not find any implementation for node (?P<layer>.+?)"
    r"(?: due to insufficient workspace)?\.(?=[);\s]|$)",
    re.DOTALL,
)


def refused_nodes(path: str, message: str) -> tuple[str, ...]:
    """Return the ops of the layers for which a build found no kernel.

    Args:
        path: The model file; only its structure is read.
        message: Why it could not be built, in TensorRT's words.

    Returns:
        Names of nodes in the model's order, Q and DQ left out; if a layer consists of these alone,
        the ops that read what they convert. Empty if the message names no layer of the model.
    """
    names = dict.fromkeys(_NO_KERNEL.findall(message))
    if not names:
        return ()
    index = GraphIndex(ir.from_proto(onnx.load(path, load_external_data=False)))
    layers = [Layer(" ".join(name.split()), "") for name in names]
    found = [node for layer in layers for node in _nodes_of(index, layer)]
    ops = {node.name for node in found if node.op_type not in QDQ_OPS}
    ops = ops or {node.name for node in _readers(found)}
    return tuple(node.name or "" for node in index.nodes if node.name in ops)


def _nodes_of(index: GraphIndex, layer: Layer) -> Iterator[ir.Node]:
    """Yield the nodes of a layer.

    One that was compiled as a whole is named after what it begins with in the model's order. If
    that is a weight, it begins with the first op that uses it; what is before may be moved into it,
    such as a Transpose, but also be all of the model.
    """
    whole, first = NodeNames(index).whole(layer), 0
    if whole is not None and not whole.first:
        users = _readers(index.node[name] for name in whole.readers)
        first = min((index.position[node.name or ""] for node in users), default=0)
    for part in map_layers(index, [layer]):
        for name in part.nodes if part.executes else ():
            if index.position[name] >= first:
                yield index.node[name]


def _readers(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield the ops among some nodes; instead of Q and DQ, those that read what they convert."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node.op_type in QDQ_OPS:
            waiting += [reader for reader, _ in node.outputs[0].uses()]
        else:
            yield node
