"""Random small models and placements of them, for property tests."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq._op_units import merge, role_rule, unit
from qdqtune.records._placement import Edge, Placement

CHANNELS, SIZE = 4, 4
SHAPE = [1, CHANNELS, SIZE, SIZE]


@st.composite
def small_models(draw: st.DrawFn) -> onnx.ModelProto:
    """A DAG of convs, adds, moves and activations over tensors of one shape.

    Weights and biases may be shared; tensors may have many readers, be read twice by one node,
    and be graph outputs and inner tensors at once.
    """
    nodes: list[onnx.NodeProto] = []
    tensors = ["x"]
    for position in range(draw(st.integers(1, 8))):
        source = draw(st.sampled_from(tensors))
        result = f"t{position}"
        kind = draw(
            st.sampled_from(
                ["Conv", "ConvBias", "Relu", "Add", "Mul", "AddConst", "Move", "MatMul"]
            )
        )
        weight = f"w{draw(st.integers(0, 2))}"
        name = f"n{position}"
        if kind == "Conv":
            nodes.append(helper.make_node("Conv", [source, weight], [result], name))
        elif kind == "ConvBias":
            bias = f"b{draw(st.integers(0, 1))}"
            nodes.append(helper.make_node("Conv", [source, weight, bias], [result], name))
        elif kind == "Relu":
            nodes.append(helper.make_node("Relu", [source], [result], name))
        elif kind in ("Add", "Mul"):
            other = draw(st.sampled_from(tensors))
            nodes.append(helper.make_node(kind, [source, other], [result], name))
        elif kind == "AddConst":
            nodes.append(helper.make_node("Add", [source, "c0"], [result], name))
        elif kind == "Move":
            nodes.append(helper.make_node("Transpose", [source], [result], name, perm=[0, 1, 3, 2]))
        else:
            matrix = f"m{draw(st.integers(0, 1))}"
            nodes.append(helper.make_node("MatMul", [source, matrix], [result], name))
        tensors.append(result)
    read = {name for node in nodes for name in node.input}
    inner = [name for name in tensors[1:] if name in read]
    outputs = [name for name in tensors[1:] if name not in read]
    outputs += draw(st.lists(st.sampled_from(inner), max_size=2, unique=True)) if inner else []
    return _assemble(nodes, outputs)


def _assemble(nodes: list[onnx.NodeProto], outputs: list[str]) -> onnx.ModelProto:
    rng = np.random.default_rng(7)
    constants = {f"w{i}": rng.normal(size=(CHANNELS, CHANNELS, 1, 1)) for i in range(3)}
    constants |= {f"b{i}": rng.normal(size=CHANNELS) for i in range(2)}
    constants |= {"c0": rng.normal(size=SHAPE)}
    constants |= {f"m{i}": rng.normal(size=(SIZE, SIZE)) for i in range(2)}
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in outputs],
        [
            numpy_helper.from_array(array.astype(np.float32), name)
            for name, array in constants.items()
            if name in used
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def all_edges(index: GraphIndex) -> list[Edge]:
    """Every edge of a model that could be quantized."""
    return sorted(
        edge
        for name, value in index.value.items()
        for edge in index.readers(name)
        if index.is_float(name) and (edge.node or value.producer() is not None)
    )


def draw_placement(draw: st.DrawFn, index: GraphIndex, dialect: Dialect) -> Placement:
    """Any placement that can be written: loose edges, output bits and whole units."""

    def is_bias(edge: Edge) -> bool:
        node = index.node.get(edge.node)
        return node is not None and edge.position == role_rule(dialect, node).bias

    edges = [edge for edge in all_edges(index) if not is_bias(edge)]
    loose = draw(st.lists(st.sampled_from(edges), unique=True)) if edges else []
    produced = [value.name for node in index.nodes for value in node.outputs if value.name]
    outputs = draw(st.lists(st.sampled_from(produced), unique=True, max_size=3))
    nodes: list[ir.Node] = draw(st.lists(st.sampled_from(list(index.nodes)), unique=True))
    units = [unit(index, dialect, node, whole=draw(st.booleans())) for node in nodes]
    return merge([Placement.of(loose, outputs), *units])
