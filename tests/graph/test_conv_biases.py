"""Biases behind Convs: taken in where that changes nothing but the number of nodes."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from qdqtune.graph._folding import fold, fold_conv_biases
from qdqtune.graph._validity import inconsistency
from tests.conftest import model_from_text

CHANNELS, SIZE = 4, 5
SHAPE = f"[1,{CHANNELS},{SIZE},{SIZE}]"
X = np.random.default_rng(9).normal(size=(1, CHANNELS, SIZE, SIZE)).astype(np.float32)


def made(nodes: str, *, outputs: str = "y", **arrays: np.ndarray) -> onnx.ModelProto:
    """A model of these nodes; what they read but don't make is seeded."""
    rng = np.random.default_rng(0)
    known = {
        "w": rng.normal(size=(CHANNELS, CHANNELS, 1, 1)).astype(np.float32),
        "b": rng.normal(size=(1, CHANNELS, 1, 1)).astype(np.float32),
        "given": rng.normal(size=CHANNELS).astype(np.float32),
        "qw": rng.integers(-9, 9, (CHANNELS, CHANNELS, 1, 1)).astype(np.int8),
        "k": np.array(0.1, np.float32),
        "z": np.array(0, np.int8),
    } | arrays
    words = set(nodes.replace("(", " ").replace(")", " ").replace(",", " ").split())
    results = ", ".join(f"float{SHAPE} {name}" for name in outputs.split())
    return model_from_text(
        f"g (float{SHAPE} x, bool c) => ({results}) {{ {nodes} }}",
        **{name: array for name, array in known.items() if name in words},
    )


def op_types(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def run(proto: onnx.ModelProto) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]
    return list(session.run(None, dict(zip(names, (X, np.array(True)), strict=True))))


def assert_same_results(model: ir.Model, proto: onnx.ModelProto) -> None:
    after: onnx.ModelProto = ir.to_proto(model)
    assert inconsistency(after) == ""
    for ours, theirs in zip(run(after), run(proto), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, CHANNELS, 1, 1), (CHANNELS, 1, 1)], ids=str)
@pytest.mark.parametrize("order", ["Add(a, b)", "Add(b, a)"])
@pytest.mark.parametrize(
    "conv",
    [
        "Conv(x, w)",
        "Conv(x, w, given)",
        "ConvTranspose(x, w)",
        "ConvTranspose<group=2>(x, w, given)",
        "ConvTranspose<group=4>(x, w)",
    ],
)
def test_a_number_per_channel_is_taken_in(conv: str, order: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    groups = int(conv.split("group=")[1][0]) if "group" in conv else 1
    proto = made(
        f"a = {conv} s = {order} y = Relu(s)",
        w=rng.normal(size=(CHANNELS, CHANNELS // groups, 1, 1)).astype(np.float32),
        b=rng.normal(size=shape).astype(np.float32),
    )
    model = ir.from_proto(proto)
    assert fold_conv_biases(model)
    assert op_types(model) == [conv.split("(")[0].split("<")[0], "Relu"]
    assert_same_results(model, proto)
    assert not fold_conv_biases(model)


@pytest.mark.parametrize(
    "shape", [(), (1,), (CHANNELS,), (SIZE,), (CHANNELS, SIZE, SIZE), (1, 1, 1, 1)], ids=str
)
def test_what_is_no_number_per_channel_is_left_alone(shape: tuple[int, ...]) -> None:
    # As wide as it has channels: a [4] would fit the shape of the result, along another axis.
    width = CHANNELS if shape == (CHANNELS,) else SIZE
    proto = made("a = Conv(x, w) y = Add(a, b)", b=np.ones(shape, np.float32))
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[3].dim_value = width
    model = ir.from_proto(proto)
    assert not fold_conv_biases(model)
    assert op_types(model) == ["Conv", "Add"]


BODY = """y = If (c) <
    then_branch = t () => (float[1,4,5,5] p) { p = Relu(a) },
    else_branch = e () => (float[1,4,5,5] q) { q = Neg(s) }>"""


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ("a = Conv(x, w) y = Add(a, b)", "y a"),
        ("a = Conv(x, w) s = Add(a, b) y = Mul(a, s)", "y"),
        ("a = Conv(x, w) y = Add(a, a)", "y"),
        (f"a = Conv(x, w) s = Add(a, b) {BODY}", "y"),
        ("d = DequantizeLinear(qw, k, z) a = Conv(x, d) y = Add(a, b)", "y"),
        ("d = Exp(w) a = Conv(x, d) y = Add(a, b)", "y"),
        ("d = Exp(given) a = Conv(x, w, d) y = Add(a, b)", "y"),
        ("d = Exp(b) a = Conv(x, w) y = Add(a, d)", "y"),
        ("a = Conv(x, w) r = Relu(a) y = Add(r, b)", "y"),
        ("a = Conv(x, w) y = Sub(a, b)", "y"),
    ],
    ids=[
        "an output", "read twice", "read twice by one", "read in a body", "quantized weight",
        "computed weight", "computed own bias", "computed bias", "op between", "no sum",
    ],
)  # fmt: skip
def test_what_others_need_or_nobody_knows_is_left_alone(nodes: str, outputs: str) -> None:
    proto = made(nodes, outputs=outputs)
    model = ir.from_proto(proto)
    before = op_types(model)
    assert not fold_conv_biases(model)
    assert op_types(model) == before
    assert_same_results(model, proto)


def test_half_precision_is_left_alone() -> None:
    proto = made(
        "h = Cast<to=10>(x) a = Conv(h, w) s = Add(a, b) y = Cast<to=1>(s)",
        w=np.ones((CHANNELS, CHANNELS, 1, 1), np.float16),
        b=np.ones((CHANNELS, 1, 1), np.float16),
    )
    assert not fold_conv_biases(ir.from_proto(proto))


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ("a = Conv(x, w) y = Add(a, b)", "y"),
        ("a = Conv(x, w) s = Add(a, b) y = Relu(s)", "y s"),
        (f"a = Conv(x, w) s = Add(a, b) {BODY.replace('Relu(a)', 'Relu(s)')}", "y"),
        ("a = Conv(x, w) t = Add(a, b) s = Add(b, t) y = Relu(s)", "y"),
    ],
    ids=["an output", "an output that is read", "read in a body", "a sum of two biases"],
)
def test_sums_keep_their_names_and_readers(nodes: str, outputs: str) -> None:
    proto = made(nodes, outputs=outputs)
    model = ir.from_proto(proto)
    assert fold_conv_biases(model)
    assert "Add" not in op_types(model)
    conv = model.graph[0]
    assert conv.name == "n0"
    assert conv.outputs[0].name == ("s" if "s =" in nodes else "y")
    assert [value.name for value in model.graph.outputs] == outputs.split()
    assert_same_results(model, proto)


@pytest.mark.parametrize("taken_by", ["input", "result", "weight", "body"])
def test_a_bias_gets_a_name_that_is_free(taken_by: str) -> None:
    nodes = "a = Conv(x, w) s = Add(a, b) r = Exp(s) m = Mul(r, k) " + (
        "y = If (c) <then_branch = t () => (float[1,4,5,5] p) { i = Neg(m) p = Neg(i) },"
        "else_branch = e () => (float[1,4,5,5] q) { q = Neg(m) }>"
    )
    name = {"input": "x", "result": "r", "weight": "k", "body": "i"}[taken_by]
    weights = {"n0_bias": np.array(0.5, np.float32)} if taken_by == "weight" else {}
    proto = made(re.sub(rf"\b{name}\b", "n0_bias", nodes), **weights)
    if taken_by == "input":
        proto.graph.input[0].name = "n0_bias"
    model = ir.from_proto(proto)
    assert fold(model)
    assert "Add" not in op_types(model)
    assert_same_results(model, proto)


@pytest.mark.parametrize(
    "nodes",
    [
        "q = QuantizeLinear(x, k, z) d = DequantizeLinear(q, k, z) a = Conv(d, w) y = Add(a, b)",
        "a = Conv(x, w) s = Add(a, b) q = QuantizeLinear(s, k, z) y = DequantizeLinear(q, k, z)",
    ],
    ids=["reads dequantized", "sum is quantized"],
)
def test_next_to_quantization_it_depends(nodes: str) -> None:
    proto = made(nodes)
    model = ir.from_proto(proto)
    assert not fold_conv_biases(model, keep_qdq=True)
    assert "Add" in op_types(model)
    assert fold_conv_biases(model)
    assert "Add" not in op_types(model)
