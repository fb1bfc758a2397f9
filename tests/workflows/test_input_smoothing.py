"""Inputs of products are smoothed where a few of their channels are much larger than the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qdqtune
from qdqtune.calibration._channel_ranges import channel_ranges
from qdqtune.engines._reference_engine import AS_WRITTEN, reference_worker
from qdqtune.engines._worker import Worker
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._op_units import merge, unit
from qdqtune.qdq._read_back import read, strip
from qdqtune.qdq._smoothing import SMOOTHED, smoothable, smoothed_products
from qdqtune.records._placement import Placement
from qdqtune.records._quantization import QuantizeResult
from qdqtune.records._tuning import TuneResult
from qdqtune.report._bench import error_text
from qdqtune.report._quantization import stripping_text
from qdqtune.report._tuning import tune_text
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows._input_smoothing import STRENGTHS, with_smoothed_inputs
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text
from tests.workflows.inserters import calibrated

TEXT = """g (float[32,512] x) => (float[32,512] y) {
    a = MatMul(x, q)
    k = MatMul(x, p)
    b = Add(a, k)
    c = Gemm<transB=1>(b, w, bias)
    d = Tanh(c)
    y = Gemm(d, v, bias)
}"""
Feeds = dict[str, np.ndarray]
PRODUCTS = ["n0", "n1", "n3", "n5"]


def encoder() -> onnx.ModelProto:
    """A model whose input has two channels that are a hundred times larger than the others."""
    rng = np.random.default_rng(5)
    weights = {name: rng.normal(0, 0.05, (512, 512)).astype("f") for name in ("q", "p", "w", "v")}
    for name in ("q", "p"):
        weights[name][[3, 40]] *= 0.02
    return model_from_text(TEXT, 17, bias=rng.normal(size=512).astype("f"), **weights)


def samples(count: int = 12, seed: int = 0) -> list[Feeds]:
    rng = np.random.default_rng(seed)
    sizes = np.ones(512)
    sizes[[3, 40]] = 100.0
    return [{"x": (sizes * rng.normal(size=(32, 512))).astype(np.float32)} for _ in range(count)]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with reference_worker() as started:
        yield started


@pytest.fixture(scope="module", params=["onnxruntime", "openvino", "tensorrt-8"])
def plain(
    request: pytest.FixtureRequest, worker: Worker, tmp_path_factory: pytest.TempPathFactory
) -> Inserter:
    folder = tmp_path_factory.mktemp(request.param)
    return calibrated(encoder(), request.param, samples(), worker, folder)


def whole(inserter: Inserter) -> Placement:
    index = inserter.index
    return merge(unit(index, inserter.dialect, index.node[n], whole=False) for n in PRODUCTS)


def outputs(worker: Worker, path: Path) -> np.ndarray:
    opened = worker.open(path, AS_WRITTEN)
    found = np.stack([worker.run(opened, feeds)["y"] for feeds in samples(16, seed=1)])
    worker.release(opened)
    return found


def test_ranges_of_channels_are_those_of_all_samples(plain: Inserter, worker: Worker) -> None:
    found = channel_ranges(plain.base, worker, samples(), {"x": 512, "b": 512})
    every = np.concatenate([feeds["x"] for feeds in samples()])
    low, high = found["x"]
    np.testing.assert_array_equal(low, every.min(axis=0))
    np.testing.assert_array_equal(high, every.max(axis=0))
    assert found["b"][0].shape == (512,)


def test_the_error_of_the_output_shrinks(plain: Inserter, worker: Worker) -> None:
    placement = whole(plain)
    exact = outputs(worker, plain.base.write(plain.base.whole(), "float"))
    before = outputs(worker, plain.write(placement, "plain")) - exact
    smoothed = with_smoothed_inputs(plain, placement, worker, samples())
    assert len(smoothed) == len(STRENGTHS)
    errors = []
    for number, inserter in enumerate(smoothed):
        assert sorted(inserter.smoothed(placement)) == PRODUCTS
        after = outputs(worker, inserter.write(placement, f"smoothed{number}")) - exact
        errors.append(float(np.square(after).mean()))
        assert inserter.encoder.digest() != plain.encoder.digest()
        assert read(inserter.model(placement)).placement == read(plain.model(placement)).placement
    assert min(errors) < 0.1 * float(np.square(before).mean())


def test_dynamic_products_are_smoothed_too(worker: Worker, plain: Inserter) -> None:
    if "MatMul" not in plain.dialect.dynamic:
        pytest.skip("the dialect has no dynamic products")
    placement = Placement(dynamic=frozenset(PRODUCTS))
    exact = outputs(worker, plain.base.write(plain.base.whole(), "float"))
    before = np.square(outputs(worker, plain.write(placement, "dynamic")) - exact).mean()
    smoothed = with_smoothed_inputs(plain, placement, worker, samples())
    errors = []
    for inserter in smoothed:
        assert sorted(inserter.smoothed(placement)) == PRODUCTS
        written = inserter.proto(placement)
        assert sum(node.doc_string.startswith(SMOOTHED) for node in written.graph.node) == 3
        after = outputs(worker, inserter.write(placement, "smoothed")) - exact
        errors.append(float(np.square(after).mean()))
        reading = read(inserter.model(placement))
        assert (reading.placement, reading.smoothed) == (placement, len(PRODUCTS))
        assert not reading.encodings  # they are those of multiplied weights
    assert min(errors) < 0.1 * before


def test_what_divides_a_quantized_tensor_is_no_reader_of_it(
    worker: Worker, plain: Inserter
) -> None:
    if "MatMul" not in plain.dialect.dynamic:
        pytest.skip("the dialect has no dynamic products")
    placement = Placement(outputs=frozenset({"b"}), dynamic=frozenset({"n3"}))
    inserter = with_smoothed_inputs(plain, placement, worker, samples())[0]
    assert inserter.smoothed(placement) == ["n3"]
    assert read(inserter.model(placement)).placement == read(plain.model(placement)).placement


def test_products_that_share_an_input_share_its_smoothing(plain: Inserter, worker: Worker) -> None:
    inserter = with_smoothed_inputs(plain, whole(plain), worker, samples())[0]
    written = inserter.proto(whole(plain))
    divided = [n.input[0] for n in written.graph.node if n.doc_string.startswith(SMOOTHED)]
    assert sorted(divided) == ["b", "d", "x"]
    one = unit(plain.index, plain.dialect, plain.index.node["n1"], whole=False)
    readers = [node for node in inserter.proto(one).graph.node if "x" in node.input]
    assert sorted(node.op_type for node in readers) == ["MatMul", "Mul"]


def test_only_what_is_quantized_is_smoothed(plain: Inserter, worker: Worker) -> None:
    inserter = with_smoothed_inputs(plain, whole(plain), worker, samples())[0]
    assert inserter.serialized(Placement()) == plain.serialized(Placement())
    weights = Placement.of([edge for edge in whole(plain).edges if edge.tensor == "w"])
    assert inserter.serialized(weights) == plain.serialized(weights)


def test_stripped_weights_are_those_of_the_float_model(plain: Inserter, worker: Worker) -> None:
    inserter = with_smoothed_inputs(plain, whole(plain), worker, samples())[0]
    original = ir.from_proto(encoder())
    for source in (None, original):
        model = inserter.model(whole(plain))
        assert strip(model, source).smoothed == len(PRODUCTS)
        assert not any(node.op_type == "Mul" for node in model.graph)
        for name in ("q", "p", "w", "v"):
            found, exact = (
                each.graph.initializers[name].const_value.numpy() for each in (model, original)
            )
            step = np.abs(exact).max() / 127 * 30  # the factors are at most so far apart
            np.testing.assert_allclose(found, exact, atol=step if source is None else 0.0)


def test_weights_may_be_stored_in_constant_nodes(plain: Inserter, worker: Worker) -> None:
    inserter = with_smoothed_inputs(plain, whole(plain), worker, samples())[0]
    model = inserter.model(whole(plain))
    for name, value in list(model.graph.initializers.items()):
        if name.endswith("_quantized"):
            tensor = ir.Tensor(value.const_value.numpy(), value.dtype)
            node = ir.node("Constant", [], {"value": tensor}, name=f"{name}_node")
            model.graph.insert_before(next(iter(model.graph)), node)
            ir.convenience.replace_all_uses_with(value, node.outputs[0])
            del model.graph.initializers[name]
            node.outputs[0].name = name
    assert strip(model).smoothed == len(PRODUCTS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("y = MatMul(x, w)", ["n0"]),
        ("y = Gemm<transB=1>(x, w)", ["n0"]),
        ("y = Gemm<transA=1>(x, w)", []),  # its channels are not on the last axis
        ("a = MatMul(x, w) y = Add(a, w)", []),  # the weight has another reader
        ("y = MatMul(w, x)", []),
        ("y = MatMul(x, x)", []),
        ("y = MatMul(x, batch)", []),
    ],
)
def test_which_inputs_can_be_smoothed(text: str, found: list[str]) -> None:
    model = model_from_text(
        f"g (float[4,4] x) => (float[4,4] y) {{ {text} }}", 17, w=np.eye(4, dtype=np.float32),
        batch=np.ones((1, 4, 4), np.float32),
    )  # fmt: skip
    names = smoothable(GraphIndex(ir.from_proto(model)))
    assert [name for each in names.values() for name in each] == found


@pytest.mark.parametrize("inverse", [np.zeros(512), -np.ones(512), np.ones(255), np.ones((2, 512))])
def test_a_mark_on_something_else_is_ignored(
    plain: Inserter, worker: Worker, inverse: np.ndarray
) -> None:
    inserter = with_smoothed_inputs(plain, whole(plain), worker, samples())[0]
    model = inserter.model(whole(plain))
    for node in list(model.graph):
        if node.op_type == "Mul":
            constant = ir.Value(name=f"{node.name}_other")
            constant.const_value = ir.Tensor(inverse.astype(np.float32), name=constant.name)
            model.graph.initializers.add(constant)
            node.replace_input_with(1, constant)
    assert not list(smoothed_products(model.graph))
    assert strip(model).smoothed == 0


def tuned(folder: Path, **options: Any) -> TuneResult:
    onnx.save(encoder(), folder / "model.onnx")
    return tune(
        folder / "model.onnx", output_dir=folder / "run", engine="simulated",
        engine_options=QUIET, calibration_data=samples(),
        calibration_method="max", preset="quick", max_benchmarks=3, report=False, **options,
    )  # fmt: skip


def test_tune_smooths_inputs_where_accuracy_is_short(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("auto", "none")}
    for folder in folders.values():
        folder.mkdir()
    first, without = (
        tuned(folder, smoothing=name, min_sqnr_db=25.0) for name, folder in folders.items()
    )
    assert without.summary.smoothed_inputs == 0
    assert not first.summary.kept_float
    assert first.summary.qdq_pairs > without.summary.qdq_pairs
    assert first.summary.speedup > without.summary.speedup
    assert first.summary.smoothed_inputs == len(PRODUCTS)
    assert (first.summary.output_sqnr_db or 0.0) >= 25.0
    assert "are smoothed" in tune_text(first)
    again = tuned(folders["auto"], smoothing="auto", min_sqnr_db=25.0)
    assert again.summary.final_sha256 == first.summary.final_sha256

    model = folders["auto"] / "run" / "optimized_final.onnx"
    found = qdqtune.compare(encoder(), model, data=samples(4))
    assert found.smoothed_inputs == len(PRODUCTS)
    assert {layer.own.node for layer in found.layers} >= set(PRODUCTS)
    assert not found.unpaired
    assert "are smoothed" in error_text(found, 3)
    report = qdqtune.strip(model, tmp_path / "float.onnx")
    assert "as they were" in stripping_text(report)


def test_quantize_chooses_it_by_time(tmp_path: Path) -> None:
    def quantized(**options: Any) -> QuantizeResult:
        options = {"calibration_data": samples(), **options}
        return qdqtune.quantize(
            encoder(), tmp_path / "quantized.onnx", engine="simulated", engine_options=QUIET,
            calibration_method="max", force=True, **options,
        )  # fmt: skip

    result = quantized(min_sqnr_db=25.0)
    assert result.report.smoothed_inputs == len(PRODUCTS)
    assert (result.report.worst_db or 0.0) >= 25.0
    assert "are smoothed" in result.table
    plain = quantized(min_sqnr_db=25.0, smoothing="none").report
    assert plain.smoothed_inputs == 0
    assert plain.kept_float or plain.qdq_pairs < result.report.qdq_pairs
    untimed = quantized(min_sqnr_db=None, performance_threshold=None).report
    assert untimed.smoothed_inputs == 0
    assert quantized(min_sqnr_db=None, calibration_data=None).report.smoothed_inputs == 0
