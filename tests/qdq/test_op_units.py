"""What is quantized when somebody asks for an op, a node or a tensor."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._op_units import canonical, close, unit, why_not
from qdqtune.qdq._quantization_planner import select_nodes, select_ops, select_tensors
from qdqtune.qdq.dialects import ONNXRUNTIME, TENSORRT
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Edge, Placement
from tests.conftest import model_from_text


@pytest.fixture
def index(residual: onnx.ModelProto) -> GraphIndex:
    model = ir.from_proto(residual)
    fold(model)
    return GraphIndex(model)


def test_onnxruntime_wants_whole_units(index: GraphIndex) -> None:
    conv = unit(index, ONNXRUNTIME, index.node["n3"], whole=False)
    assert conv.edges == {("r1", "n3", 0), ("w2", "n3", 1), ("b2", "n3", 2)}
    assert conv.outputs == {"c2"}


def test_a_fused_activation_belongs_to_the_unit(index: GraphIndex) -> None:
    assert unit(index, ONNXRUNTIME, index.node["n0"], whole=False).outputs == {"r1"}


def test_tensorrt_wants_inputs_only(index: GraphIndex) -> None:
    conv = unit(index, TENSORRT, index.node["n3"], whole=True)
    assert conv == Placement.of([("r1", "n3", 0), ("w2", "n3", 1)])


def test_tensorrt_keeps_conv_and_residual_add_together(index: GraphIndex) -> None:
    assert unit(index, TENSORRT, index.node["n4"], whole=True).edges == {("r1", "n4", 1)}


def test_a_point_on_the_activation_brings_the_weight(index: GraphIndex) -> None:
    point = Placement.of([("r1", "n3", 0)])
    assert Edge("w2", "n3", 1) in close(index, TENSORRT, point).edges
    assert close(index, ONNXRUNTIME, point) == point | unit(
        index, ONNXRUNTIME, index.node["n3"], whole=False
    )


def test_closing_does_not_spread_to_the_readers(index: GraphIndex) -> None:
    closed = close(index, ONNXRUNTIME, Placement.of([("x", "n0", 0)]))
    assert closed.outputs == {"r1"}
    assert not any(edge.node in ("n3", "n4") for edge in closed.edges)
    assert close(index, ONNXRUNTIME, closed) == closed


def test_canonical_form(index: GraphIndex) -> None:
    by_output = canonical(index, Placement.of(outputs=["r1"]))
    by_edges = canonical(index, Placement.of(index.readers("r1")))
    assert by_output == by_edges
    assert canonical(index, by_output) == by_output


def test_ops_share_what_they_quantize(index: GraphIndex) -> None:
    selection = select_ops(index, ONNXRUNTIME, ["Conv"])
    assert selection.quantized == ("n0", "n3")
    assert Edge("r1", "n4", 1) in selection.placement.edges  # the residual Add reads it, too


def test_ops_without_integer_kernel_are_left_with_a_reason() -> None:
    model = ir.from_proto(
        model_from_text(
            """
            g (float[1,4] x) => (float[1,4] y) {
                l = LayerNormalization(x, s, s)
                y = MatMul(l, w)
            }""",
            s=np.ones(4, np.float32), w=np.eye(4, dtype=np.float32),
        )
    )  # fmt: skip
    fold(model)
    selection = select_ops(GraphIndex(model), ONNXRUNTIME, ["LayerNormalization", "MatMul"])
    assert selection.quantized == ("n1",)
    assert "no integer kernel" in selection.left_float["n0"]


def test_passthrough_ops_follow_what_is_quantized() -> None:
    model = ir.from_proto(
        model_from_text(
            """
            g (float[1,4,2,2] x) => (float[1,4,2,2] y, float[1,2,2,4] z) {
                c = Conv(x, w)
                t = Transpose<perm=[0,1,3,2]>(c)
                y = Relu(t)
                u = Neg(x)
                z = Transpose<perm=[0,2,3,1]>(u)
            }""",
            w=np.ones((4, 4, 1, 1), np.float32),
        )
    )
    fold(model)
    selection = select_ops(GraphIndex(model), ONNXRUNTIME, ["Conv", "Transpose"])
    assert selection.quantized == ("n0", "n1")
    assert "t" in selection.placement.outputs


def test_integer_tensors_are_left_alone() -> None:
    model = ir.from_proto(
        model_from_text("g (int64[2] x) => (int64[2] y) { y = Add(x, c) }", c=np.ones(2, np.int64))
    )
    fold(model)
    index = GraphIndex(model)
    assert "not a float" in select_ops(index, ONNXRUNTIME, ["Add"]).left_float["n0"]
    with pytest.raises(UsageError, match="int64"):
        select_tensors(index, ONNXRUNTIME, ["x"])
    with pytest.raises(UsageError, match="can't be quantized"):
        select_nodes(index, ONNXRUNTIME, ["n0"])


@pytest.mark.parametrize(
    ("choose", "name", "message"),
    [
        (select_ops, "Convv", "no op type 'Convv'"),
        (select_nodes, "n33", "no node 'n33'"),
        (select_tensors, "w11", "no tensor 'w11'"),
    ],
)
def test_unknown_names_get_a_suggestion(
    index: GraphIndex, choose: type, name: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        choose(index, ONNXRUNTIME, [name])
    assert "Did you mean" in caught.value.hint


def test_tensors_bring_their_readers(index: GraphIndex) -> None:
    selection = select_tensors(index, TENSORRT, ["r1"])
    assert {("r1", "n3", 0), ("w2", "n3", 1), ("r1", "n4", 1)} <= selection.placement.edges


def test_what_only_leaves_the_graph_stays_exact_where_it_may() -> None:
    model = ir.from_proto(
        model_from_text(
            """
            g (float[1,4] x) => (float[1,4] y) {
                h = MatMul(x, w)
                y = MatMul(h, w)
            }""",
            w=np.eye(4, dtype=np.float32),
        )
    )
    fold(model)
    placement = select_ops(GraphIndex(model), ONNXRUNTIME, ["MatMul"]).placement
    assert "h" in placement.outputs
    assert "y" not in placement.outputs


@pytest.mark.parametrize(("ops", "quantized"), [(["MatMul"], False), (["MatMul", "Softmax"], True)])
def test_what_a_softmax_reads_stays_float_unless_it_is_chosen(
    ops: list[str], quantized: bool
) -> None:
    model = ir.from_proto(
        model_from_text(
            """
            g (float[4,4] x) => (float[4,4] y) {
                h = MatMul(x, w)
                p = Softmax(h)
                y = MatMul(p, w)
            }""",
            w=np.eye(4, dtype=np.float32),
        )
    )
    fold(model)
    tensors = select_ops(GraphIndex(model), ONNXRUNTIME, ops).placement.tensors
    assert ("h" in tensors) == quantized


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (3, 5)])
def test_a_bias_of_another_shape_is_not_quantized(shape: tuple[int, ...]) -> None:
    model = ir.from_proto(
        model_from_text(
            "g (float[3,8] x) => (float[3,5] y) { y = Gemm(x, w, b) }",
            w=np.ones((8, 5), np.float32),
            b=np.ones(shape, np.float32),
        )
    )
    fold(model)
    selection = select_ops(GraphIndex(model), ONNXRUNTIME, ["Gemm"])
    assert not selection.quantized
    assert "one value per channel" in selection.left_float["n0"]


def test_an_operand_without_elements_is_not_quantized() -> None:
    """There would be no scale for any of its channels."""
    text = "g (float[4,16] x) => (float[4,0] y) { y = MatMul(x, w) }"
    index = GraphIndex(ir.from_proto(model_from_text(text, w=np.zeros((16, 0), np.float32))))
    (node,) = index.nodes
    assert "has no elements" in why_not(index, ONNXRUNTIME, node, "int8")
