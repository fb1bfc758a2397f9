"""What exporters write: weights in odd places, odd names, odd ends of a graph, bodies."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

from qdqtune.graph._files import load_model, save_model
from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import select_ops
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._errors import ModelError
from qdqtune.records._ranges import CalibrationSource, Ranges
from tests.conftest import model_from_text

_RNG = np.random.default_rng(3)
_SQUARE = _RNG.normal(size=(4, 4)).astype(np.float32)
_POINT = _RNG.normal(size=(4, 4, 1, 1)).astype(np.float32)
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def load(proto: onnx.ModelProto, folder: Path) -> ir.Model:
    path = folder / "read.onnx"
    path.write_bytes(proto.SerializeToString())
    return load_model(path)


def quantized(model: ir.Model, folder: Path, op_type: str) -> onnx.ModelProto:
    """The model with all ops of a type quantized, valid, and run once."""
    base = PreparedModel(model, folder)
    ranges = Ranges(dict.fromkeys(base.index.value, (-4.0, 4.0)), CalibrationSource.DATA, 1)
    inserter = Inserter(base, dialect_named("onnxruntime"), "int8", ranges)
    path = inserter.write(select_ops(base.index, inserter.dialect, [op_type]).placement, "q")
    onnx.checker.check_model(str(path), full_check=True)
    run(path)
    return onnx.load(path)


def run(path: Path) -> list[np.ndarray]:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(bool)": np.bool_}
    feeds = {
        value.name: rng.normal(size=value.shape).astype(kinds[value.type])
        for value in session.get_inputs()
    }
    return session.run(None, feeds)


def weights_of(proto: onnx.ModelProto) -> list[str]:
    return sorted(t.name for t in proto.graph.initializer if t.name.endswith("_quantized"))


@pytest.mark.parametrize(
    "made",
    [
        "w = Identity(s)",
        "i = Identity(s) j = Identity(i) w = Transpose<perm=[1,0]>(j)",
        "c = Cast<to=10>(s) w = Cast<to=1>(c)",
        "f = Constant<value = int64[1] {16}>() r = Reshape(s, f) "
        "g = Constant<value_ints = [4, 4]>() w = Reshape(r, g)",
        "a = Constant<value_ints = [0]>() u = Unsqueeze(s, a) w = Squeeze(u, a)",
        "k = Constant<value_float = 2.0>() w = Mul(s, k)",
        "n = ReduceL2<axes=[1], keepdims=1>(s) w = Div(s, n)",
        "w = Constant<value = float[4,4] {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}>()",
        "v = Constant<value_floats = [1.0, 2.0, 3.0, 4.0]>() w = Mul(s, v)",
        "d = Constant<value_ints = [4, 4]>() w = ConstantOfShape<value = float[1] {0.5}>(d)",
        "e = Constant<value_ints = [4, 4]>() o = Constant<value_floats = [1.0]>() w = Expand(o, e)",
    ],
    ids=[
        "identity", "transpose", "cast", "reshape", "unsqueeze", "mul", "weight-norm", "constant",
        "floats", "constant-of-shape", "expand",
    ],
)  # fmt: skip
def test_weights_in_odd_places_become_constants(made: str, tmp_path: Path) -> None:
    text = f"g (float[2,4] x) => (float[2,4] y) {{ {made} y = MatMul(x, w) }}"
    proto = model_from_text(text, s=_SQUARE)
    model = load(proto, tmp_path)
    fold(model)
    index = GraphIndex(model)
    (product,) = index.nodes
    assert product.inputs[1] is not None
    assert index.is_constant(product.inputs[1].name or "")
    folded = save_model(model, tmp_path / "folded.onnx")
    np.testing.assert_allclose(run(folded)[0], run(tmp_path / "read.onnx")[0], rtol=1e-5)
    assert len(weights_of(quantized(model, tmp_path, "MatMul"))) == 1


@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet", "light_resnet50"])
def test_models_that_describe_their_weights(name: str) -> None:
    model = load_model(LIGHT / f"{name}.onnx")
    fold(model)
    index = GraphIndex(model)
    weights = [node.inputs[1] for node in index.nodes if is_op(node, *WEIGHTED_OPS)]
    assert len(weights) > 25
    assert all(weight is not None and index.is_constant(weight.name or "") for weight in weights)


def test_sparse_constants_are_refused(tmp_path: Path) -> None:
    proto = model_from_text("g (float[4] x) => (float[4] y) { y = Add(x, x) }")
    values = helper.make_tensor("v", onnx.TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", onnx.TensorProto.INT64, [1], [0])
    sparse = helper.make_sparse_tensor(values, indices, [4])
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["s"], sparse_value=sparse))
    with pytest.raises(ModelError, match="sparse weights"):
        load(proto, tmp_path)


def test_a_shared_weight_is_quantized_once(tmp_path: Path) -> None:
    proto = model_from_text(
        """
        g (float[1,4,5,5] x) => (float[1,4,5,5] y) {
            a = Conv(x, w)
            b = Relu(a)
            y = Conv(b, w)
        }""",
        w=_POINT,
    )
    model = load(proto, tmp_path)
    fold(model)
    written = quantized(model, tmp_path, "Conv")
    (weight,) = weights_of(written)
    readers = [node for node in written.graph.node if weight in node.input]
    assert len(readers) == 1
    assert "w" not in {tensor.name for tensor in written.graph.initializer}


def test_the_other_reader_of_a_quantized_weight_sees_the_floats(tmp_path: Path) -> None:
    proto = model_from_text(
        "g (float[2,4] x) => (float[2,4] y) { a = MatMul(x, w) b = ReduceSum(w) y = Add(a, b) }",
        w=_SQUARE,
    )
    proto.graph.node[1].input[0] = "also"
    proto.graph.node.insert(0, helper.make_node("Identity", ["w"], ["also"], name="i"))
    proto.graph.node.insert(1, helper.make_node("Mul", ["x", "w"], ["m"], name="m"))
    proto.graph.output.append(helper.make_tensor_value_info("m", 1, None))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    model = load(proto, tmp_path)
    fold(model)
    written = quantized(model, tmp_path, "MatMul")
    assert len(weights_of(written)) == 1
    assert "w" in {tensor.name for tensor in written.graph.initializer}


def test_weights_that_are_listed_as_inputs(tmp_path: Path) -> None:
    proto = model_from_text(
        "g (float[2,4] x, float[4,4] w) => (float[2,4] y) { y = MatMul(x, w) }", w=_SQUARE
    )
    proto.ir_version = 3
    proto.opset_import[0].version = 8
    model = load(proto, tmp_path)
    fold(model)
    assert [value.name for value in model.graph.inputs] == ["x"]
    saved = save_model(model, tmp_path / "folded.onnx")
    onnx.checker.check_model(str(saved))
    np.testing.assert_array_equal(run(saved)[0], run(tmp_path / "read.onnx")[0])


ENDS = {
    "input-is-output": "g (float[2,4] x) => (float[2,4] x, float[2,4] y) { y = MatMul(x, w) }",
    "weight-is-output": "g (float[2,4] x) => (float[2,4] y, float[4,4] w) { y = MatMul(x, w) }",
    "several": "g (float[2,4] x) => (float[2,4] h, float[2,4] y) { h = MatMul(x, w) y = Relu(h) }",
    "optional-input": "g (float[2,4] x) => (float[2,4] y) { h = MatMul(x, w) y = Clip(h, , one) }",
    "empty-output": "g (float[2,4] x) => (float[2,4] y) { h = MatMul(x, w) u = Unsqueeze(h, k) "
                    ", l = GRU<hidden_size=4>(u, gates, gates) y = Squeeze(l, k) }",
    "twice": "g (float[2,4] x) => (float[2,4] y, float[2,4] y) { y = MatMul(x, w) }",
    "unread": "g (float[2,4] x, float[7] z) => (float[2,4] y) { y = MatMul(x, w) }",
    "no-shape": "g (float[2,4] x) => (float[] y) { y = MatMul(x, w) }",
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_odd_ends(name: str, tmp_path: Path) -> None:
    weights = {"w": _SQUARE, "one": np.array(1, np.float32), "k": np.array([0])}
    weights["gates"] = _RNG.normal(size=(1, 12, 4)).astype(np.float32)
    used = {key: value for key, value in weights.items() if key in ENDS[name].split("{")[1]}
    proto = model_from_text(ENDS[name], **used)
    if name == "no-shape":
        proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = load(proto, tmp_path)
    fold(model)
    written = quantized(model, tmp_path, "MatMul") if name != "no-shape" else None
    names = [value.name for value in proto.graph.output]
    assert [value.name for value in model.graph.outputs] == names
    assert written is None or [value.name for value in written.graph.output] == names
    folded = save_model(model, tmp_path / "folded.onnx")
    for before, after in zip(run(tmp_path / "read.onnx"), run(folded), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-6)


def test_names_are_generated_where_they_are_missing_or_double(tmp_path: Path) -> None:
    proto = model_from_text(
        """
        g (float[2,4] x, bool c) => (float[2,4] y) {
            h = MatMul(x, w)
            y = If (c) <
                then_branch = t () => (float[2,4] a) { k = Relu(h) a = Neg(k) },
                else_branch = e () => (float[2,4] b) { k = Abs(h) b = Neg(k) }
            >
        }""",
        w=_SQUARE,
    )
    for node in proto.graph.node:
        node.name = ""
    model = load(proto, tmp_path)
    names = [node.name for graph in model.graphs() for node in graph]
    assert all(names)
    assert len(names) == len(set(names))
    fold(model)
    quantized(model, tmp_path, "MatMul")


KEPT = """
<ir_version: 8, opset_import: ["": 17, "com.example": 2, "local": 1]>
g (float[1,4] x, bool c, int64 n) => (float[1,4] y, float[1,4] z, float[1,4] u) {
    h = MatMul(x, w)
    y = If (c) <
        then_branch = t () => (float[1,4] a) {
            one = Constant<value_floats = [1.0]>()
            dead = Neg(one)
            i = Identity(h)
            a = MatMul(i, w)
        },
        else_branch = e () => (float[1,4] b) { b = Add(h, s) }
    >
    z = com.example.Strange<level = 3, body = g () => (float o) { o = Constant<value_float=1.0>() }>(h)
    u = local.f(h)
}
<domain: "local", opset_import: ["": 17]>
f (a) => (b) { one = Constant<value_float = 1.0>() k = Identity(a) b = Mul(k, one) }
"""  # noqa: E501


def test_bodies_functions_and_foreign_ops_are_kept(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(KEPT)
    for name, array in (("w", _SQUARE), ("s", _SQUARE[0])):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = load(proto, tmp_path)
    before = ir.to_proto(model)
    fold(model)
    base = PreparedModel(model, tmp_path)
    ranges = Ranges(dict.fromkeys(base.index.value, (-4.0, 4.0)), CalibrationSource.DATA, 1)
    inserter = Inserter(base, dialect_named("onnxruntime"), "int8", ranges)
    after = inserter.proto(select_ops(base.index, inserter.dialect, ["MatMul"]).placement)

    def kept(model: onnx.ModelProto) -> list[bytes]:
        nodes = [node for node in model.graph.node if node.op_type in ("If", "Strange", "f")]
        for node in nodes:
            del node.input[:]  # what is quantized is read under another name
        return [part.SerializeToString() for part in (*nodes, *model.functions)]

    assert len(kept(after)) == 4
    assert kept(after) == kept(before)
    # The branch reads the weight as it was.
    assert "w" in {tensor.name for tensor in after.graph.initializer}


def test_a_branch_that_is_always_taken_replaces_its_if(tmp_path: Path) -> None:
    proto = model_from_text(
        """
        g (float[1,4] x) => (float[1,4] y) {
            d = Shape(x)
            i = Constant<value_int = 0>()
            n = Gather(d, i)
            o = Constant<value_int = 1>()
            c = Equal(n, o)
            y = If (c) <
                then_branch = t () => (float[1,4] a) { a = MatMul(x, w) },
                else_branch = e () => (float[1,4] b) { b = Relu(x) }
            >
        }""",
        w=_SQUARE,
    )
    model = load(proto, tmp_path)
    fold(model)
    assert [node.op_type for node in model.graph] == ["MatMul"]
    quantized(model, tmp_path, "MatMul")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision_stays_so(dtype: type, tmp_path: Path) -> None:
    kind = np.dtype(dtype).name
    proto = model_from_text(
        f"g ({kind}[2,4] x) => ({kind}[2,4] y) {{ i = Identity(w) t = Transpose<perm=[1,0]>(i) "
        "h = MatMul(x, t) y = Relu(h) }",
        w=_SQUARE.astype(dtype),
    )
    model = load(proto, tmp_path)
    fold(model)
    assert [node.op_type for node in model.graph] == ["MatMul", "Relu"]
    index = GraphIndex(model)
    wanted = {np.float16: ir.DataType.FLOAT16}.get(dtype, ir.DataType.BFLOAT16)
    assert {index.dtype(name) for name in index.value} == {wanted}
    (weight,) = model.graph.initializers.values()
    assert weight.const_value is not None
    np.testing.assert_array_equal(weight.const_value.numpy(), _SQUARE.astype(dtype).T)


def test_long_chains_are_no_deep_recursion(tmp_path: Path) -> None:
    length = 3000
    ops = ("Relu", "Neg", "Identity", "Transpose")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t0"])]
    nodes += [helper.make_node(ops[i % len(ops)], [f"t{i}"], [f"t{i + 1}"]) for i in range(length)]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", 1, [4, 4])],
        [helper.make_tensor_value_info(f"t{length}", 1, [4, 4])],
        [onnx.numpy_helper.from_array(_SQUARE, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = load(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path)
    fold(model)
    assert len(quantized(model, tmp_path, "MatMul").graph.node) > length * 3 // 4


def test_one_name_for_all_nodes(tmp_path: Path) -> None:
    count = 10_000
    nodes = [helper.make_node("Relu", ["x"], [f"y{i}"], name="same") for i in range(count)]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", 1, [1])], [value("y0", 1, [1])])
    opsets = [helper.make_opsetid("", 17)]
    model = load(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path)
    names = [node.name for node in model.graph]
    assert names[:3] == ["same", "same_2", "same_3"]
    assert len(set(names)) == count
