"""Random graphs, and layers that an engine could have told of them, or never would."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdqtune.graph._index import GraphIndex
from qdqtune.records._layers import BETWEEN, NAMED, PART, UNKNOWN, MappedLayer
from tests.autotune.graphs import index_of

_OPS = ("MatMul", "Weighted", "Add", "Relu", "Relu", "Transpose", "Softmax", "Pair", "Expand")


def random_graph(rng: random.Random, size: int) -> GraphIndex:
    """About so many ops of all roles on 4x4 matrices; they read what is near, or anything."""
    nodes: list[onnx.NodeProto] = []
    made = ["x"]
    constants = ["w"]

    def put(op_type: str, *inputs: str, **attributes: int) -> str:
        number = len(nodes)
        output = f"t{number}"
        nodes.append(helper.make_node(op_type, inputs, [output], name=f"n{number}", **attributes))
        return output

    def near() -> str:
        return rng.choice(made[-4:] if rng.random() < 0.8 else made)

    while len(nodes) < size:
        kind = rng.choice(_OPS)
        if kind == "Weighted":
            if rng.random() < 0.3:
                constants.append(put("Relu", rng.choice(constants)))
            made.append(put("MatMul", near(), rng.choice(constants)))
        elif kind == "Pair":
            quantized = put("QuantizeLinear", near(), "scale", "zero")
            made.append(put("DequantizeLinear", quantized, "scale", "zero"))
        elif kind == "Expand":
            sizes = put("Shape", near())
            made.append(put("Expand", near(), put("Identity", sizes)))
        elif kind in ("MatMul", "Add"):
            made.append(put(kind, near(), near()))
        else:
            made.append(put(kind, near()))
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])],
        [helper.make_tensor_value_info(made[-1], TensorProto.FLOAT, [4, 4])],
        [
            numpy_helper.from_array(np.ones((4, 4), np.float32), "w"),
            numpy_helper.from_array(np.float32(0.1), "scale"),
            numpy_helper.from_array(np.int8(0), "zero"),
        ],
    )
    return index_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def random_layers(rng: random.Random, index: GraphIndex, count: int) -> list[MappedLayer]:
    """Runs of nodes, overlapping ones, far-fetched ones, and some that are not in the model."""
    names = [node.name or "" for node in index.nodes]
    popular = rng.sample(names, min(2, len(names)))
    layers = []
    for number in range(count):
        start = rng.randrange(len(names))
        nodes = names[start : start + rng.randint(1, 6)]
        if rng.random() < 0.3:
            nodes = rng.sample(names, min(len(names), rng.randint(1, 5)))
        if rng.random() < 0.3:
            nodes = [*nodes, *popular]
        if rng.random() < 0.1:
            nodes = [*nodes, "nobody", nodes[0]]
        how = rng.choice((NAMED, NAMED, NAMED, BETWEEN, PART, UNKNOWN))
        if how == UNKNOWN:
            nodes = []
        layers.append(MappedLayer(f"layer{number}", "", 0.1, nodes=tuple(nodes), how=how))
    return layers
