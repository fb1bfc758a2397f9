"""A subgraph cut out of a model computes what the model computes there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from qdqtune import zoo
from qdqtune.calibration._instrumentation import capture_tensors
from qdqtune.engines._worker import Worker
from qdqtune.graph._input_shapes import dims_of
from qdqtune.graph._prepared_model import PreparedModel, extract
from qdqtune.graph._shapes import at_shapes
from qdqtune.records._errors import ModelError
from qdqtune.testing._bench import feeds_of
from tests.conftest import model_from_text
from tests.cutting import SMALL, Cut, cut

Arrays = dict[str, Any]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


def run(base: PreparedModel, feeds: Arrays) -> Arrays:
    """Run a model with ONNX Runtime."""
    path = base.write(base.whole(), "subgraph")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def tapped(made: Cut, worker: Worker, feeds: Arrays, tensors: list[str]) -> Arrays:
    shapes = {name: tuple(d or 1 for d in made.index.shape(name) or ()) for name in tensors}
    return dict(capture_tensors(made.base, worker, feeds, shapes))


@pytest.mark.parametrize("name", ["resnet18", "bert", "convnext", "shufflenet_v2"])
def test_a_subgraph_computes_what_the_model_does_there(
    name: str, worker: Worker, tmp_path: Path
) -> None:
    proto = zoo.build(name, **SMALL[name])
    made = cut(proto, tmp_path)
    borders = [t for content in made.contents for t in (*content.inputs, *content.outputs)]
    values = tapped(made, worker, feeds_of(proto), list(dict.fromkeys(borders)))
    assert len(made.contents) > 5
    for content in made.contents:
        subgraph = made.extracted(content)
        onnx.checker.check_model(str(subgraph.write(subgraph.whole(), "subgraph")), full_check=True)
        found = run(subgraph, {tensor: values[tensor] for tensor in content.inputs})
        assert found.keys() == set(content.outputs)
        for tensor, array in found.items():
            assert array.dtype == values[tensor].dtype
            np.testing.assert_allclose(array, values[tensor], rtol=1e-3, atol=1e-4)


RESIDUAL = """g (float[1,4,8,8] x) => (float[1,4,8,8] y, float[1,4,8,8] b) {
    a = Conv(x, w)
    b = Relu(a)
    c = Conv(b, w)
    y = Add(c, b)
}"""


def residual(folder: Path, dtype: type = np.float32) -> Cut:
    weights = np.random.default_rng(0).normal(size=(4, 4, 1, 1)).astype(dtype)
    text = RESIDUAL if dtype is np.float32 else RESIDUAL.replace("float[", "float16[")
    return cut(model_from_text(text, w=weights), folder)


def test_its_borders_have_the_shapes_and_types_of_the_model(tmp_path: Path) -> None:
    made = residual(tmp_path)
    subgraph = made.extracted(made.content("n2", "n3"))
    graph = onnx.ModelProto.FromString(subgraph.whole()).graph
    kinds = {v.name: v.type.tensor_type for v in (*graph.input, *graph.output)}
    assert {name: kind.elem_type for name, kind in kinds.items()} == {"b": 1, "y": 1}
    assert {tuple(d.dim_value for d in kind.shape.dim) for kind in kinds.values()} == {(1, 4, 8, 8)}
    assert [node.op_type for node in graph.node] == ["Conv", "Add"]
    # What the quantizer needs to know inside of it is known, too.
    assert subgraph.index.shape("c") == (1, 4, 8, 8)
    assert subgraph.index.is_float("c")


def test_what_is_read_inside_may_be_an_output_as_well(tmp_path: Path) -> None:
    made = residual(tmp_path)
    content = made.content("n0", "n1", "n2", "n3")
    assert (content.inputs, set(content.outputs)) == (("x",), {"y", "b"})
    found = run(made.extracted(content), {"x": np.ones((1, 4, 8, 8), np.float32)})
    assert found.keys() == {"y", "b"}
    assert made.content("n0", "n1").outputs == ("b",)


def test_half_floats_stay_half_floats(tmp_path: Path) -> None:
    made = residual(tmp_path, np.float16)
    content = made.content("n2", "n3")
    found = run(made.extracted(content), {"b": np.ones((1, 4, 8, 8), np.float16)})
    assert found["y"].dtype == np.float16


def test_weights_stay_where_they_are_and_are_shared(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(64, 64, 1, 1)).astype(np.float32)
    text = RESIDUAL.replace("[1,4,8,8]", "[1,64,8,8]")
    made = cut(model_from_text(text, w=weights), tmp_path)
    before = (tmp_path / "weights.bin").stat().st_size
    for nodes in (("n0", "n1"), ("n2", "n3")):
        subgraph = made.extracted(made.content(*nodes))
        path = subgraph.write(subgraph.whole(), "subgraph")
        assert path.stat().st_size < weights.nbytes / 8
        loaded = onnx.load(path)
        (constant,) = loaded.graph.initializer
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(constant), weights)
    assert (tmp_path / "weights.bin").stat().st_size == before


def test_open_dims_stay_open(tmp_path: Path) -> None:
    text = """g (float[N,8] x) => (float[N,8] y) {
        a = MatMul(x, w)
        b = Relu(a)
        y = MatMul(b, v)
    }"""
    eye = np.eye(8, dtype=np.float32)
    proto = onnx.shape_inference.infer_shapes(model_from_text(text, w=eye, v=2 * eye))
    base = PreparedModel(ir.from_proto(proto), tmp_path)
    dims = {name: dims_of(value) for name, value in base.index.value.items()}
    with at_shapes(base.index.model, {"x": (4, 8)}):
        model = extract(base, ["n1", "n2"], ["a"], ["y"], {k: v for k, v in dims.items() if v})
    subgraph = PreparedModel(model, tmp_path, store=base.store)
    assert subgraph.index.shape("a") == (None, 8)
    for rows in (4, 7):
        found = run(subgraph, {"a": np.full((rows, 8), 3, np.float32)})
        np.testing.assert_array_equal(found["y"], np.full((rows, 8), 6, np.float32))


def test_control_flow_is_not_cut_out(tmp_path: Path) -> None:
    proto = model_from_text(
        """g (float[4] x, bool flag) => (float[4] y) {
            r = Relu(x)
            y = If (flag) <
                then_branch = then () => (float[4] a) { a = Neg(r) },
                else_branch = other () => (float[4] b) { b = Abs(r) }
            >
        }"""
    )
    base = PreparedModel(ir.from_proto(onnx.shape_inference.infer_shapes(proto)), tmp_path)
    with pytest.raises(ModelError, match="control flow"):
        extract(base, ["n0", "n1"], ["x", "flag"], ["y"], {})
    # What it reads can be, and is seen from there.
    subgraph = extract(base, ["n0"], ["x"], ["r"], {"r": (4,)})
    assert [node.op_type for node in subgraph.graph] == ["Relu"]


def test_a_type_that_nobody_knows_is_an_error(tmp_path: Path) -> None:
    proto = model_from_text("g (float[4] x) => (float[4] y) { a = Relu(x) y = Neg(a) }")
    base = PreparedModel(ir.from_proto(proto), tmp_path)
    with pytest.raises(ModelError, match="type of 'a' is not known"):
        extract(base, ["n1"], ["a"], ["y"], {})


def test_missing_shapes_stay_open_and_the_models_metadata_stays_behind(tmp_path: Path) -> None:
    proto = model_from_text("g (float[4] x) => (float[4] y) { a = Relu(x) y = Neg(a) }")
    proto.metadata_props.add(key="qdqtune.dialect", value="old")
    base = PreparedModel(ir.from_proto(onnx.shape_inference.infer_shapes(proto)), tmp_path)
    subgraph = extract(base, ["n1"], ["a"], ["y"], {})
    assert not subgraph.metadata_props
    assert subgraph.graph.inputs[0].shape is None
    found = run(PreparedModel(subgraph, tmp_path, store=base.store), {"a": np.ones(9, np.float32)})
    np.testing.assert_array_equal(found["y"], -np.ones(9))
