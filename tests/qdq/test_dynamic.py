"""Dynamic and unfused ops beside Q/DQ pairs: written, read back and stripped."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qdqtune import zoo
from qdqtune.graph._files import load_model
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._folding import fold
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import infer_shapes
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._op_units import canonical
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq._read_back import read, strip
from qdqtune.qdq.dialects import DIALECTS
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Edge, Placement
from qdqtune.records._ranges import Ranges
from qdqtune.testing._bench import SMALL
from tests.conftest import model_from_text
from tests.models import draw_placement
from tests.qdq.test_round_trip import inserter_for

ORT = DIALECTS["onnxruntime"]
SIZE = 4
# Exporters write out attributes that are the default, too.
GEMMS: list[dict[str, float]] = [
    {},
    {"transB": 1},
    {"alpha": 1.0, "beta": 1.0, "transB": 1},
    {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0},
]
WRITTEN = [
    pytest.param(DIALECTS[name], quant_type, id=f"{name}-{quant_type}")
    for name in ("onnxruntime", "onnxruntime-novnni")
    for quant_type in DIALECTS[name].formats
]
rng = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


@st.composite
def product_models(draw: st.DrawFn) -> onnx.ModelProto:
    """A DAG of products, sums and layer normalizations over square tensors.

    Weights are shared, also in both layouts; a bias may be missing, a constant or an activation.
    """
    nodes: list[onnx.NodeProto] = []
    tensors = ["x"]
    kinds = ["MatMul", "Gemm", "Gemm", "Product", "Add", "Norm", "Relu", "Move"]
    for position in range(draw(st.integers(1, 8))):
        source, other = draw(st.sampled_from(tensors)), draw(st.sampled_from(tensors))
        weight = f"w{draw(st.integers(0, 1))}"
        kind, result, name = draw(st.sampled_from(kinds)), f"t{position}", f"n{position}"
        if kind == "MatMul":
            node = helper.make_node("MatMul", [source, weight], [result], name)
        elif kind == "Gemm":
            bias = draw(st.sampled_from([None, "b0", weight, other]))
            inputs = [source, weight, *([bias] if bias else [])]
            node = helper.make_node("Gemm", inputs, [result], name, **draw(st.sampled_from(GEMMS)))
        elif kind == "Norm":
            node = helper.make_node("LayerNormalization", [source, "b0"], [result], name)
        elif kind == "Move":
            node = helper.make_node("Transpose", [source], [result], name, perm=[1, 0])
        elif kind == "Relu":
            node = helper.make_node("Relu", [source], [result], name)
        else:
            op_type = {"Product": "MatMul"}.get(kind, kind)
            node = helper.make_node(op_type, [source, other], [result], name)
        nodes.append(node)
        tensors.append(result)
    read_inside = {name for node in nodes for name in node.input}
    outputs = [name for name in tensors[1:] if name not in read_inside]
    inner = [name for name in tensors[1:] if name in read_inside]
    outputs += draw(st.lists(st.sampled_from(inner), max_size=2, unique=True)) if inner else []
    values = np.random.default_rng(3)
    constants = {name: values.normal(size=(SIZE, SIZE)) for name in ("w0", "w1")}
    constants["b0"] = values.normal(size=SIZE)
    shape = [SIZE, SIZE]
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs],
        [
            numpy_helper.from_array(array.astype(np.float32), name)
            for name, array in constants.items()
            if name in read_inside
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def mixed_placement(draw: st.DrawFn, inserter: Inserter) -> Placement:
    """Any placement that can be written, with dynamic and unfused ops."""
    index, dialect = inserter.index, inserter.dialect
    static = draw_placement(draw, index, dialect)
    dynamic = subset(draw, QuantizationPlanner(index, dialect).dynamic)
    adds = [node.name or "" for node in index.nodes if node.op_type == "Add"]
    constants = {name for name in index.value if index.is_constant(name)}
    edges = frozenset(
        edge
        for edge in index.effective(static)
        if edge.node not in dynamic or edge.tensor not in constants
    )
    return Placement(edges, frozenset(), dynamic, subset(draw, adds))


def subset(draw: st.DrawFn, names: list[str] | tuple[str, ...]) -> frozenset[str]:
    """Some of these names; often all, so that they come together."""
    if not names or draw(st.booleans()):
        return frozenset(names)
    return frozenset(draw(st.lists(st.sampled_from(names), unique=True)))


def outputs_of(model: ir.Model, seed: int = 0) -> list[np.ndarray]:
    """What a model makes of seeded inputs, op by op."""
    proto = ir.to_proto(ir.external_data.load_to_model(model.clone()))
    values = np.random.default_rng(seed)
    feeds = {}
    for each in proto.graph.input:
        kind = each.type.tensor_type
        shape = [dim.dim_value or 1 for dim in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        feeds[each.name] = (
            values.normal(size=shape) if dtype.kind == "f" else values.integers(0, 5, shape)
        ).astype(dtype)
    return [np.asarray(each) for each in ReferenceEvaluator(proto).run(None, feeds)]


def check_round_trip(inserter: Inserter, placement: Placement) -> None:
    """Written, it is a valid file that reads as the placement, and stripped the float model."""
    path = inserter.write(placement, "candidate")
    onnx.checker.check_model(str(path), full_check=True)
    candidate = load_model(path)
    reading = read(candidate)
    assert reading.placement == canonical(inserter.index, placement)
    assert reading.left == 0
    float_model = inserter.index.model
    assert strip(candidate, weights_from=float_model).rounded == 0
    assert fingerprint(candidate) == fingerprint(float_model)
    expected, found = (outputs_of(model) for model in (float_model, candidate))
    for wanted, got in zip(expected, found, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("dialect", "quant_type"), WRITTEN)
@given(data=st.data(), proto=product_models())
def test_insert_then_read_and_strip(
    dialect, quant_type: str, data: st.DataObject, proto: onnx.ModelProto
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        inserter = inserter_for(proto, dialect, quant_type, folder)
        check_round_trip(inserter, mixed_placement(data.draw, inserter))


@given(data=st.data(), proto=product_models())
def test_a_read_placement_writes_the_same_model_again(
    data: st.DataObject, proto: onnx.ModelProto
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        inserter = inserter_for(proto, ORT, "int8", folder)
        first = inserter.model(mixed_placement(data.draw, inserter))
        again = inserter.model(read(first).placement)
        assert fingerprint(again) == fingerprint(first)


@given(data=st.data(), proto=product_models())
def test_no_float_copy_of_a_weight_stays(data: st.DataObject, proto: onnx.ModelProto) -> None:
    with tempfile.TemporaryDirectory() as folder:
        inserter = inserter_for(proto, ORT, "int8", folder)
        index = inserter.index
        placement = mixed_placement(data.draw, inserter)
        multiplied = {Edge(w, name, 1) for name in placement.dynamic for w in [weight(index, name)]}
        quantized = index.effective(placement) | multiplied
        written = {tensor.name for tensor in inserter.proto(placement).graph.initializer}
        for name in index.model.graph.initializers:
            assert (name in written) == (not quantized.issuperset(index.readers(name)))


def weight(index, name: str) -> str:
    return index.node[name].inputs[1].name


@given(data=st.data(), proto=product_models())
def test_candidates_don_t_depend_on_those_before(
    data: st.DataObject, proto: onnx.ModelProto
) -> None:
    """A resumed run writes the same files, although it doesn't write all of them again."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        inserter = inserter_for(proto, ORT, "int8", one)
        first, second = (mixed_placement(data.draw, inserter) for _ in range(2))
        inserter.serialized(first)
        other = inserter_for(proto, ORT, "int8", two)
        assert fingerprint(inserter.model(second)) == fingerprint(other.model(second))


@cache
def zoo_inserter(name: str, quant_type: str) -> tuple[Inserter, QuantizationPlanner]:
    model = ir.from_proto(zoo.build(name, **SMALL[name]))
    fold(model)
    infer_shapes(model)
    base = PreparedModel(model, Path(tempfile.mkdtemp(dir=_FOLDER.name)))
    ranges = Ranges(dict.fromkeys(base.index.value, (-2.0, 3.0)))
    return Inserter(base, ORT, quant_type, ranges), QuantizationPlanner(base.index, ORT, quant_type)


_FOLDER = tempfile.TemporaryDirectory(prefix="qdqtune-dynamic-")


@pytest.mark.parametrize("name", ["bert", "vit", "convnext"])
@given(data=st.data())
def test_zoo_models(name: str, data: st.DataObject) -> None:
    inserter, planner = zoo_inserter(name, data.draw(st.sampled_from(["int8", "uint8"])))
    assert planner.dynamic
    dynamic, unfused = subset(data.draw, planner.dynamic), subset(data.draw, planner.unfused)
    chosen = subset(data.draw, sorted(planner.units)) - dynamic - unfused
    placement = planner.placement(chosen, dynamic=dynamic, unfused=unfused)
    assert (placement.dynamic, placement.unfused) == (dynamic, unfused)
    candidate = inserter.model(placement)
    assert read(candidate).placement == placement
    strip(candidate, weights_from=inserter.index.model)
    assert fingerprint(candidate) == fingerprint(inserter.index.model)


def test_layer_norms_of_transformers_have_sums_to_keep_apart() -> None:
    for name in ("bert", "vit"):
        _, planner = zoo_inserter(name, "int8")
        assert planner.unfused, name


X = "g (float[4,4] x) => (float[4,4] y)"
SQUARE = {"w": normal(4, 4), "v": normal(4, 4), "b": normal(4)}
CASES: dict[str, tuple[str, Placement]] = {
    "graph input": (f"{X} {{ y = MatMul(x, w) }}", Placement.of(dynamic=["n0"])),
    "one after the other": (
        f"{X} {{ a = MatMul(x, w) c = Gemm(a, v, b) y = MatMul(c, w) }}",
        Placement.of(dynamic=["n0", "n1", "n2"]),
    ),
    "the bias is a dynamic product": (
        f"{X} {{ a = MatMul(x, w) y = Gemm<transB=1>(x, v, a) }}",
        Placement.of(dynamic=["n0", "n1"]),
    ),
    "the bias is a dynamic Gemm without one": (
        f"{X} {{ a = Gemm(x, w) y = Gemm<transB=1>(x, v, a) }}",
        Placement.of(dynamic=["n0", "n1"]),
    ),
    "the bias is a quantized activation": (
        f"{X} {{ a = Relu(x) c = Gemm(x, v, a) y = Add(a, c) }}",
        Placement.of(outputs=["a"], dynamic=["n1"]),
    ),
    "the bias is the weight": (f"{X} {{ y = Gemm(x, w, w) }}", Placement.of(dynamic=["n0"])),
    "an Add behind it that is no bias": (
        f"{X} {{ a = Gemm(x, w) y = Add(a, b) }}", Placement.of(dynamic=["n0"]),
    ),
    "one weight, both layouts and Q/DQ": (
        f"{X} {{ a = Gemm(x, w) c = Gemm<transB=1>(x, w) d = MatMul(x, w) e = Add(a, c)"
        " y = Add(d, e) }",
        Placement.of([("w", "n2", 1), ("x", "n2", 0)], dynamic=["n0", "n1"]),
    ),
    "its input is quantized": (
        f"{X} {{ a = MatMul(x, w) c = MatMul(x, w) y = Add(a, c) }}",
        Placement.of([("x", "n0", 0)], dynamic=["n0", "n1"]),
    ),
    "its result leaves the graph, quantized": (
        f"{X} {{ y = Gemm(x, w, b) }}", Placement.of(outputs=["y"], dynamic=["n0"]),
    ),
    "its result leaves the graph and is read": (
        "g (float[4,4] x) => (float[4,4] a, float[4,4] y) { a = MatMul(x, w) y = MatMul(a, v) }",
        Placement.of([("a", "", 0)], dynamic=["n0", "n1"]),
    ),
    "names that we would choose": (
        f"{X} {{ x_dynamic_quantized = Relu(x)"
        " x_dynamic_scale = MatMul(x_dynamic_quantized, w_dynamic_quantized)"
        " w_dynamic = MatMul(x, w) a = Add(w_dynamic, x_dynamic_scale) y = MatMul(a, w) }",
        Placement.of(dynamic=["n1", "n2", "n4"]),
    ),
    "a row": ("g (float[4] x) => (float[4] y) { y = MatMul(x, w) }", Placement.of(dynamic=["n0"])),
    "one column": (
        "g (float[4,4] x) => (float[4,1] y) { y = MatMul(x, column) }",
        Placement.of(dynamic=["n0"]),
    ),
    "a batch of weights": (
        "g (float[2,4,4] x) => (float[2,4,5] y) { y = MatMul(x, batch) }",
        Placement.of(dynamic=["n0"]),
    ),
    "a quantized sum that is kept apart": (
        f"{X} {{ a = Add(x, x) y = LayerNormalization(a, b) }}",
        Placement.of([("x", "n0", 0)], ["a"], unfused=["n0"]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("quant_type", ["int8", "uint8"])
@pytest.mark.parametrize("case", CASES)
def test_round_trip(case: str, quant_type: str, tmp_path: Path) -> None:
    text, placement = CASES[case]
    constants = {**SQUARE, "w_dynamic_quantized": normal(4, 4), "column": normal(4, 1)}
    constants["batch"] = normal(2, 4, 5)
    used = {name: each for name, each in constants.items() if name in text}
    inserter = inserter_for(model_from_text(text, **used), ORT, quant_type, str(tmp_path))
    check_round_trip(inserter, placement)


def test_readers_of_a_tensor_share_its_quantization(tmp_path: Path) -> None:
    text = (
        f"{X} {{ a = MatMul(x, w) c = MatMul(x, v) d = MatMul(x, w) e = Add(a, c) y = Add(d, e) }}"
    )
    constants = {name: SQUARE[name] for name in "wv"}
    inserter = inserter_for(model_from_text(text, **constants), ORT, "int8", str(tmp_path))
    graph = inserter.proto(Placement.of(dynamic=["n0", "n1", "n2"])).graph
    ops = [node.op_type for node in graph.node]
    assert (ops.count("DynamicQuantizeLinear"), ops.count("MatMulInteger")) == (1, 3)
    stored = [tensor.name for tensor in graph.initializer if tensor.data_type == TensorProto.INT8]
    assert len(stored) == 2  # no zero points: they are all 0


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (Placement.of(dynamic=["gone"]), "'gone', which the model doesn't have"),
        (Placement.of(dynamic=["n1"]), "does not quantize the input of Relu"),
        (Placement.of(dynamic=["n2"]), "its second operand is not a constant"),
        (Placement.of([("w", "n0", 1)], dynamic=["n0"]), "which is dynamic"),
        (Placement.of(unfused=["gone"]), "'gone', which is not an Add"),
        (Placement.of(unfused=["n0"]), "'n0', which is not an Add"),
    ],
)
def test_what_can_not_be_written_is_named(
    placement: Placement, message: str, tmp_path: Path
) -> None:
    text = f"{X} {{ a = MatMul(x, w) c = Relu(a) y = MatMul(c, c) }}"
    inserter = inserter_for(model_from_text(text, w=SQUARE["w"]), ORT, "int8", str(tmp_path))
    with pytest.raises(UsageError, match=message):
        inserter.serialized(placement)


def test_a_dialect_without_dynamic_ops_has_none(tmp_path: Path) -> None:
    proto = model_from_text(f"{X} {{ y = MatMul(x, w) }}", w=SQUARE["w"])
    for name, dialect in DIALECTS.items():
        inserter = inserter_for(proto, dialect, next(iter(dialect.formats)), str(tmp_path))
        planner = QuantizationPlanner(inserter.index, dialect, inserter.encoder.quant_type)
        assert bool(planner.dynamic) == ("MatMul" in dialect.dynamic), name
    static = replace(ORT, dynamic=frozenset())
    inserter = inserter_for(proto, static, "int8", str(tmp_path))
    with pytest.raises(UsageError, match="at run time"):
        inserter.serialized(Placement.of(dynamic=["n0"]))
