"""Finds the nodes of a layer for which a build found no kernel, from TensorRT's message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir

from qdqtune.engines.tensorrt._layer_info import Layer
from qdqtune.engines.tensorrt._layer_naming import map_layers
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
    mapped = map_layers(index, [Layer(" ".join(name.split()), "") for name in names])
    found = [index.node[name] for layer in mapped for name in layer.nodes if layer.executes]
    ops = {node.name for node in found if node.op_type not in QDQ_OPS}
    ops = ops or {node.name for node in _readers(found)}
    return tuple(node.name or "" for node in index.nodes if node.name in ops)


def _readers(converting: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield the ops that read what Q and DQ convert."""
    waiting = list(converting)
    while waiting:
        for reader, _ in waiting.pop().outputs[0].uses():
            if reader.op_type in QDQ_OPS:
                waiting.append(reader)
            else:
                yield reader
