"""Ranges that cut off rare values, from values that come out of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import psutil
import pytest

from qdqtune.calibration._instrumentation import (
    TensorStatistics,
    collect_statistics,
    even_step,
    watched_tensors,
)
from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.calibration._ranges import ranges_by_way
from qdqtune.engines._worker import Worker
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import infer_shapes
from qdqtune.qdq.dialects import ONNXRUNTIME
from qdqtune.records._ranges import RangeMethod
from tests.conftest import model_from_text
from tests.in_process import real_processes

UNSIGNED = ONNXRUNTIME.formats["int8"].activation


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with real_processes(), Worker() as worker:
        yield worker


def prepared(proto: onnx.ModelProto, folder: Path) -> PreparedModel:
    model = ir.from_proto(proto)
    infer_shapes(model)
    return PreparedModel(model, folder)


def seen_in(
    worker: Worker, folder: Path, shape: str, samples: list[np.ndarray], text: str = "y = Neg(x)"
) -> TensorStatistics:
    base = prepared(
        model_from_text(f"g (float[{shape}] x) => (float[{shape}] y) {{ {text} }}"), folder
    )
    feeds = ({"x": sample} for sample in samples)
    return collect_statistics(base, worker, feeds, watched_tensors(base.index), with_values=True)


@pytest.mark.parametrize("shape", ["N,M", "16,10000"], ids=["open", "known"])
def test_rare_values_are_cut_off_in_every_way_but_one(
    worker: Worker, shape: str, tmp_path: Path
) -> None:
    values = np.random.default_rng(0).normal(size=(64, 10_000)).astype(np.float32)
    values[5, 7] = 12.0
    seen = seen_in(worker, tmp_path, shape, np.split(values, 4))
    ways = ranges_by_way(seen, UNSIGNED)
    assert set(ways) == set(RangeMethod)
    assert ways[RangeMethod.MAX]["x"] == (values.min(), 12.0)
    for way, ranges in ways.items():
        low, high = ranges["x"]
        assert (low, high) == pytest.approx((-ranges["y"][1], -ranges["y"][0]), rel=0.15)
        if way is not RangeMethod.MAX:
            assert -6.0 < low < -3.0
            assert 3.0 < high < 11.0


@pytest.mark.parametrize("shape", ["N,M", "1,400000"], ids=["open", "known"])
def test_all_of_a_large_tensor_is_looked_at(worker: Worker, shape: str, tmp_path: Path) -> None:
    values = np.zeros((1, 400_000), np.float32)
    values[:, 300_000:] = np.random.default_rng(0).uniform(0, 9, size=100_000)
    seen = seen_in(worker, tmp_path, shape, [values] * 4)
    histogram = seen.histograms["x"]
    assert 4 * 3000 <= histogram.size <= 4 * 4200
    assert histogram.zeros / histogram.size == pytest.approx(0.75, abs=0.01)
    low, high = ranges_by_way(seen, UNSIGNED)[RangeMethod.PERCENTILE]["x"]
    assert (low, high) == (0.0, pytest.approx(9.0, rel=0.02))


@pytest.mark.parametrize(
    "shape", [(1, 128, 768), (1, 3, 224, 224), (1, 197, 384), (1, 56, 56, 96), (1, 64, 112, 112)]
)
def test_every_channel_is_looked_at(shape: tuple[int, ...]) -> None:
    taken = np.arange(0, np.prod(shape), even_step(shape, 4096))
    assert 2000 < len(taken) <= 4096
    for places, size in zip(np.unravel_index(taken, shape), shape, strict=True):
        counts = np.bincount(places, minlength=size)
        assert counts.min() > 0
        assert counts.max() - counts.min() <= 0.3 * counts.mean() + 2


def test_sizes_may_differ_and_be_none(worker: Worker, tmp_path: Path) -> None:
    samples = [np.full((rows, 3), rows, np.float32) for rows in (2, 0, 5)]
    seen = seen_in(worker, tmp_path, "N,3", samples)
    assert seen.whole == {"x": (2.0, 5.0), "y": (-5.0, -2.0)}
    assert (seen.samples, seen.histograms["y"].size) == (3, 21)
    assert not seen.strange


def test_what_is_no_number_has_no_range_in_any_way(worker: Worker, tmp_path: Path) -> None:
    sample = np.array([[1.0, 0.0, -1.0]], np.float32)
    seen = seen_in(worker, tmp_path, "1,3", [sample], "l = Log(x) b = IsNaN(l) y = Where(b, x, x)")
    assert seen.strange == {"l": 0}
    assert all(set(ranges) == {"x", "y"} for ranges in ranges_by_way(seen, UNSIGNED).values())


def test_extremes_are_the_same_with_values_and_without(
    worker: Worker, residual: onnx.ModelProto, tmp_path: Path
) -> None:
    base = prepared(residual, tmp_path)
    tensors = watched_tensors(base.index)
    bare, full = (
        collect_statistics(
            base, worker, random_inputs(base.index, 3), tensors, with_values=with_values
        )
        for with_values in (False, True)
    )
    assert bare.whole == full.whole
    assert not bare.histograms
    assert set(ranges_by_way(bare, UNSIGNED)) == {RangeMethod.MAX}


def test_histograms_of_many_samples_take_the_memory_of_a_few(
    worker: Worker, tmp_path: Path
) -> None:
    base = prepared(
        model_from_text("g (float[N,50000] x) => (float[N,50000] y) { y = Relu(x) }"), tmp_path
    )
    used: list[int] = []

    def progress(done: int, _total: int | None) -> None:
        if done in (20, 200):
            used.append(psutil.Process().memory_info().rss)
            used.append(psutil.Process(worker.pid).memory_info().rss)

    samples = ({"x": np.full((1, 50_000), n, np.float32)} for n in range(200))
    tensors = watched_tensors(base.index)
    collect_statistics(base, worker, samples, tensors, with_values=True, progress=progress)
    assert used[2] - used[0] < 5e6  # 180 samples are 36 MB, what is looked at of them 6 MB
    assert used[3] - used[1] < 5e6
