"""Optimizing: fewer nodes, the same results, and every Q/DQ node where it was."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given
from onnx import helper, numpy_helper, parser

from qdqtune.graph._editing import qdq_count
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._folding import fold
from qdqtune.graph._optimizing import optimize_graph
from qdqtune.graph._validity import inconsistency
from tests.conftest import model_from_text
from tests.models import SHAPE, small_models


def optimized(proto: onnx.ModelProto) -> ir.Model:
    model = ir.from_proto(proto)
    optimize_graph(model)
    return model


def op_types(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def run(model: onnx.ModelProto | ir.Model, **feeds: np.ndarray) -> list[np.ndarray]:
    """What ONNX Runtime computes when it rewrites nothing."""
    proto: onnx.ModelProto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


# Each quantization op on nothing but constants, wherever it may stand, below and above 512 and
# 8192 elements.

OPS = {
    "QuantizeLinear": "q = QuantizeLinear(w, s, z)",
    "DequantizeLinear": "q = DequantizeLinear(v, s, z)",
    "DynamicQuantizeLinear": "q, qs, qz = DynamicQuantizeLinear(w)",
}
PLAIN = "g (float[SIZE] x, bool c, int64 m) => (float[SIZE] y) { BODY y = Add(x, f) }"
IF = """g (float[SIZE] x, bool c, int64 m) => (float[SIZE] y) {
    y = If (c) <
        then_branch = t () => (float[SIZE] a) { BODY a = Add(x, f) },
        else_branch = e () => (float[SIZE] b) { b = Neg(x) }>
}"""
LOOP = """g (float[SIZE] x, bool c, int64 m) => (float[SIZE] y) {
    y = Loop (m, c, x) <
        body = l (int64 i, bool more, float[SIZE] was) => (bool still, float[SIZE] a)
        { BODY still = Identity(more) a = Add(was, f) }>
}"""
FUNCTION = """g (float[SIZE] x, bool c, int64 m) => (float[SIZE] y) { y = local.add(x) }
<domain: "local", opset_import: ["": 17]>
add (x) => (y) { BODY y = Add(x, f) }"""


def made(place: str, op: str, size: int) -> onnx.ModelProto:
    """A model with the op in this place, fed with constants."""
    rng = np.random.default_rng(size)
    constants = {"s": np.array(0.05, np.float32), "z": np.array(3, np.uint8)}
    constants |= {"w": rng.normal(size=size).astype(np.float32)}
    constants |= {"v": rng.integers(0, 255, size).astype(np.uint8)}
    used = {name: array for name, array in constants.items() if name in OPS[op].split("= ")[1]}
    text = {"If": IF, "decided": IF, "Loop": LOOP, "function": FUNCTION}.get(place, PLAIN)
    body = f"{OPS[op]} f = Cast<to=1>(q)"
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "local": 1]>'
        + text.replace("BODY", body).replace("SIZE", str(size))
    )
    home = {
        "If": lambda: model.graph.node[0].attribute[0].g.node,
        "decided": lambda: model.graph.node[0].attribute[0].g.node,
        "Loop": lambda: model.graph.node[0].attribute[0].g.node,
        "function": lambda: model.functions[0].node,
    }.get(place, lambda: model.graph.node)()
    if place == "initializers":
        model.graph.initializer.extend(
            numpy_helper.from_array(array, name) for name, array in used.items()
        )
    else:
        nodes = list(home)
        del home[:]
        for name, array in used.items():
            value = numpy_helper.from_array(array, name)
            home.append(helper.make_node("Constant", [], [name], value=value))
        home.extend(nodes)
    if place == "decided":  # never taken
        model.graph.input.pop(1)
        model.graph.initializer.append(numpy_helper.from_array(np.array(False), "c"))
    return model


@pytest.mark.parametrize("size", [64, 513, 8193])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "place", ["initializers", "constants", "If", "decided", "Loop", "function"]
)
def test_quantization_of_constants_stays(place: str, op: str, size: int) -> None:
    proto = made(place, op, size)
    assert qdq_count(ir.from_proto(proto)) == {op: 1}
    model = optimized(proto)
    optimize_graph(model)
    assert qdq_count(model) == {op: 1}
    assert inconsistency(ir.to_proto(model)) == ""
    if size == 64:
        feeds = {"x": np.ones(size, np.float32), "c": np.array(True), "m": np.array(2)}
        feeds = {value.name: feeds[value.name] for value in proto.graph.input}
        np.testing.assert_array_equal(run(model, **feeds)[0], run(proto, **feeds)[0])


# What Q/DQ nodes are given.


def test_a_scale_is_computed_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    proto = model_from_text(
        """g (float[2,8] x) => (float[2,8] y) {
            n = Cast<to=1>(steps)
            m = Div(range, n)
            s = Squeeze(m)
            q = QuantizeLinear(x, s, z)
            y = DequantizeLinear(q, s, z)
        }""",
        steps=np.array([255], np.int32),
        range=rng.uniform(1, 7, 1).astype(np.float32),
        z=np.array(7, np.uint8),
    )
    model = optimized(proto)
    assert op_types(model) == ["QuantizeLinear", "DequantizeLinear"]
    (scale,) = {node.inputs[1] for node in model.graph}
    assert scale.const_value is not None
    assert scale.const_value.dtype == ir.DataType.FLOAT
    assert scale.const_value.shape == ()
    x = rng.normal(size=(2, 8)).astype(np.float32)
    np.testing.assert_array_equal(run(model, x=x)[0], run(proto, x=x)[0])


@pytest.mark.parametrize("op", ["Exp(k)", "Pow(two, k)", "ReduceMean<keepdims=0>(k)", "Sqrt(k)"])
def test_what_engines_round_their_own_way_is_left_to_them(op: str) -> None:
    text = """g (float[8] x) => (float[8] y) {
        made = OP
        s = Abs(made)
        q = QuantizeLinear(x, s, z)
        y = DequantizeLinear(q, s, z)
    }"""
    constants = {"k": np.array(0.3, np.float32), "z": np.array(0, np.int8)}
    if "two" in op:
        constants["two"] = np.array(2, np.float32)
    proto = model_from_text(text.replace("OP", op), **constants)
    model = optimized(proto)
    assert op.split("(")[0].split("<")[0] in op_types(model)
    workflows = ir.from_proto(proto)
    fold(workflows)
    assert op_types(workflows) == ["QuantizeLinear", "DequantizeLinear"]


GIVEN = {
    "function": """g (float[4] x, bool c) => (float[4] y) { s = Exp(k) y = local.f(x, s) }
        <domain: "local", opset_import: ["": 17]>
        f (x, s) => (y) { QUANTIZED y = DequantizeLinear(q, s, z) }""",
    "function in a function": """
        g (float[4] x, bool c) => (float[4] y) { s = Exp(k) y = local.outer(x, s) }
        <domain: "local", opset_import: ["": 17, "local": 1]>
        outer (x, s) => (y) { t = Neg(s) u = Neg(t) y = local.f(x, u) }
        <domain: "local", opset_import: ["": 17]>
        f (x, s) => (y) { QUANTIZED y = DequantizeLinear(q, s, z) }""",
    "through an op of a body": """g (float[4] x, bool c) => (float[4] y) {
        o = Exp(k)
        y = If (c) <
            then_branch = t () => (float[4] a) {
                s = Mul(o, o) QUANTIZED a = DequantizeLinear(q, s, z)
            },
            else_branch = e () => (float[4] b) { b = Neg(x) }>
        }""",
    "function in a body": """g (float[4] x, bool c) => (float[4] y) {
        o = Exp(k)
        y = If (c) <
            then_branch = t () => (float[4] a) { a = local.f(x, o) },
            else_branch = e () => (float[4] b) { b = Neg(x) }>
        }
        <domain: "local", opset_import: ["": 17]>
        f (x, s) => (y) { QUANTIZED y = DequantizeLinear(q, s, z) }""",
    "from a branch that is always taken": """g (float[4] x, bool c) => (float[4] y) {
        yes = Constant<value = bool {1}>()
        s = If (yes) <
            then_branch = t () => (float a) { a = Exp(k) },
            else_branch = e () => (float b) { b = Neg(k) }>
        QUANTIZED y = DequantizeLinear(q, s, z)
        }""",
    "state of a loop": """g (float[4] x, bool c) => (float[4] y) {
        o = Exp(k) two = Constant<value = int64 {2}>()
        last, y = Loop (two, c, o, x) <
            body = l (int64 i, bool more, float s, float[4] was)
                => (bool still, float next, float[4] a) {
                QUANTIZED d = DequantizeLinear(q, s, z)
                still = Identity(more) next = Add(s, s) a = Add(was, d)
            }>
        }""",
}


@pytest.mark.parametrize("quantized", [True, False], ids=["quantized", "float"])
@pytest.mark.parametrize("place", GIVEN)
def test_what_bodies_and_functions_with_quantization_get_is_left_to_engines(
    place: str, quantized: bool
) -> None:
    text = GIVEN[place].replace(
        "QUANTIZED", "z = Constant<value = uint8 {0}>() q = QuantizeLinear(x, s, z)"
    )
    if not quantized:
        text = text.replace("DequantizeLinear(q, s, z)", "Mul(q, s)")
        text = text.replace("QuantizeLinear(x, s, z)", "Div(x, s)")
    proto = parser.parse_model('<ir_version: 8, opset_import: ["": 17, "local": 1]>' + text)
    constant = np.array(-3.3, np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(constant, "k"))
    model = optimized(proto)
    assert ("Exp" in op_types(model)) == quantized
    if quantized:
        feeds = {"x": np.arange(4, dtype=np.float32), "c": np.array(True)}
        np.testing.assert_array_equal(run(model, **feeds)[0], run(proto, **feeds)[0])


@pytest.mark.parametrize("size", [4, 64])
@pytest.mark.parametrize(
    "move", ["Reshape(d, shape)", "Transpose<perm=[1,0]>(d)", "Unsqueeze(d, zero)"]
)
def test_moved_weights_stay_behind_their_dq(move: str, size: int) -> None:
    text = """g (float[1,SIZE] x) => (y) {
        d = DequantizeLinear(w, s, z)
        t = MOVE
        y = MatMul(x, t)
    }"""
    rng = np.random.default_rng(size)
    weights = {"w": rng.integers(-127, 127, (size, size)).astype(np.int8)}
    weights |= {"s": np.array(0.1, np.float32), "z": np.array(0, np.int8)}
    weights |= {"shape": np.array([size, -1])} if "shape" in move else {}
    weights |= {"zero": np.array([0])} if "zero" in move else {}
    proto = model_from_text(text.replace("MOVE", move).replace("SIZE", str(size)), **weights)
    model = optimized(proto)
    assert op_types(model)[0] == "DequantizeLinear"
    x = rng.normal(size=(1, size)).astype(np.float32)
    np.testing.assert_array_equal(run(model, x=x)[0], run(proto, x=x)[0])


def qat(channels: int) -> onnx.ModelProto:
    """Two quantized convs as a trainer exports them, BatchNorm and clutter included."""
    rng = np.random.default_rng(channels)
    weights = {
        "w1": rng.integers(-127, 128, (channels, 3, 3, 3)).astype(np.int8),
        "f2": rng.normal(size=(channels, channels, 1, 1)).astype(np.float32),
        "s1": rng.uniform(0.01, 0.02, channels).astype(np.float32),
        "s2": rng.uniform(0.01, 0.02, channels).astype(np.float32),
        "zw": np.zeros(channels, np.int8),
        "b1": rng.integers(-99, 99, channels).astype(np.int32),
        "sb": rng.uniform(1e-4, 2e-4, channels).astype(np.float32),
        "sx": np.array([0.03], np.float32),
        "zx": np.array(128, np.uint8),
        "g": rng.uniform(0.5, 1.5, channels).astype(np.float32),
        "one": np.array([0]),
    }
    return model_from_text(
        """g (float[1,3,8,8] x) => (float[1,CH,8,8] y) {
            sa = Squeeze(sx, one)
            xq = QuantizeLinear(x, sa, zx)
            xd = DequantizeLinear(xq, sa, zx)
            w1d = DequantizeLinear<axis=0>(w1, s1, zw)
            b1d = DequantizeLinear<axis=0>(b1, sb)
            c1 = Conv<pads=[1,1,1,1]>(xd, w1d, b1d)
            n1 = BatchNormalization(c1, g, g, g, g)
            i1 = Identity(n1)
            r1 = Relu(i1)
            hq = QuantizeLinear(r1, sa, zx)
            hd = DequantizeLinear(hq, sa, zx)
            f2q = QuantizeLinear<axis=0>(f2, s2, zw)
            f2d = DequantizeLinear<axis=0>(f2q, s2, zw)
            c2 = Conv(hd, f2d)
            o = Cast<to=1>(c2)
            y = Identity(o)
        }""".replace("CH", str(channels)),
        **weights,
    )


@pytest.mark.parametrize("channels", [4, 32], ids=["under 512", "over 512"])
def test_a_trained_model_keeps_its_results(channels: int) -> None:
    proto = qat(channels)
    model = ir.from_proto(proto)
    counts = optimize_graph(model)
    assert counts.qdq == 8
    assert qdq_count(model) == qdq_count(ir.from_proto(proto))
    gone = {op_type: old - new for op_type, (old, new) in counts.changed.items()}
    assert gone == {"Cast": 1, "Identity": 2, "Squeeze": 1}
    x = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)
    np.testing.assert_array_equal(run(model, x=x)[0], run(proto, x=x)[0])


def test_biases_beside_quantization_stay_apart_and_others_are_counted() -> None:
    rng = np.random.default_rng(0)
    proto = model_from_text(
        """g (float[1,4,5,5] x) => (float[1,4,5,5] y) {
            f = Conv(x, w1) fb = Add(f, b) fr = Relu(fb)
            q = QuantizeLinear(fr, s, z) d = DequantizeLinear(q, s, z)
            a = Conv(d, w2) y = Add(a, b)
        }""",
        w1=rng.normal(size=(4, 4, 1, 1)).astype(np.float32),
        w2=rng.normal(size=(4, 4, 1, 1)).astype(np.float32),
        b=rng.normal(size=(4, 1, 1)).astype(np.float32),
        s=np.array(0.1, np.float32),
        z=np.array(0, np.uint8),
    )
    model = ir.from_proto(proto)
    counts = optimize_graph(model)
    assert counts.changed == {"Add": (2, 1)}
    assert counts.folded == 1
    assert op_types(model)[-2:] == ["Conv", "Add"]


# What goes.


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("t = Relu(x) y = Identity(t)", ["Relu"]),
        ("t = Identity(x) y = Relu(t)", ["Relu"]),
        ("y = Identity(x)", ["Identity"]),  # an output is no input
        ("t = Cast<to=1>(x) y = Relu(t)", ["Relu"]),
        ("h = Cast<to=10>(x) t = Cast<to=1>(h) y = Relu(t)", ["Cast", "Cast", "Relu"]),
        ("t = Transpose<perm=[0,1]>(x) y = Relu(t)", ["Relu"]),
        ("t = Transpose<perm=[1,0]>(x) y = Relu(t)", ["Transpose", "Relu"]),
        ("t = Dropout(x) y = Relu(t)", ["Relu"]),
        ("s = Shape(x) t = Reshape(x, s) y = Relu(t)", ["Relu"]),
        ("t = Flatten(x) y = Relu(t)", ["Relu"]),
        ("unused = Exp(x) y = Relu(x)", ["Relu"]),
        ("a = Exp(x) b = Exp(x) y = Add(a, b)", ["Exp", "Add"]),
        ("a = Exp(x) b = Exp(x) c = Neg(a) d = Neg(b) y = Add(c, d)", ["Exp", "Neg", "Add"]),
        ("a = Elu<alpha=0.5>(x) b = Elu(x) y = Add(a, b)", ["Elu", "Elu", "Add"]),
    ],
)
def test_what_does_nothing_or_is_there_twice_goes(text: str, left: list[str]) -> None:
    proto = model_from_text(f"g (float[4,4] x) => (float[4,4] y) {{ {text} }}")
    model = optimized(proto)
    assert op_types(model) == left
    assert [value.name for value in model.graph.outputs] == ["y"]
    x = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(model, x=x)[0], run(proto, x=x)[0])


@pytest.mark.parametrize("opset", [10, 11, 17])
def test_dropout_of_every_opset_goes(opset: int) -> None:
    text = "g (float[4] x) => (float[4] y) { d = Dropout(x) y = Relu(d) }"
    assert op_types(optimized(model_from_text(text, opset))) == ["Relu"]


@pytest.mark.parametrize(
    "text",
    [
        "a = QuantizeLinear(x, s, z) b = QuantizeLinear(x, s, z)"
        "c = DequantizeLinear(a, s, z) d = DequantizeLinear(b, s, z)",
        "a = DequantizeLinear(v, s, z) b = DequantizeLinear(v, s, z) c = Add(x, a) d = Add(x, b)",
        "a, s1, z1 = DynamicQuantizeLinear(x) b, s2, z2 = DynamicQuantizeLinear(x)"
        "c = DequantizeLinear(a, s1, z1) d = DequantizeLinear(b, s2, z2)",
        "c = RandomNormalLike(x) d = RandomNormalLike(x)",
        "c = RandomUniform<shape=[4]>() d = RandomUniform<shape=[4]>()",
        "a = Sigmoid(x) c = Bernoulli(a) d = Bernoulli(a)",
        "c = Dropout(x, ratio, train) d = Dropout(x, ratio, train)",
        "unread = QuantizeLinear(x, s, z) c = Exp(x) d = Neg(x)",
    ],
)
def test_quantization_and_chance_are_not_merged(text: str) -> None:
    weights = {
        "s": np.array(0.1, np.float32),
        "z": np.array(0, np.uint8),
        "v": np.arange(4, dtype=np.uint8),
        "ratio": np.array(0.5, np.float32),
        "train": np.array(True),
    }
    proto = model_from_text(f"g (float[4] x) => (float[4] y) {{ {text} y = Add(c, d) }}", **weights)
    before = op_types(ir.from_proto(proto))
    assert op_types(optimized(proto)) == before


def test_equal_weights_are_one_but_biases_stay_apart() -> None:
    eye = np.eye(4, dtype=np.float32)
    proto = model_from_text(
        """g (float[2,4] x) => (float[2,4] y) {
            a = Gemm(x, w1, b1) b = Gemm(a, w2, b2) c = MatMul(b, w3) y = Add(c, v)
        }""",
        w1=eye, w2=eye.copy(), w3=-0.0 * eye, v=0.0 * eye[:2],
        b1=np.zeros(4, np.float32), b2=np.zeros(4, np.float32),
    )  # fmt: skip
    model = ir.from_proto(proto)
    counts = optimize_graph(model)
    assert counts.duplicate_weights == 1
    assert set(model.graph.initializers) == {"w1", "w3", "v", "b1", "b2"}


def test_bodies_and_functions_are_cleaned_with_care() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
        h = Relu(x)
        u = If (c) <
            then_branch = t () => (float[4] a) {
                i = Identity(h) j = Exp(i) k = Exp(h) a = Add(j, k)
            },
            else_branch = e () => (float[4] b) { b = Identity(h) }>
        y = local.twice(u)
    }
    <domain: "local", opset_import: ["": 17]>
    twice (x) => (y) { i = Identity(x) a = Neg(i) b = Neg(x) s = Sub(a, b) y = Identity(s) }
    <domain: "local", opset_import: ["": 17]>
    unused (x) => (y) { y = Neg(x) }"""
    proto = parser.parse_model('<ir_version: 8, opset_import: ["": 17, "local": 1]>' + text)
    model = ir.from_proto(proto)
    counts = optimize_graph(model)
    then, other = (each.as_graph() for each in list(model.graph)[1].attributes.values())
    assert [node.op_type for node in then] == ["Exp", "Add"]
    assert [node.op_type for node in other] == ["Identity"]  # an output of its own
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Neg", "Sub"]
    assert (counts.no_ops, counts.duplicate_nodes, counts.unused_functions) == (3, 2, 1)
    for c in (True, False):
        feeds = {"x": np.arange(4, dtype=np.float32), "c": np.array(c)}
        np.testing.assert_array_equal(run(model, **feeds)[0], run(proto, **feeds)[0])


def test_a_function_with_quantization_stays_unused() -> None:
    proto = made("function", "DequantizeLinear", 64)
    proto.graph.node[0].CopyFrom(helper.make_node("Relu", ["x"], ["y"]))
    assert len(optimized(proto).functions) == 1


# What is kept.


def defaults(proto: onnx.ModelProto) -> None:
    proto.graph.input.append(helper.make_tensor_value_info("k", onnx.TensorProto.FLOAT, [4]))


@pytest.mark.parametrize(
    ("change", "inputs", "left"),
    [
        (lambda proto: None, ["x"], ["Add"]),
        (defaults, ["x", "k"], ["Neg", "Add"]),
        (lambda proto: (defaults(proto), setattr(proto, "ir_version", 3)), ["x"], ["Add"]),
    ],
    ids=["weight", "default of an input", "weight in an old file"],
)
def test_an_input_with_a_default_is_an_input(
    change: Callable[[onnx.ModelProto], object], inputs: list[str], left: list[str]
) -> None:
    proto = model_from_text(
        "g (float[4] x) => (float[4] y) { n = Neg(k) y = Add(x, n) }", k=np.ones(4, np.float32)
    )
    change(proto)
    model = optimized(proto)
    assert [value.name for value in model.graph.inputs] == inputs
    assert op_types(model) == left
    if len(inputs) > 1:
        assert "k" in model.graph.initializers


def test_names_and_metadata_stay() -> None:
    proto = qat(4)
    proto.metadata_props.add(key="author", value="somebody")
    proto.graph.node[5].metadata_props.add(key="layer", value="first")
    model = optimized(proto)
    assert model.metadata_props == {"author": "somebody"}
    names = {node.name: node for node in model.graph}
    assert set(names) < {node.name for node in proto.graph.node}
    assert names["n5"].metadata_props == {"layer": "first"}


@pytest.mark.parametrize("training", [0, 1])
def test_a_batchnorm_that_trains_is_not_folded(training: int) -> None:
    proto = model_from_text(
        "g (float[2,4,3,3] x) => (float[2,4,3,3] y) "
        f"{{ c = Conv(x, w) y = BatchNormalization<training_mode={training}>(c, s, s, s, s) }}",
        w=np.ones((4, 4, 1, 1), np.float32),
        s=np.ones(4, np.float32),
    )
    assert op_types(optimized(proto)) == ["Conv", "BatchNormalization"][: 1 + training]


IF_ELSE = """If (CONDITION) <
    then_branch = tNUMBER () => (float[4] pNUMBER) { pNUMBER = THEN },
    else_branch = eNUMBER () => (float[4] qNUMBER) { qNUMBER = ELSE }>"""


def choice(number: int, condition: str, then: str, other: str) -> str:
    """An If in ONNX text."""
    text = IF_ELSE.replace("NUMBER", str(number)).replace("CONDITION", condition)
    return text.replace("THEN", then).replace("ELSE", other)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"f = Exp(x) u = {choice(1, 'c', 'Neg(f)', 'Relu(f)')} y = Abs(x)", ["Abs"]),
        (
            f"f = {choice(1, 'c', 'Neg(x)', 'Relu(x)')} u = {choice(2, 'c', 'Neg(f)', 'Exp(f)')}"
            "y = Abs(x)",
            ["Abs"],
        ),
        (
            f"f = Exp(x) u = {choice(1, 'c', choice(2, 'c', 'Neg(f)', 'Exp(f)'), 'Relu(x)')}"
            "y = Abs(x)",
            ["Abs"],
        ),
        (f"f = Exp(x) u = {choice(1, 'yes', 'Neg(x)', 'Relu(f)')} y = Abs(u)", ["Neg", "Abs"]),
    ],
    ids=["one", "one after the other", "one in the other", "a branch that is never taken"],
)
def test_who_fed_a_body_goes_with_it(text: str, left: list[str]) -> None:
    weights = {"yes": np.array(True)} if "yes" in text else {}
    text = f"g (float[4] x, bool c) => (float[4] y) {{ {text} }}"
    model = optimized(model_from_text(text, **weights))
    assert op_types(model) == left


def test_folding_one_shape_lets_the_next_be_known() -> None:
    steps = 8
    chain = " ".join(
        f"s{i} = Shape(t{i}) r{i} = Reshape(t{i}, flat) e{i} = Exp(r{i}) "
        f"t{i + 1} = Reshape(e{i}, s{i})"
        for i in range(steps)
    )
    text = f"g (float[2,3] t0) => (float[2,3] y) {{ {chain} y = Relu(t{steps}) }}"
    model = optimized(model_from_text(text, 11, flat=np.array([-1])))
    assert "Shape" not in op_types(model)


@given(proto=small_models())
def test_a_second_time_there_is_nothing_to_do(proto: onnx.ModelProto) -> None:
    model = optimized(proto)
    before = fingerprint(model)
    counts = optimize_graph(model)
    assert fingerprint(model) == before
    assert not counts.changed
    assert (counts.duplicate_weights, counts.duplicate_nodes, counts.no_ops) == (0, 0, 0)
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    for ours, theirs in zip(run(model, x=x), run(proto, x=x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
