"""Lets ONNX Runtime open a model with very many weights in seconds instead of minutes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import onnx
from google.protobuf.message import DecodeError

from qdqtune.graph.proto_walk import nodes_within

# ONNX Runtime removes unused weights, and searches a list of all weights for each: 0.7 s for 20,000
# of them, 50 s for 100,000.
_MANY = 10_000
# A smaller file can't hold that many weights; in a larger one, other costs dominate.
_SMALLEST_FILE, _LARGEST_FILE = 100_000, 256 << 20
# Merges equal small constants, and compares with all others for each one that it changes. Of the
# 17.6 s for 20,000 Adds with a weight each, 2.6 s remain without it.
_SLOW_WITH_MANY = ("ConstantSharing",)
# It also frees the weights of an open model one by one, each after a search for its name, unless
# it writes the optimized model: 42 s for 100,000 weights, 3 s without.
_WRITES_NOTHING = os.devnull


class ToOpen(NamedTuple):
    """Arguments for creating a session.

    Attributes:
        model: The file, or its content without unused weights.
        without: Optimizers that would take minutes for this model without a gain.
        optimized_path: Where the optimized model is written, unless the caller sets another path.
    """

    model: str | bytes
    without: Sequence[str] = ()
    optimized_path: str = ""


def to_open(path: str) -> ToOpen:
    """Return the file itself, unless it has very many weights.

    Args:
        path: The model file.
    """
    try:
        if not _SMALLEST_FILE < os.path.getsize(path) < _LARGEST_FILE:
            return ToOpen(path)
        model = onnx.ModelProto.FromString(Path(path).read_bytes())
    except (OSError, DecodeError):
        return ToOpen(path)  # the engine reports what is wrong with it
    if len(model.graph.initializer) < _MANY:
        return ToOpen(path)
    return ToOpen(_without_unread_weights(model) or path, _SLOW_WITH_MANY, _WRITES_NOTHING)


def _without_unread_weights(model: onnx.ModelProto) -> bytes | None:
    """Return the content without unused weights; None if they are few, or weights are external."""
    graph = model.graph
    read = {name for node in nodes_within(graph.node) for name in node.input}
    read.update(value.name for value in (*graph.input, *graph.output))
    for node in nodes_within(graph.node):
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                read.update(value.name for value in body.output)
    weights = [tensor for tensor in graph.initializer if tensor.name in read]
    is_beside = any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in weights)
    if is_beside or len(graph.initializer) - len(weights) < _MANY:
        return None  # without a file there is no folder to find external data in
    del graph.initializer[:]
    graph.initializer.extend(weights)
    content: bytes = model.SerializeToString()
    return content
