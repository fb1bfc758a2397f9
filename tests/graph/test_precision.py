"""Float32, float16 and bfloat16: what changes, what stays, and what comes out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtune import zoo
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._index import name_nodes
from qdqtune.graph._precision import compute_in_float32, convert_precision
from qdqtune.records._errors import UsageError
from qdqtune.records._precision import Precision, PrecisionReport
from tests.conftest import model_from_text
from tests.models import small_models
from tests.zoo.runs import SMALL
from tests.zoo.runs import random_inputs as zoo_inputs

FP32, FP16, BF16 = Precision.FP32, Precision.FP16, Precision.BF16
HALVES = pytest.mark.parametrize("half", [FP16, BF16])
FLOAT, FLOAT16 = ir.DataType.FLOAT, ir.DataType.FLOAT16
DTYPE = {FP32: FLOAT, FP16: FLOAT16, BF16: ir.DataType.BFLOAT16}


def converted(
    proto: onnx.ModelProto, precision: Precision = FP16, **settings: Any
) -> tuple[ir.Model, PrecisionReport]:
    """A converted copy, valid in every respect."""
    model = ir.from_proto(proto)
    name_nodes(model)
    report = convert_precision(model, precision, **settings)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return model, report


def types(model: ir.Model) -> dict[str, ir.DataType | None]:
    graph = model.graph
    values = [*graph.inputs, *graph.initializers.values()]
    values += [value for node in graph for value in node.outputs]
    return {value.name or "": value.dtype for value in values}


def ops(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def run(model: ir.Model, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    """What ONNX Runtime makes of it, half precision rounded op by op."""
    model = model.clone()
    compute_in_float32(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def decibels(reference: np.ndarray, actual: np.ndarray) -> float:
    wide = reference.astype(np.float64)
    noise = ((actual.astype(np.float64) - wide) ** 2).sum()
    return float(10 * np.log10((wide**2).sum() / noise)) if noise else np.inf


def test_inputs_and_outputs_keep_names_and_types() -> None:
    proto = model_from_text("g (float[2] x) => (float[2] y, float[2] x) { y = Relu(x) }")
    model, report = converted(proto)
    assert [value.name for value in model.graph.outputs] == ["y", "x"]
    assert {value.dtype for value in (*model.graph.inputs, *model.graph.outputs)} == {FLOAT}
    assert ops(model) == {"Cast": 2, "Relu": 1}
    assert report.converted == ("n0",)
    assert report.casts == 2


def test_inputs_and_outputs_are_converted_when_asked() -> None:
    proto = model_from_text("g (float[2] x, int64 i) => (float[2] y, float[2] x) { y = Relu(x) }")
    model, _ = converted(proto, keep_io=False)
    assert [value.name for value in model.graph.outputs] == ["y", "x"]
    assert [value.dtype for value in model.graph.inputs] == [FLOAT16, ir.DataType.INT64]
    assert ops(model) == {"Relu": 1}


def test_an_output_that_is_read_inside_as_well() -> None:
    proto = model_from_text("g (float[2] x) => (float[2] h, float[2] y) { h=Relu(x) y=Neg(h) }")
    model, _ = converted(proto)
    relu, neg = (node for node in model.graph if node.op_type != "Cast")
    assert neg.inputs[0] is relu.outputs[0]
    assert [value.name for value in model.graph.outputs] == ["h", "y"]
    x = np.array([-1.5, 2.5], np.float32)
    np.testing.assert_array_equal(run(model, x=x)["y"], [-0.0, -2.5])


@HALVES
def test_weights_are_cast_beforehand(half: Precision) -> None:
    w = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    proto = model_from_text("g (float[1,4] x) => (float[1,4] y) { y = MatMul(x, w) }", w=w)
    model, _ = converted(proto, half)
    weight = model.graph.initializers["w"].const_value
    assert weight is not None
    assert weight.dtype == DTYPE[half]
    np.testing.assert_array_equal(weight.numpy(), w.astype(DTYPE[half].numpy()))
    assert ops(model) == {"Cast": 2, "MatMul": 1}


def test_a_large_weight_is_cast_when_it_is_wanted() -> None:
    w = np.ones((64, 64), np.float32)
    proto = model_from_text("g (float[1,64] x) => (float[1,64] y) { y = MatMul(x, w) }", w=w)
    model, _ = converted(proto)
    assert isinstance(model.graph.initializers["w"].const_value, ir.LazyTensor)


def test_a_weight_that_is_read_in_both_types_is_stored_twice() -> None:
    proto = model_from_text(
        "g (float[4] x) => (float[4] y) { a = Mul(x, w) b = Add(a, w) y = Sub(b, w) }",
        w=np.arange(4, dtype=np.float32),
    )
    model, report = converted(proto, keep_nodes=["n1"])
    found = types(model)
    assert {found["w"], found["w_fp16"]} == {FLOAT, FLOAT16}
    assert len(model.graph.initializers) == 2
    assert report.kept == {"n1": "asked for by name"}


@pytest.mark.parametrize(
    "node", ["Add(x, c)", "Where(b, x, c)", "Mul(x, c)", "Max(x, c)", "Clip(x, c)"]
)
@pytest.mark.parametrize("number", [-1e9, float(np.finfo(np.float32).min)])
@HALVES
def test_masks_saturate(node: str, number: float, half: Precision) -> None:
    proto = model_from_text(
        f"g (float[4] x, bool[4] b) => (float[4] y) {{ y = {node} }}",
        c=np.array(number, np.float32),
    )
    model, report = converted(proto, half)
    tensor = model.graph.initializers["c"].const_value
    assert tensor is not None
    largest = 65504 if half is FP16 else float(np.finfo(np.float32).max)
    assert -largest <= float(tensor.numpy()) < -60000
    fits = half is BF16 and number == -1e9
    assert report.saturated == (() if fits else ("c",))


def test_infinity_stays_infinite() -> None:
    proto = model_from_text(
        "g (float[2] x, bool[2] b) => (float[2] y) { y = Where(b, x, c) }",
        c=np.array(-np.inf, np.float32),
    )
    model, report = converted(proto)
    assert model.graph.initializers["c"].const_value.numpy() == -np.inf
    assert report.saturated == ()


@pytest.mark.parametrize("node", ["Mul(x, c)", "Div(x, c)"])
def test_a_factor_beyond_the_range_is_no_mask(node: str) -> None:
    proto = model_from_text(
        f"g (float[2] x) => (float[2] y) {{ y = {node} }}", c=np.array(1e6, np.float32)
    )
    model, report = converted(proto)
    assert report.kept == {"n0": "a constant too large for float16"}
    assert not report.modified
    assert types(model)["c"] == FLOAT


EPSILON = """
    g (float[1,4] x) => (float[1,4] y) {
        h = Relu(x)
        s = Abs(h)
        e = Add(s, eps)
        r = Sqrt(e)
        d = Div(h, r)
        y = Neg(d)
    }"""


def test_an_epsilon_keeps_its_division_float32() -> None:
    proto = model_from_text(EPSILON, eps=np.array(1e-12, np.float32))
    model, report = converted(proto)
    assert set(report.kept) == {"n2", "n3", "n4"}
    zeros = np.zeros((1, 4), np.float32)
    np.testing.assert_array_equal(run(model, x=zeros)["y"], -zeros)
    assert converted(proto, BF16)[1].kept == {}  # bfloat16 has numbers as small as float32


def test_zero_is_not_too_small() -> None:
    text = "g (float[2] x) => (float[2] y) { y = Clip(x, low, high) }"
    proto = model_from_text(text, low=np.float32(0).reshape(()), high=np.float32(6).reshape(()))
    assert converted(proto)[1].kept == {}


@HALVES
@pytest.mark.parametrize("square", ["Pow(c, two)", "Mul(c, c)"])
def test_a_layer_norm_in_parts_does_not_overflow(square: str, half: Precision) -> None:
    proto = model_from_text(
        f"""
        g (float[1,64] x) => (float[1,64] y) {{
            m = ReduceMean<axes=[-1]>(x)
            c = Sub(x, m)
            q = {square}
            v = ReduceMean<axes=[-1]>(q)
            e = Add(v, eps)
            r = Sqrt(e)
            d = Div(c, r)
            y = Mul(d, gamma)
        }}""",
        two=np.array(2, np.float32),
        eps=np.array(1e-5, np.float32),
        gamma=np.linspace(0.5, 2, 64, dtype=np.float32),
    )
    model, report = converted(proto, half)
    assert set(report.kept) == {"n2", "n3", "n4", "n5", "n6"}
    assert set(report.kept.values()) == {"a sum of squares, or what is divided by it"}
    x = 1000 * np.random.default_rng(0).normal(size=(1, 64)).astype(np.float32)
    reference = run(ir.from_proto(proto), x=x)["y"]
    assert decibels(reference, run(model, x=x)["y"]) > (50 if half is FP16 else 35)


def test_what_schemas_forbid_stays() -> None:
    proto = model_from_text(
        """
        g (float[1,5,4] boxes, float[1,1,5] scores) => (int64[N,3] picked, float[5] steps) {
            b = Relu(boxes)
            s = Sigmoid(scores)
            picked = NonMaxSuppression(b, s)
            r = Range(zero, five, one)
            steps = Neg(r)
        }""",
        zero=np.array(0, np.float32),
        five=np.array(5, np.float32),
        one=np.array(1, np.float32),
    )
    model, report = converted(proto)
    assert report.kept == {
        "n2": "NonMaxSuppression has no float16 form in opset 17",
        "n3": "Range has no float16 form in opset 17",
    }
    assert report.converted == ("n0", "n1", "n4")
    assert types(model)["r"] == FLOAT


@HALVES
def test_resize_changes_its_image_and_not_its_scales(half: Precision) -> None:
    proto = model_from_text(
        "g (float[1,1,2,2] x) => (float[1,1,4,4] y) { y = Resize(x, roi, scales) }",
        roi=np.zeros(0, np.float32),
        scales=np.array([1, 1, 2, 2], np.float32),
    )
    model, report = converted(proto, half)
    found = types(model)
    assert (found["roi"], found["scales"], found["x_" + half.value]) == (FLOAT, FLOAT, DTYPE[half])
    assert report.converted == ("n0",)
    assert report.casts == 2


def test_bfloat16_needs_a_newer_opset() -> None:
    w = np.ones((1, 1, 1, 1), np.float32)
    proto = model_from_text("g (float[1,1,2,2] x) => (float[1,1,2,2] y) { y = Conv(x, w) }", w=w)
    model, report = converted(proto, BF16)
    assert report.opset == model.opset_imports[""] == 22
    assert report.converted == ("n0",)
    assert converted(proto, FP16)[1].opset is None


@pytest.mark.parametrize(
    ("nodes", "attribute"),
    [
        ("h = Cast<to=1>(i)", "to"),
        ("s = Shape(i) h = ConstantOfShape(s)", "value"),
        ("s = Shape(i) h = ConstantOfShape<value = float[1] {2.0}>(s)", "value"),
        ("h = Constant<value = float[2] {1.0, 2.0}>()", "value"),
        ("h = Constant<value_floats = [1.0, 2.0]>()", "value"),
        ("h = RandomUniform<shape=[2]>()", "dtype"),
        ("h = RandomNormalLike<dtype=1>(i)", "dtype"),
    ],
)
def test_ops_that_choose_their_type_choose_another(nodes: str, attribute: str) -> None:
    proto = model_from_text(f"g (int64[2] i) => (float[2] y) {{ {nodes} y = Relu(h) }}")
    model, report = converted(proto)
    (relu,) = (node for node in model.graph if node.op_type == "Relu")
    assert relu.inputs[0].dtype == FLOAT16
    assert attribute in relu.inputs[0].producer().attributes
    assert report.casts == 1


def test_a_mask_from_nowhere_saturates() -> None:
    proto = model_from_text(
        """g (float[2] x, int64[1] s) => (float[2] y) {
            c = ConstantOfShape<value = float[1] {-3.4e38}>(s)
            y = Add(x, c)
        }"""
    )
    model, _ = converted(proto)
    x = np.ones(2, np.float32)
    np.testing.assert_array_equal(run(model, x=x, s=np.array([2]))["y"], [-65504, -65504])


def test_sizes_computed_in_floats_are_exact() -> None:
    proto = model_from_text(
        """g (float[1,N] x) => (int64[2] s, float[1,N] y) {
            i = Shape(x)
            f = Cast<to=1>(i)
            g1 = Mul(f, two)
            h = Floor(g1)
            s = Cast<to=7>(h)
            y = Relu(x)
        }""",
        two=np.array(2, np.float32),
    )
    model, report = converted(proto)
    assert set(report.kept) == {"n2", "n3"}
    assert run(model, x=np.zeros((1, 4099), np.float32))["s"].tolist() == [2, 8198]


def test_angles_of_positions_are_exact_and_embeddings_are_not() -> None:
    proto = model_from_text(
        """g (int64[1] p) => (float[1,4] y) {
            f = Cast<to=1>(p)
            a = Mul(f, w)
            s = Sin(a)
            e = Gather(table, p)
            t = Round(e)
            y = Add(s, t)
        }""",
        w=np.ones(4, np.float32),
        table=np.ones((5000, 4), np.float32),
    )
    _, report = converted(proto)
    assert set(report.kept) == {"n1", "n2"}
    assert set(report.converted) == {"n3", "n4", "n5"}


def test_sums_of_integers_are_rescaled_in_float32() -> None:
    proto = model_from_text(
        """g (float[1,4] x) => (float[1,4] y) {
            r = Relu(x)
            q, s, z = DynamicQuantizeLinear(r)
            i = MatMulInteger(q, w, z)
            f = Cast<to=1>(i)
            scale = Mul(s, ws)
            m = Mul(f, scale)
            y = Neg(m)
        }""",
        w=np.full((4, 4), 100, np.int8),
        ws=np.array(0.01, np.float32),
    )
    model, report = converted(proto)
    assert set(report.kept) == {"n1", "n4", "n5"}
    x = np.full((1, 4), 3, np.float32)
    assert decibels(run(ir.from_proto(proto), x=x)["y"], run(model, x=x)["y"]) > 50


def qdq_model(scale: float = 0.02, **weights: np.ndarray) -> onnx.ModelProto:
    """A quantized product with its weight stored and a bias in int32, in opset 13."""
    given = {
        "s": np.array(scale, np.float32),
        "z": np.array(0, np.int8),
        "w": np.arange(-8, 8, dtype=np.int8).reshape(4, 4),
        "ws": np.array([0.01, 0.02, 0.03, 0.04], np.float32),
        "wz": np.zeros(4, np.int8),
        "b": np.array([1000, -2000, 3000, 4000], np.int32),
        "bs": np.array([2e-8, 4e-8, 6e-8, 8e-8], np.float32),
        **weights,
    }
    return model_from_text(
        """g (float[1,4] x) => (float[1,4] y) {
            r = Relu(x)
            q = QuantizeLinear(r, s, z)
            d = DequantizeLinear(q, s, z)
            wd = DequantizeLinear<axis=1>(w, ws, wz)
            bd = DequantizeLinear<axis=0>(b, bs)
            y = Gemm(d, wd, bd)
        }""",
        opset=13,
        **given,
    )


@HALVES
def test_scales_are_converted_and_what_is_quantized_is_not(half: Precision) -> None:
    model, report = converted(qdq_model(), half)
    found = types(model)
    assert found["s"] == found["ws"] == found["d"] == found["wd"] == DTYPE[half]
    assert found["bs"] == found["bd"] == FLOAT
    assert (found["w"], found["z"], found["b"]) == (*[ir.DataType.INT8] * 2, ir.DataType.INT32)
    assert report.kept == {"n4": "an int32 bias: its scale is a product of two"}
    assert report.opset is not None
    assert report.opset >= 19
    x = np.array([[0.5, 1.0, 1.5, 2.5]], np.float32)
    reference = run(ir.from_proto(qdq_model()), x=x)["y"]
    assert decibels(reference, run(model, x=x)["y"]) > (55 if half is FP16 else 40)


def test_a_pair_with_a_scale_too_small_stays_between_casts() -> None:
    model, report = converted(qdq_model(scale=1e-5))
    assert {name for name, why in report.kept.items() if "too small" in why} == {"n1", "n2"}
    assert types(model)["s"] == FLOAT
    assert converted(qdq_model(scale=1e-5), BF16)[1].kept.keys() == {"n4"}


def test_a_pair_on_an_input_has_one_scale() -> None:
    proto = model_from_text(
        """g (float[4] x) => (float[4] y) {
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            y = Relu(d)
        }""",
        s=np.array(0.1, np.float32),
        z=np.array(0, np.int8),
    )
    model, _ = converted(proto)
    assert {types(model)["s"], types(model)["x_fp16"]} == {FLOAT16}
    assert "s_fp16" not in types(model)


def test_a_pair_with_a_range_too_large_stays() -> None:
    _, report = converted(qdq_model(scale=600.0))
    assert {name for name, why in report.kept.items() if "too large" in why} == {"n1", "n2"}


BODY = """
    g (float[2] x, bool c) => (float[2] y) {
        h = Relu(x)
        k = Neg(w)
        i = If(c) <
            then_branch = t () => (float[2] a) { a = Add(h, w) },
            else_branch = e () => (float[2] b) { b = Identity(h) }
        >
        y = Add(i, h)
    }"""


@HALVES
def test_bodies_see_what_they_saw(half: Precision) -> None:
    proto = model_from_text(BODY, w=np.array([1, 2], np.float32))
    model, report = converted(proto, half)
    assert report.kept == {"n2": "control flow"}
    assert {"n0", "n3"} <= set(report.converted)
    x = np.array([-3, 4], np.float32)
    for c in (np.array(True), np.array(False)):
        reference = run(ir.from_proto(proto), x=x, c=c)["y"]
        np.testing.assert_array_equal(run(model, x=x, c=c)["y"], reference)


def test_a_body_that_returns_an_outer_value() -> None:
    proto = model_from_text(
        """g (float[2] x, bool c) => (float[2] y) {
            h = Relu(x)
            i = If(c) <
                then_branch = t () => (float[2] a) { a = Neg(h) },
                else_branch = e () => (float[2] b) { b = Neg(h) }
            >
            y = Add(i, h)
        }"""
    )
    model = ir.from_proto(proto)
    (branch,) = (node for node in model.graph if node.op_type == "If")
    outer = next(iter(model.graph)).outputs[0]
    branch.attributes["else_branch"].as_graph().outputs[0] = outer
    convert_precision(model, FP16)
    assert branch.attributes["else_branch"].as_graph().outputs[0].dtype == FLOAT


def test_other_domains_and_functions_stay() -> None:
    proto = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1, "own": 1]>
        g (float[2,2] x) => (float[2,2] y) {
            a = Relu(x)
            b = com.microsoft.FusedMatMul(a, a)
            c = own.twice(b)
            y = Neg(c)
        }
        <domain: "own", opset_import: ["": 17]>
        twice (v) => (w) { w = Add(v, v) }
        """
    )
    model = ir.from_proto(proto)
    model.graph[1].outputs[0].type = ir.TensorType(FLOAT)
    name_nodes(model)
    report = convert_precision(model, FP16)
    assert sorted(report.kept.values()) == ["a function of the model", "an op of com.microsoft"]
    assert len(report.converted) == 2


@pytest.mark.parametrize(
    "nodes",
    [
        "a = Relu(x) b = Neg(a) y = Add(a, b)",  # none between, none twice
        "a = Transpose(x) b = Reshape(a, s) y = Relu(b)",
        "a = Relu(x) y = Transpose(a)",
    ],
)
def test_casts_are_few(nodes: str) -> None:
    proto = model_from_text(f"g (float[2,2] x) => (float[2,2] y) {{ {nodes} }}", s=np.array([2, 2]))
    assert converted(proto)[1].casts == 2


def test_moves_among_nodes_that_stay_need_no_cast() -> None:
    proto = model_from_text(
        """g (float[2,2] x) => (float[2,2] y, bool[2,2] b, float[2,2] z) {
            h = Relu(x)
            p = CumSum(h, axis)
            t = Transpose(p)
            u = Concat<axis=0>(t)
            y = CumSum(u, axis)
            b = Greater(x, x)
            z = Transpose(x)
        }""",
        axis=np.array(0),
    )
    model, report = converted(proto)
    assert report.converted == ("n0",)
    assert set(report.kept) == {"n1", "n4"}
    assert ops(model)["Cast"] == 2


def test_a_cast_that_the_model_has_is_not_undone_by_another() -> None:
    proto = model_from_text(
        """g (float16[2] x) => (float16[2] y) {
            h = Relu(x)
            f = Cast<to=1>(h)
            p = CumSum(f, axis)
            n = Neg(f)
            a = Add(p, n)
            y = Cast<to=10>(a)
        }""",
        axis=np.array(0),
    )
    model, _ = converted(proto)
    (neg,) = (node for node in model.graph if node.op_type == "Neg")
    assert neg.inputs[0].name == "h"
    assert ops(model)["Cast"] == 2  # float32 for CumSum, and back


def test_ops_and_nodes_can_be_kept() -> None:
    proto = model_from_text("g (float[2] x) => (float[2] y) { a=Relu(x) b=Neg(a) y=Softmax(b) }")
    _, report = converted(proto, keep_nodes=["n0"], keep_ops=["Softmax"])
    assert set(report.kept) == {"n0", "n2"}
    assert report.converted == ("n1",)
    with pytest.raises(UsageError, match="no node 'nonsense'"):
        converted(proto, keep_nodes=["nonsense"])


def test_names_that_are_taken() -> None:
    proto = model_from_text(
        """g (float[2] x) => (float[2] y) {
            x_fp16 = Relu(x)
            y_fp16 = Neg(x_fp16)
            y = Add(y_fp16, x_fp16)
        }"""
    )
    proto.graph.node[0].name = "Cast_x_fp16_2"
    model, _ = converted(proto)
    names = [value.name for node in model.graph for value in node.outputs]
    assert len(set(names)) == len(names)
    assert len({node.name for node in model.graph}) == len(model.graph)


def test_metadata_and_double_stay() -> None:
    proto = model_from_text("g (float[2] x, double[2] d) => (double[2] y) { y=Neg(d) z=Neg(x) }")
    proto.metadata_props.add(key="author", value="somebody")
    model, report = converted(proto)
    assert model.metadata_props["author"] == "somebody"
    assert report.converted == ("n1",)
    assert types(model)["y"] == ir.DataType.DOUBLE


def test_weights_among_the_inputs_are_taken_off_the_list() -> None:
    proto = model_from_text(
        "g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", w=np.ones(2, np.float32)
    )
    proto.ir_version = 3
    model, report = converted(proto)
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert types(model)["w"] == FLOAT16
    assert report.modified


def test_from_one_half_to_the_other() -> None:
    proto = model_from_text(
        "g (float[2] x) => (float[2] y) { a = Mul(x, w) y = Relu(a) }",
        w=np.array([0.1, 0.2], np.float32),
    )
    half, _ = converted(proto, FP16)
    model, _ = converted(ir.to_proto(half), BF16)
    assert set(types(model).values()) == {FLOAT, ir.DataType.BFLOAT16}
    assert ops(model)["Cast"] == 2


@HALVES
@pytest.mark.parametrize("name", ["bert", "convnext", "resnet18", "vit", "yolo"])
def test_zoo_models(name: str, half: Precision) -> None:
    proto = zoo.build(name, **SMALL[name])
    model, report = converted(proto, half)
    assert report.modified
    again, second = converted(ir.to_proto(model), half)
    assert not second.modified
    assert fingerprint(again) == fingerprint(model)
    assert {node.name for node in proto.graph.node} <= {node.name for node in model.graph}
    feeds = zoo_inputs(proto)
    reference = run(ir.from_proto(proto), **feeds)
    least = 35 if half is FP16 else 15
    for output, result in run(model, **feeds).items():
        assert decibels(reference[output], result) > least
    back, _ = converted(ir.to_proto(model), FP32)
    assert set(types(back).values()).isdisjoint({FLOAT16, ir.DataType.BFLOAT16})
    assert ops(back) == ops(ir.from_proto(proto)) or half is BF16
    for output, result in run(back, **feeds).items():
        assert decibels(reference[output], result) > least


@given(
    proto=small_models(),
    half=st.sampled_from([FP16, BF16]),
    keep_io=st.booleans(),
    data=st.data(),
)
def test_there_and_back(
    proto: onnx.ModelProto, half: Precision, keep_io: bool, data: st.DataObject
) -> None:
    names = [node.name for node in proto.graph.node]
    keep = data.draw(st.lists(st.sampled_from(names), unique=True))
    settings = {"keep_io": keep_io, "keep_nodes": keep}
    model, report = converted(proto, half, **settings)
    assert set(report.kept) == set(keep)
    assert set(report.converted).isdisjoint(keep)
    for node in model.graph:
        if node.op_type == "Cast":  # never between two nodes of one type
            readers = {user.name for user, _ in node.outputs[0].uses()}
            source = node.inputs[0].producer()
            assert source is None or source.op_type != "Cast"
            assert readers or node.outputs[0].is_graph_output()
    assert not converted(ir.to_proto(model), half, **settings)[1].modified
    back, _ = converted(ir.to_proto(model), FP32, keep_io=keep_io)
    assert [value.name for value in back.graph.outputs] == [v.name for v in proto.graph.output]
    assert [node.name for node in back.graph] == names
    x = np.random.default_rng(1).normal(size=(1, 4, 4, 4)).astype(np.float32)
    reference = run(ir.from_proto(proto), x=x)
    least = 35 if half is FP16 else 17
    for name, result in run(back, x=x).items():
        assert decibels(reference[name], result) > least


def test_a_node_of_very_many_constants_is_not_rewired_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """onnx_ir copies all inputs of a node for each that is replaced."""
    count = 500
    names = [f"w{number}" for number in range(count)]
    weights = ", ".join(f"float[1] {name} = {{0.1}}" for name in names)
    read = ", ".join(["x", *names])
    proto = model_from_text(
        f"g (float[1] x) => (float[{count + 1}] y) <{weights}> {{"
        f" c = Concat<axis=0>({read}) y = Exp(c) }}"
    )
    model, _ = converted(proto)
    asked: list[int] = []
    original = ir.Node.replace_input_with
    monkeypatch.setattr(
        ir.Node,
        "replace_input_with",
        lambda node, index, value: (asked.append(index), original(node, index, value))[1],
    )
    (result,) = run(model, x=np.ones(1, np.float32)).values()
    assert len(asked) < 10
    rounded = np.exp(np.float32(np.float16(0.1))).astype(np.float16)
    assert np.array_equal(result[1:], np.full(count, rounded, np.float32))


@HALVES
def test_the_emulation_rounds_only_results_that_can_differ(half: Precision) -> None:
    """A chain of 100,000 ops that pass numbers on would become one of 300,000."""
    proto = model_from_text(
        """g (float[2,3] x, float[2,3] w) => (float[3,2] y) {
            a = Add(x, w) b = Relu(a) c = Transpose(b) d = Neg(c) e = Abs(d) y = Mul(d, e)
        }"""
    )
    model, _ = converted(proto, half)
    rounded = compute_in_float32(model.clone())
    op_types = {node.name: node.op_type for node in model.graph}
    assert {op_types[name] for name in rounded} == {"Add", "Mul"}

    def in_half(numbers: np.ndarray) -> np.ndarray:
        return numbers.astype(DTYPE[half].numpy()).astype(np.float32)

    x, w = np.random.default_rng(0).normal(size=(2, 2, 3)).astype(np.float32)
    passed = np.maximum(in_half(in_half(x) + in_half(w)), 0).T
    np.testing.assert_array_equal(run(model, x=x, w=w)["y"], in_half(-passed * passed))


def test_a_custom_op_behind_a_passthrough_op_still_reads_half_floats() -> None:
    proto = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["": 17, "own": 1]>
        g (float16[2] x) => (float16[2] y) { a = Relu(x) b = own.op(a) y = Neg(b) }
        """
    )
    model = ir.from_proto(proto)
    custom = model.graph[1]
    for node in (model.graph[0], custom):
        node.outputs[0].type = ir.TensorType(FLOAT16)
    name_nodes(model)
    compute_in_float32(model)
    (read,) = custom.inputs
    assert read is not None
    assert read.dtype == FLOAT16
