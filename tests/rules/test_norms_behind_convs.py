"""Conv, then a normalization: Q/DQ on what is normalized, and nowhere else."""

from __future__ import annotations

import itertools
import re

import numpy as np
import onnx
import pytest

import qdqtune
from qdqtune import zoo
from qdqtune.records._placement import Edge
from qdqtune.rules._placement_draft import Constraints, Draft, RuleDecision
from tests.conftest import model_from_text
from tests.rules.drafting import decision, draft_of_text, drafted, edges_into, ints, normal

RULE = "norm behind Conv"
WEIGHTS = {
    "w": normal(16, 16, 3, 3),
    "depthwise": normal(16, 1, 3, 3),
    "m": normal(16, 16),
    "g": np.ones(16, np.float32),
    "b": np.zeros(16, np.float32),
    "c": normal(1, 16, 1, 1),
    "two": np.array(2, np.float32),
    "half": np.array(0.5, np.float32),
    "eps": np.array(1e-5, np.float32),
    "rows": ints(-1, 64, 16),
    "zero": ints(0),
    "minus": ints(-1),
    "width": ints(16),
    "axis": ints(2),
}
CONV = "c0 = Conv<pads=[1,1,1,1]>(x, w)"
NORM = "y = LayerNormalization(t, g, b)"
LAST = "Transpose<perm=[0,2,3,1]>"


def draft_behind(
    body: str,
    dialect: str = "tensorrt",
    constraints: Constraints | None = None,
    opset: int = 17,
    outputs: str = "float[] y",
) -> Draft:
    """A Conv `c0` of some 16x4x16 images, and what comes behind it, up to `y`."""
    words = set(re.findall(r"\w+", f"{CONV} {body}"))
    return draft_of_text(
        f"(float[N,16,4,16] x) => ({outputs}) {{ {CONV} {body} }}",
        dialect,
        constraints=constraints,
        opset=opset,
        **{name: array for name, array in WEIGHTS.items() if name in words},
    )


def turned(times: int) -> str:
    """Ops that move values, one behind the other, up to `t`."""
    names = ["c0", *(f"p{number}" for number in range(times - 1)), "t"]
    return " ".join(f"{to} = {LAST}({of})" for of, to in itertools.pairwise(names))


BETWEEN = {
    "nothing": "t = Identity(c0)",
    "a Transpose": f"t = {LAST}(c0)",
    "a Reshape": "t = Reshape(c0, rows)",
    "a Reshape to a computed shape": "r = Relu(c0) s = Shape(r) n = Gather(s, zero)"
    " k = Concat<axis=0>(n, minus, width) t = Reshape(c0, k)",
    "Unsqueeze and Squeeze": "q = Unsqueeze(c0, axis) t = Squeeze(q, axis)",
    "Casts": f"h = Cast<to=10>(c0) p = {LAST}(h) t = Cast<to=1>(p)",
    "a Relu": "t = Relu(c0)",
    "a Relu and a Transpose": f"r = Relu(c0) t = {LAST}(r)",
    "a bias": f"a = Mul(c0, c) t = {LAST}(a)",
    "a SiLU": "s = Sigmoid(c0) t = Mul(c0, s)",
    "a scale and a SiLU": "a = Mul(c0, c) s = Sigmoid(a) t = Mul(a, s)",
    "ten moves": turned(10),
    "a Gather": "t = Gather<axis=2>(c0, zero)",
    "a pool": "t = AveragePool<kernel_shape=[1,3], pads=[0,1,0,1]>(c0)",
    "a global pool": f"p = GlobalAveragePool(c0) t = {LAST}(p)",
    "a mean over the image": f"r = Relu(c0) p = ReduceMean<axes=[2,3]>(r) t = {LAST}(p)",
}


@pytest.mark.parametrize("dialect", ["tensorrt", "tensorrt-8"])
@pytest.mark.parametrize("between", BETWEEN)
def test_a_conv_feeds_a_norm(between: str, dialect: str) -> None:
    draft = draft_behind(f"{BETWEEN[between]} {NORM}", dialect)
    (edge,) = edges_into(draft, "y")
    assert edge.position == 0
    assert draft.extra == {edge: RULE}


NOT_FED = {
    "eleven moves": turned(11),
    "a MatMul": f"p = {LAST}(c0) t = MatMul(p, m)",
    "a MatMul and its bias": f"p = {LAST}(c0) h = MatMul(p, m) t = Add(h, b)",
    "a Softmax": "t = Softmax(c0)",
    "another input": "t = Add(c0, x)",
    "the input": "t = Relu(x)",
    "a pooled input": f"p = GlobalAveragePool(x) t = {LAST}(p)",
    "a pooled MatMul": f"p = {LAST}(c0) h = MatMul(p, m) t = ReduceMean<axes=[1,2]>(h)",
    "two pools": f"p = AveragePool<kernel_shape=[1,2]>(c0) q = GlobalAveragePool(p) t = {LAST}(q)",
}


@pytest.mark.parametrize("between", NOT_FED)
def test_no_conv_feeds_a_norm(between: str) -> None:
    constraints = Constraints(never=frozenset(["t"])) if between == "another input" else None
    body = f"{NOT_FED[between]} {NORM} z = Relu(c0)"
    draft = draft_behind(body, constraints=constraints, outputs="float[] y, float[] z")
    assert "c0" in draft.chosen
    assert edges_into(draft, "y") == set()
    assert draft.extra == {}


@pytest.mark.parametrize("dialect", ["onnxruntime", "openvino"])
def test_engines_that_would_not_profit(dialect: str) -> None:
    assert draft_behind(f"t = {LAST}(c0) {NORM}", dialect).extra == {}


@pytest.mark.parametrize("never", ["c0", "y"])
def test_a_float_conv_or_norm_gets_no_pair(never: str) -> None:
    constraints = Constraints(never=frozenset([never]))
    assert draft_behind(f"t = {LAST}(c0) {NORM}", constraints=constraints).extra == {}


def test_a_conv_that_is_taken_back_takes_its_pair_along() -> None:
    draft = draft_behind(f"t = {LAST}(c0) {NORM}")
    assert draft.without(["c0"]).edges == frozenset()
    lost = {"c0": RuleDecision("accuracy", "it is too far off")}
    again = draft_behind(f"t = {LAST}(c0) {NORM}", constraints=Constraints().without(lost))
    assert again.placement().edges == frozenset()
    assert decision(again, "c0") == (False, "accuracy")


def test_of_two_readers_only_the_norm_sees_integers() -> None:
    draft = draft_behind(f"t = Identity(c0) {NORM} z = Softmax(c0)", outputs="float[] y, float[] z")
    assert edges_into(draft, "y") == {Edge("c0", "y", 0)}
    assert edges_into(draft, "z") == set()
    assert draft.placement().outputs.isdisjoint({"c0"})


@pytest.mark.parametrize(
    ("body", "source"),
    [
        ("r = Relu(c0) y = LayerNormalization(r, g, b) z = Softmax(r)", "r"),
        ("r = Relu(c0) y = LayerNormalization(c0, g, b) z = Softmax(r)", "c0"),
        ("a = Mul(c0, c) s = Sigmoid(a) y = LayerNormalization(s, g, b) z = Mul(a, s)", "s"),
        ("a = Mul(c0, c) s = Sigmoid(a) y = LayerNormalization(a, g, b) z = Mul(a, s)", "a"),
        ("r = Relu(c0) d = Conv<pads=[1,1,1,1]>(x, w) a = Mul(r, d)"
         " y = LayerNormalization(a, g, b) z = Neg(a)", "a"),
    ],
)  # fmt: skip
def test_every_output_of_what_fuses_into_a_conv_counts(body: str, source: str) -> None:
    draft = draft_behind(body, outputs="float[] y, float[] z")
    assert draft.extra == {Edge(source, "y", 0): RULE}
    assert edges_into(draft, "z") == set()


@pytest.mark.parametrize("dialect", ["tensorrt", "tensorrt-8"])
def test_a_residual_add_belongs_to_the_conv_that_it_is_added_in(dialect: str) -> None:
    draft = draft_behind(f"t = Add(c0, x) {NORM}", dialect)
    assert edges_into(draft, "t") == {Edge("x", "t", 1)}
    assert draft.extra == {Edge("t", "y", 0): RULE}


DEPTHWISE = "d = Conv<group=16, pads=[1,1,1,1]>(s, depthwise)"
MLP = f"p = {LAST}(d) n = LayerNormalization(p, g, b) h = MatMul(n, m) e = Gelu(h) l = MatMul(e, m)"
BACK = "Transpose<perm=[0,3,1,2]>"
#: They begin with `s` and end with `a`; `d` is a Conv of theirs.
BLOCKS = {
    "of ConvNeXt": f"{DEPTHWISE} {MLP} q = {BACK}(l) a = Add(s, q)",
    "the residual last": f"{DEPTHWISE} {MLP} q = {BACK}(l) a = Add(q, s)",
    "a layer scale": f"{DEPTHWISE} {MLP} z = Mul(l, g) q = {BACK}(z) a = Add(s, q)",
    "Convs side by side": f"{DEPTHWISE} o = Conv<pads=[1,1,1,1]>(s, w) f = Mul(d, o)"
    " l = Softmax(f) a = Add(s, l)",
    "Convs one behind the other": f"{DEPTHWISE} o = Conv<pads=[1,1,1,1]>(d, w) l = Softmax(o)"
    " a = Add(s, l)",
}


@pytest.mark.parametrize("dialect", ["tensorrt", "tensorrt-8"])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_residual_block_of_convs_feeds_a_norm(block: str, dialect: str) -> None:
    body = f"s = Softmax(c0) {BLOCKS[block]} t = {LAST}(a) {NORM}"
    draft = draft_behind(body, dialect, opset=20)
    edge = Edge("t", "y", 0)
    assert edges_into(draft, "y") == {edge}
    assert draft.extra[edge] == RULE
    assert edge in draft.without(["c0"]).edges
    assert edge not in draft.without(["d"]).edges


#: The nearest blocks of other networks.
OTHER_BLOCKS = {
    "a normalization first": f"j = LayerNormalization(s, g, b) {DEPTHWISE.replace('(s,', '(j,')}"
    f" {MLP} q = {BACK}(l) a = Add(s, q)",
    "MatMuls": f"j = {LAST}(s) h = MatMul(j, m) e = Gelu(h) l = MatMul(e, m) q = {BACK}(l)"
    " a = Add(s, q)",
    "a way around the Conv": f"{DEPTHWISE} f = Mul(d, s) l = Softmax(f) a = Add(s, l)",
    "a Conv beside it": f"{DEPTHWISE} f = Erf(s) a = Add(s, f) v = Softmax(d)",
    "something else is added": f"{DEPTHWISE} l = Softmax(d) u = Erf(x) a = Add(l, u)",
    "pooling": "f = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(s) l = Sub(f, s) a = Add(s, l)",
}


@pytest.mark.parametrize("block", OTHER_BLOCKS)
def test_other_residual_blocks_do_not(block: str) -> None:
    body = f"s = Softmax(c0) {OTHER_BLOCKS[block]} t = {LAST}(a) {NORM}"
    outputs = "float[] y, float[] v" if " v = " in body else "float[] y"
    draft = draft_behind(body, opset=20, outputs=outputs)
    assert edges_into(draft, "y") == set()


@pytest.mark.parametrize("never", ["d", "a"])
def test_a_block_of_which_something_stays_float(never: str) -> None:
    body = f"s = Softmax(c0) {BLOCKS['of ConvNeXt']} t = {LAST}(a) {NORM}"
    draft = draft_behind(body, constraints=Constraints(never=frozenset([never])), opset=20)
    assert edges_into(draft, "y") == set()


def test_scale_and_bias_of_a_norm_are_left_alone() -> None:
    body = f"{CONV.replace('c0', 'd')} p = GlobalAveragePool(d) q = Flatten(p) s = Squeeze(q, zero)"
    draft = draft_behind(f"{body} t = {LAST}(c0) y = LayerNormalization(t, s, b)")
    assert edges_into(draft, "y") == {Edge("t", "y", 0)}


FAMILY = {
    "GroupNormalization": ("y = GroupNormalization<num_groups=4>(c0, g, b)", 21, {"y"}),
    "InstanceNormalization": ("y = InstanceNormalization(c0, g, b)", 17, {"y"}),
    "RMSNormalization": ("y = RMSNormalization(c0, g)", 23, {"y"}),
    "decomposed": (
        "mu = ReduceMean<axes=[-1]>(c0) d = Sub(c0, mu) v = Pow(d, two)"
        " k = ReduceMean<axes=[-1]>(v) e = Add(k, eps) s = Sqrt(e) y = Div(d, s)",
        17,
        {"mu", "d"},
    ),
    "decomposed otherwise": (
        "mu = ReduceMean<axes=[-1]>(c0) d = Sub(c0, mu) v = Mul(d, d)"
        " k = ReduceMean<axes=[-1]>(v) e = Add(eps, k) s = Sqrt(e) i = Reciprocal(s) y = Mul(d, i)",
        17,
        {"mu", "d"},
    ),
    "decomposed, with a power": (
        "mu = ReduceMean<axes=[-1]>(c0) d = Sub(c0, mu) v = Pow(d, two)"
        " k = ReduceMean<axes=[-1]>(v) e = Add(k, eps) s = Pow(e, half) y = Div(d, s)",
        17,
        {"mu", "d"},
    ),
    "no root": (
        "mu = ReduceMean<axes=[-1]>(c0) d = Sub(c0, mu) v = Pow(d, two)"
        " k = ReduceMean<axes=[-1]>(v) e = Add(k, eps) s = Exp(e) y = Div(d, s)",
        17,
        set(),
    ),
    "a root of something else": (
        "mu = ReduceMean<axes=[-1]>(c0) d = Sub(c0, mu) v = Abs(x) s = Sqrt(v) y = Div(d, s)",
        17,
        set(),
    ),
    "only a mean": ("mu = ReduceMean<axes=[-1]>(c0) y = Sub(c0, mu)", 17, set()),
}


@pytest.mark.parametrize("norm", FAMILY)
def test_the_family(norm: str) -> None:
    body, opset, readers = FAMILY[norm]
    draft = draft_behind(body, opset=opset)
    assert draft.extra == {Edge("c0", reader, 0): RULE for reader in readers}


@pytest.mark.parametrize("dialect", ["tensorrt", "tensorrt-8"])
def test_convnext(dialect: str) -> None:
    """Every one: of stem, blocks, downsampling and head; a ConvNeXt-tiny has 23."""
    model = zoo.build("convnext", depths=(3, 3, 9, 3), dims=(16, 16, 16, 32), image=32, classes=32)
    draft = drafted(model, dialect)
    norms = {node.name for node in draft.index.nodes if node.op_type == "LayerNormalization"}
    assert len(norms) == 23
    assert {edge.node for edge, rule in draft.extra.items() if rule == "norm behind Conv"} == norms
    for name in norms:
        (edge,) = edges_into(draft, name or "")
        assert edge.position == 0


@pytest.mark.parametrize("name", ["vit", "bert"])
def test_norms_of_transformers(name: str) -> None:
    draft = drafted(zoo.build(name, layers=2, width=64), "tensorrt")
    norms = [node for node in draft.index.nodes if node.op_type == "LayerNormalization"]
    assert len(norms) >= 4
    assert not any(edges_into(draft, node.name or "") for node in norms)


def test_the_file_has_the_pair() -> None:
    model = model_from_text(
        f"g (float[1,16,4,16] x) => (float[1,4,16,16] y) {{ {CONV} t = {LAST}(c0) {NORM} }}",
        **{name: WEIGHTS[name] for name in ("w", "g", "b")},
    )
    written = qdqtune.quantize(model, engine="tensorrt", min_sqnr_db=None).model
    producer = {name: node for node in written.graph.node for name in node.output}
    (norm,) = [node for node in written.graph.node if node.op_type == "LayerNormalization"]
    assert [producer[name].op_type if name in producer else "" for name in norm.input] == [
        "DequantizeLinear", "", "",
    ]  # fmt: skip
    (transpose,) = [node for node in written.graph.node if node.op_type == "Transpose"]
    assert producer[transpose.input[0]].op_type == "Conv"
    onnx.checker.check_model(written, full_check=True)
