"""Ops of which nothing but the weight is quantized."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune.engines import _registry as registry
from qdqtune.engines._worker import Worker
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.qdq._read_back import read, strip
from qdqtune.qdq.dialects import DIALECTS
from qdqtune.records._placement import Edge
from qdqtune.search._space import Form, Group, Space
from tests.conftest import model_from_text
from tests.cutting import Cut, cut

TEXT = """g (float[16,64] x) => (float[16,64] y) {
    a = MatMul(x, v)
    b = Relu(a)
    c = MatMul(b, w)
    y = Add(c, b)
}"""
FIRST, SECOND, ADD, FIRST_WEIGHT, SECOND_WEIGHT = range(5)


def products(folder: Path, dialect: str = "onnxruntime") -> Cut:
    rng = np.random.default_rng(0)
    weights = {name: rng.uniform(-1, 1, (64, 64)).astype(np.float32) / 8 for name in "vw"}
    return cut(model_from_text(TEXT, **weights), folder, dialect)


@pytest.fixture
def made(tmp_path: Path) -> Cut:
    return products(tmp_path)


def test_the_only_pair_is_the_weights(made: Cut) -> None:
    placement = made.planner.placement((), ["n0"])
    assert placement.edges == {Edge("v", "n0", 1)}
    assert not placement.outputs
    nodes = made.inserter.proto(placement).graph.node
    assert [node.op_type for node in nodes].count("DequantizeLinear") == 1
    assert "QuantizeLinear" not in {node.op_type for node in nodes}
    (stored,) = (node for node in nodes if node.op_type == "DequantizeLinear")
    product = next(node for node in nodes if node.name == "n0")
    assert list(product.input) == ["x", stored.output[0]]


def test_only_constants_in_the_place_of_a_weight_are_weights(tmp_path: Path) -> None:
    text = (
        "g (float[4,4] x) => (float[4,4] y) { a = MatMul(w, x) b = MatMul(x, a) y = MatMul(b, w) }"
    )
    made = cut(model_from_text(text, w=np.ones((4, 4), np.float32)), tmp_path)
    found = {name: made.planner.weight_edges(name) for name in made.planner.compute}
    assert found["n1"] == frozenset()
    assert found["n2"] == {Edge("w", "n2", 1)}
    assert all(edge.position == 1 for edges in found.values() for edge in edges)
    assert made.planner.weight_edges("n0") == frozenset()


def test_what_is_stored_is_told_from_what_is_computed_in_integers(made: Cut) -> None:
    planner = made.planner
    stored = planner.placement((), ["n0", "n2"])
    assert planner.stored(stored) == {"n0", "n2"}
    assert planner.quantized(stored) == frozenset()
    whole = planner.placement(["n0", "n2"])
    assert planner.stored(whole) == planner.quantized(whole) - {"n3"} == {"n0", "n2"}
    mixed = planner.placement(["n0"], ["n2"])
    # What the second one reads is quantized by the first one, too.
    assert planner.quantized(mixed) == {"n0", "n2"}
    assert planner.quantized(planner.placement(["n2"], ["n0"])) == {"n2"}
    assert planner.stored(mixed) == {"n0", "n2"}


@pytest.fixture
def space(made: Cut) -> Space:
    groups = [
        Group("a", 0, "MatMul", ("n0",)),
        Group("b", 0, "MatMul", ("n2",)),
        Group("c", 0, "Add", ("n3",)),
        Group("a", 1, "MatMul", ("n0",), form=Form.WEIGHTS),
        Group("b", 1, "MatMul", ("n2",), form=Form.WEIGHTS),
    ]
    return Space(made.planner, groups, {})


def test_a_space_tells_both_forms_apart(space: Space) -> None:
    full, weight = frozenset({FIRST}), frozenset({FIRST_WEIGHT})
    assert space.key(full) != space.key(weight) != space.key(frozenset())
    assert space.closed(weight) == weight
    assert FIRST in space.closed(full)
    # With the whole op, its weight is quantized anyway.
    assert space.key(full | weight) == space.key(full)
    assert space.closed(full | weight) == space.closed(full)


def test_equal_placements_are_closed_to_choices_of_the_same_ops(space: Space) -> None:
    every = [frozenset(n for n in range(5) if bits >> n & 1) for bits in range(32)]
    by_key: dict[str, set[frozenset[str]]] = {}
    for state in every:
        closed = space.closed(state)
        assert space.key(closed) == space.key(state)
        nodes = frozenset(name for number in closed for name in space.groups[number].nodes)
        by_key.setdefault(space.key(state), set()).add(nodes)
    assert all(len(nodes) == 1 for nodes in by_key.values())
    assert len(by_key) > 12


@pytest.mark.parametrize("dialect", ["onnxruntime", "openvino"])
def test_it_is_read_back_as_it_was_written(tmp_path: Path, dialect: str) -> None:
    made = products(tmp_path, dialect)
    for names in (["n0"], ["n0", "n2"]):
        placement = made.planner.placement((), names)
        model = made.inserter.model(placement)
        reading = read(model)
        assert reading.placement.edges == placement.edges
        assert not reading.placement.outputs
        assert reading.encodings.keys() == {"v", "w"} - ({"w"} if names == ["n0"] else set())


def test_what_is_taken_out_leaves_the_float_model(made: Cut) -> None:
    candidate = made.inserter.model(made.planner.placement((), ["n0", "n2"]))
    original = made.base.load(made.base.whole())
    strip(candidate, weights_from=original)
    assert fingerprint(candidate) == fingerprint(original)
    # Without the original, the weights are what they were rounded to.
    rounded = made.inserter.model(made.planner.placement((), ["n0"]))
    strip(rounded)
    assert {node.op_type for node in rounded.graph} == {"MatMul", "Relu", "Add"}
    values = values_of(rounded, "v")
    np.testing.assert_allclose(values, values_of(original, "v"), atol=1e-3)
    assert not np.array_equal(values, values_of(original, "v"))


def values_of(model: ir.Model, name: str) -> np.ndarray:
    constant = model.graph.initializers[name].const_value
    assert constant is not None
    return constant.numpy()


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_engines_run_it_and_lose_little(engine: str, tmp_path: Path) -> None:
    if not registry.available(engine).usable:
        pytest.skip(f"{engine} is not installed")
    made = products(tmp_path, engine)
    feeds = {"x": np.random.default_rng(1).normal(size=(16, 64)).astype(np.float32)}
    placements = [made.planner.placement((), names) for names in ((), ["n0", "n2"])]
    found = []
    with Worker(engine) as worker:
        for number, placement in enumerate(placements):
            path = made.inserter.write(placement, f"candidate{number}")
            onnx.checker.check_model(str(path), full_check=True)
            found.append(worker.run(worker.open(path), feeds)["y"])
    lost = float(np.mean((found[1] - found[0]) ** 2) / np.mean(found[0] ** 2))
    assert 0.0 < lost < 1e-3


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_dialects_name_only_ops_that_have_weights(name: str) -> None:
    dialect = DIALECTS[name]
    for op_type in dialect.weights_only:
        assert dialect.rules[op_type].weight is not None
    assert dialect.stored_weights or not dialect.weights_only


CONV = """g (float[1,32,12,12] x) => (float[1,32,12,12] y) {
    y = Conv<pads=[1,1,1,1]>(x, v, b)
}"""


def test_with_float_weights_an_op_is_fed_and_not_quantized(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    shapes = {"v": (32, 32, 3, 3), "b": (32,)}
    constants = {name: rng.normal(size=s).astype(np.float32) / 8 for name, s in shapes.items()}
    made = cut(model_from_text(CONV, **constants), tmp_path)
    whole = made.planner.placement(["n0"])
    placement = made.planner.placement(["n0"], float_weights=["n0"])
    assert whole.tensors - placement.tensors == {"v", "b"}
    assert made.planner.fed(placement) == made.planner.fed(whole) == {"n0"}
    assert made.planner.quantized(placement) == frozenset()
    groups = [Group("p", n, "Conv", ("n0",), form=form) for n, form in enumerate(Form)]
    space = Space(made.planner, groups, {})
    assert space.placement(frozenset({2})) == placement
    assert space.placement(frozenset({0, 2})) == whole
    assert space.nearest(placement) == {2}
    file = made.inserter.write(placement, "fed")
    assert read(ir.load(file)).placement.tensors == {"x", "y"}
    with Worker(registry.REFERENCE) as worker:
        model = worker.open(file)
        worker.feed(model, {"x": np.zeros((1, 32, 12, 12), np.float32)})
        assert "QLinearConv" in {layer.op_type for layer in worker.layers(model, 3)}
