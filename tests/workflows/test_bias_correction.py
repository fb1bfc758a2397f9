"""Mean errors of quantized ops are taken off their biases, where that brings outputs nearer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qdqtune
from qdqtune.calibration._mean_errors import mean_errors
from qdqtune.engines._reference_engine import AS_WRITTEN, reference_worker
from qdqtune.engines._worker import Worker
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._insert import CORRECTED_BIASES, Inserter
from qdqtune.qdq._op_units import merge, own_bias, unit
from qdqtune.qdq._read_back import read, strip
from qdqtune.records._placement import Placement
from qdqtune.records._quantization import QuantizeResult
from qdqtune.records._tuning import TuneResult
from qdqtune.report._bench import error_text
from qdqtune.report._quantization import stripping_text
from qdqtune.report._tuning import tune_text
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows._bias_correction import with_corrected_biases
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text
from tests.workflows.inserters import calibrated

TEXT = """g (float[1,4,16,16] x) => (float[1,8] y) {
    a = Conv<pads=[1,1,1,1]>(x, w0, b0)
    b = Relu(a)
    c = Conv<group=16, pads=[1,1,1,1]>(b, w1, b1)
    d = Relu(c)
    e = Conv<pads=[1,1,1,1]>(d, w2, b2)
    f = GlobalAveragePool(e)
    h = Flatten(f)
    m = MatMul(h, w3)
    y = Add(m, b3)
}"""
Feeds = dict[str, np.ndarray]


def depthwise() -> onnx.ModelProto:
    """Its depthwise Conv adds up positive values with weights that cancel out."""
    rng = np.random.default_rng(3)

    def drawn(*shape: int, mean: float = 0.0) -> np.ndarray:
        return rng.normal(mean, 0.5, shape).astype(np.float32)

    across = drawn(16, 1, 3, 3)
    across -= across.mean(axis=(2, 3), keepdims=True)
    weights = {"w0": drawn(16, 4, 3, 3, mean=0.5), "w1": across, "w2": drawn(16, 16, 3, 3)}
    weights |= {
        "w3": drawn(16, 8),
        "b0": drawn(16),
        "b1": drawn(16),
        "b2": drawn(16),
        "b3": drawn(8),
    }
    return model_from_text(TEXT, 17, **weights)


def samples(count: int = 24, seed: int = 0, size: int = 16) -> list[Feeds]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.gamma(2.0, 1.0, (1, 4, size, size)).astype(np.float32)} for _ in range(count)]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with reference_worker() as started:
        yield started


@pytest.fixture(scope="module", params=["onnxruntime", "openvino"])
def plain(
    request: pytest.FixtureRequest, worker: Worker, tmp_path_factory: pytest.TempPathFactory
) -> Inserter:
    folder = tmp_path_factory.mktemp(request.param)
    return calibrated(depthwise(), request.param, samples(), worker, folder)


@pytest.fixture(scope="module")
def corrected(plain: Inserter, worker: Worker) -> Inserter:
    all_of_it, _ = with_corrected_biases(plain, whole(plain), worker, samples())
    return all_of_it


def whole(inserter: Inserter) -> Placement:
    index = inserter.index
    nodes = [node for node in index.nodes if own_bias(index, node)]
    return merge(unit(index, inserter.dialect, node, whole=False) for node in nodes)


def test_the_mean_error_of_the_output_shrinks(
    plain: Inserter, corrected: Inserter, worker: Worker
) -> None:
    def outputs(path: Path) -> np.ndarray:
        opened = worker.open(path, AS_WRITTEN)
        return np.stack([worker.run(opened, feeds)["y"] for feeds in samples(32, seed=1)])

    placement = whole(plain)
    assert sorted(corrected.corrected(placement)) == ["b0", "b1", "b2", "b3"]
    exact = outputs(plain.base.write(plain.base.whole(), "float"))
    before = outputs(plain.write(placement, "plain")) - exact
    after = outputs(corrected.write(placement, "corrected")) - exact
    assert np.abs(after.mean(axis=0)).mean() < 0.7 * np.abs(before.mean(axis=0)).mean()
    assert np.square(after).mean() < np.square(before).mean()


def test_no_op_has_a_mean_error_of_its_own_afterwards(
    plain: Inserter, corrected: Inserter, worker: Worker
) -> None:
    """As far as the steps of an int32 bias allow."""
    path = plain.base.write(plain.base.whole(), "float")
    channels = {"n0": 16, "n2": 16, "n4": 16}
    before, after = (
        mean_errors(worker, path, each.write(whole(plain), "candidate"), channels, samples())
        for each in (plain, corrected)
    )
    assert before.keys() == after.keys() == channels.keys()
    for name, errors in after.items():
        assert np.abs(errors).max() < 0.1 * np.abs(before[name]).max()


def test_only_constants_change(plain: Inserter, corrected: Inserter) -> None:
    placement = whole(plain)
    before, after = plain.proto(placement), corrected.proto(placement)
    assert list(before.graph.node) == list(after.graph.node)
    assert [each.name for each in before.graph.initializer] == [
        each.name for each in after.graph.initializer
    ]
    assert read(corrected.model(placement)).placement == read(plain.model(placement)).placement
    assert {each.key: each.value for each in after.metadata_props}[CORRECTED_BIASES] == "4"
    assert corrected.encoder.digest() != plain.encoder.digest()


def test_a_float_op_keeps_its_bias(plain: Inserter, corrected: Inserter) -> None:
    assert corrected.serialized(Placement()) == plain.serialized(Placement())
    part = unit(plain.index, plain.dialect, plain.index.node["n2"], whole=False)
    assert corrected.corrected(part) == ["b1"]
    other = corrected.with_ranges(plain.encoder.ranges)
    assert other.serialized(whole(plain)) == plain.serialized(whole(plain))


def values_in(model: ir.Model, name: str) -> np.ndarray:
    constant = model.graph.initializers[name].const_value
    assert constant is not None
    return constant.numpy()


def test_stripping_puts_biases_back_if_they_are_known(plain: Inserter, corrected: Inserter) -> None:
    original = ir.from_proto(depthwise())
    exact = {name: values_in(original, name) for name in ("b0", "b1", "b2", "b3")}

    def stripped(weights_from: ir.Model | None) -> tuple[int, int]:
        model = corrected.model(whole(plain))
        stays = strip(model, weights_from).corrected
        return stays, sum(np.array_equal(exact[name], values_in(model, name)) for name in exact)

    assert stripped(None) == (4, 0)
    assert stripped(original) == (0, 4)
    del original.graph.initializers["b1"]
    assert stripped(original) == (1, 3)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a = MatMul(x, w) y = Add(b, a)", "b"),
        ("y = Gemm(x, w, b)", "b"),
        ("a = MatMul(x, w) y = Add(a, one)", None),  # not one value per channel
        ("a = MatMul(x, w) c = Add(a, b) y = Mul(c, a)", None),  # the product has another reader
        ("a = Gemm(x, w, b) y = Add(a, b)", None),  # so has the bias
        ("a = MatMul(x, w) y = Mul(a, b)", None),
        ("y = MatMul(x, w)", None),
    ],
)
def test_which_bias_is_an_ops_own(text: str, found: str | None) -> None:
    model = model_from_text(
        f"g (float[2,4] x) => (float[2,4] y) {{ {text} }}", 17, w=np.eye(4, dtype=np.float32),
        b=np.ones(4, np.float32), one=np.ones(1, np.float32),
    )  # fmt: skip
    index = GraphIndex(ir.from_proto(model))
    edge = own_bias(index, index.node["n0"])
    assert (edge.tensor if edge else None) == found


def quantized(folder: Path, **options: Any) -> QuantizeResult:
    options = {"calibration_data": samples(), **options}
    return qdqtune.quantize(
        depthwise(), folder / "quantized.onnx", engine="onnxruntime", force=True,
        calibration_method="max", performance_threshold=None, **options,
    )  # fmt: skip


def test_quantize_corrects_biases_where_accuracy_is_short(tmp_path: Path) -> None:
    before = quantized(tmp_path, bias_correction="none", min_sqnr_db=None).report
    assert before.corrected_biases == 0
    assert before.worst_db is not None
    result = quantized(tmp_path, min_sqnr_db=before.worst_db - 2.0)
    assert result.report.corrected_biases > 0
    assert (result.report.worst_db or 0.0) > before.worst_db
    assert result.report.qdq_pairs == before.qdq_pairs
    assert "taken off their biases" in result.table
    found = qdqtune.compare(depthwise(), tmp_path / "quantized.onnx", data=samples(4))
    assert found.corrected_biases == result.report.corrected_biases
    assert found.layers
    assert not found.unpaired
    assert "taken off their biases" in error_text(found, 3)
    report = qdqtune.strip(tmp_path / "quantized.onnx", tmp_path / "float.onnx")
    assert report.corrected_biases == result.report.corrected_biases
    assert f"{report.corrected_biases} biases stay corrected" in stripping_text(report)


def test_nothing_is_corrected_without_need_or_data(tmp_path: Path) -> None:
    """Random inputs tell nothing of the means of real ones."""
    plain = quantized(tmp_path, bias_correction="none", min_sqnr_db=None).report
    assert (plain.worst_db or 0.0) > 25.0
    assert quantized(tmp_path, min_sqnr_db=15.0).report.corrected_biases == 0
    near_db = (plain.worst_db or 0.0) - 2.0
    unsure = quantized(tmp_path, min_sqnr_db=near_db, calibration_data=None)
    assert unsure.report.corrected_biases == 0


def tuned(folder: Path, **options: Any) -> TuneResult:
    rng = np.random.default_rng(4)
    sizes, weights = (4, 32, 32, 32, 8), {}
    for number, (before, after) in enumerate(itertools.pairwise(sizes)):
        weights[f"w{number}"] = rng.normal(0.0, 0.1, (after, before, 3, 3)).astype("f")
        weights[f"b{number}"] = rng.normal(size=after).astype("f")
    text = """g (float[1,4,32,32] x) => (float[1,8,32,32] y) {
        a = Conv<pads=[1,1,1,1]>(x, w0, b0)
        b = Relu(a)
        c = Conv<pads=[1,1,1,1]>(b, w1, b1)
        d = Relu(c)
        e = Conv<pads=[1,1,1,1]>(d, w2, b2)
        f = Relu(e)
        y = Conv<pads=[1,1,1,1]>(f, w3, b3)
    }"""
    onnx.save(model_from_text(text, **weights), folder / "model.onnx")
    return tune(
        folder / "model.onnx", output_dir=folder / "run", engine="simulated", engine_options=QUIET,
        calibration_data=samples(size=32), calibration_method="max", preset="quick",
        min_sqnr_db=32.5, report=False, **{"max_benchmarks": 3, **options},
    )  # fmt: skip


def test_tune_corrects_biases_and_a_resumed_run_again(tmp_path: Path) -> None:
    first = tuned(tmp_path)
    assert not first.summary.kept_float
    assert first.summary.corrected_biases > 0
    assert "taken off their biases" in tune_text(first)
    again = tuned(tmp_path)
    assert again.summary.benchmarks == 0
    assert again.summary.corrected_biases == first.summary.corrected_biases
    assert again.summary.output_sqnr_db == first.summary.output_sqnr_db
    assert again.summary.final_sha256 == first.summary.final_sha256


def test_a_search_goes_on_if_that_is_all_its_best_seed_lacked(tmp_path: Path) -> None:
    corrected = tuned(tmp_path, max_benchmarks=40).summary
    assert corrected.corrected_biases > 0
    assert not corrected.lost_to_accuracy
    assert corrected.benchmarks > 5


def test_less_stays_float_for_it(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("auto", "none")]
    for folder in folders:
        folder.mkdir()
    corrected, plain = (tuned(folder, bias_correction=folder.name) for folder in folders)
    assert plain.summary.corrected_biases == 0
    assert "left float" in plain.summary.lost_to_accuracy
    assert not corrected.summary.lost_to_accuracy
    assert corrected.summary.qdq_pairs > plain.summary.qdq_pairs
