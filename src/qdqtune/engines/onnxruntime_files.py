"""What ONNX Runtime is given to open: the file, or what it makes of it anyway, sooner."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from qdqtune.graph.proto_walk import nodes_within

# ONNX Runtime drops weights that nothing reads, and searches a list of all for each. Seen: 0.7 s
# for 20,000 of them, 50 s for 100,000.
_MANY = 10_000
# So many take more than this; larger files hold weights of a size that is worth no second look.
_SMALLEST_FILE, _LARGEST_FILE = 100_000, 256 << 20


def to_open(path: str) -> str | bytes:
    """The file, or its content without weights that nothing reads if there are very many.

    Args:
        path: The model file.
    """
    try:
        if not _SMALLEST_FILE < os.path.getsize(path) < _LARGEST_FILE:
            return path
        model = onnx.ModelProto.FromString(Path(path).read_bytes())
    except (OSError, DecodeError):
        return path  # the engine says what is wrong with it
    graph = model.graph
    if len(graph.initializer) < _MANY:
        return path
    read = {name for node in nodes_within(graph.node) for name in node.input}
    read.update(value.name for value in (*graph.input, *graph.output))
    for node in nodes_within(graph.node):
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                read.update(value.name for value in body.output)
    weights = [tensor for tensor in graph.initializer if tensor.name in read]
    is_beside = any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in weights)
    if is_beside or len(graph.initializer) - len(weights) < _MANY:
        return path  # content has no folder in which external data could be found
    del graph.initializer[:]
    graph.initializer.extend(weights)
    content: bytes = model.SerializeToString()
    return content
