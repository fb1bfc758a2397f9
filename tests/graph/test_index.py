"""The index answers from the graph's wiring alone."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from hypothesis import given

from qdqtune.graph._index import GraphIndex
from qdqtune.records._errors import ModelError
from qdqtune.records._placement import Edge, Placement
from tests.conftest import model_from_text
from tests.models import small_models


def test_readers_count_the_graph_outputs_and_double_reads() -> None:
    proto = model_from_text(
        "g (float[2] x) => (float[2] a, float[2] y) { a = Neg(x) y = Mul(a, a) }"
    )
    index = GraphIndex(ir.from_proto(proto))
    assert set(index.readers("a")) == {Edge("a", "n1", 0), Edge("a", "n1", 1), Edge("a", "", 0)}
    assert index.readers("y") == (Edge("y", "", 1),)


def test_constness_shapes_and_types(residual: onnx.ModelProto) -> None:
    index = GraphIndex(ir.from_proto(residual))
    assert index.is_constant("w1")
    assert not index.is_constant("x")
    assert index.shape("w1") == (4, 3, 3, 3)
    assert index.shape("x") == (1, 3, 8, 8)
    assert index.shape("c1") is None
    assert index.is_float("x")
    assert index.position["n3"] == 3


def test_bodies_are_outside_readers() -> None:
    proto = model_from_text(
        """
        g (float[2] x, bool cond) => (float[2] y) {
            a = Neg(x)
            y = If(cond) <
                then_branch = t () => (float[2] p) { p = Relu(a) },
                else_branch = e () => (float[2] q) { q = Abs(x) }
            >
        }"""
    )
    index = GraphIndex(ir.from_proto(proto))
    assert index.read_by_body("a")
    assert index.readers("a") == ()
    assert not index.read_by_body("cond")


def test_nodes_without_names_are_refused(residual: onnx.ModelProto) -> None:
    residual.graph.node[2].name = ""
    model = ir.from_proto(residual)
    model.graph[2].name = None
    with pytest.raises(ModelError, match="no name of its own"):
        GraphIndex(model)


@given(proto=small_models())
def test_an_output_bit_is_all_readers(proto: onnx.ModelProto) -> None:
    index = GraphIndex(ir.from_proto(proto))
    for name in index.value:
        assert index.effective(Placement.of(outputs=[name])) == set(index.readers(name))


@given(proto=small_models())
def test_every_input_of_every_node_is_a_reader(proto: onnx.ModelProto) -> None:
    index = GraphIndex(ir.from_proto(proto))
    edges = {edge for name in index.value for edge in index.readers(name)}
    expected = {
        Edge(name, node.name, position)
        for node in proto.graph.node
        for position, name in enumerate(node.input)
    }
    expected |= {Edge(value.name, "", i) for i, value in enumerate(proto.graph.output)}
    assert edges == expected
