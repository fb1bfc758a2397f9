"""Ranges in every way, and the cache of them, from the workflow's side."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqtune.calibration import _ranges as range_cache
from qdqtune.cli._flags import add_config
from qdqtune.config import CalibrationConfig
from qdqtune.engines._worker import Worker
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._quantization_planner import select_ops
from qdqtune.qdq.dialects import ONNXRUNTIME, TENSORRT
from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._ranges import RangeMethod, Ranges
from qdqtune.workflows._sample_provider import ranges_in_every_way, sample_provider
from qdqtune.workflows._source_model import open_source, ranges_behind_casts
from tests.conftest import model_from_text

DATA = np.random.default_rng(0).normal(size=(12, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


class Calibration:
    """Calibrates a model; counts the runs it takes."""

    def __init__(self, model: Path, worker: Worker, folder: Path) -> None:
        self.model, self.worker, self.folder = model, worker, folder
        self.told: list[tuple[int, int | None]] = []

    def __call__(
        self, data: Any = DATA, method: RangeMethod | None = None, *, seed: int = 0,
        limit: int | None = None, quant_type: str = "int8",
    ) -> dict[RangeMethod, Ranges]:  # fmt: skip
        dialect = TENSORRT if quant_type == "fp8" else ONNXRUNTIME
        self.told = []
        source = open_source(self.model, dialect.format_of(quant_type).least_opset)
        provider = sample_provider(source, InputRequest(seed=seed), data, limit)
        self.folder.mkdir(exist_ok=True)
        base = PreparedModel(source.model, self.folder)
        weighted = {node.op_type for node in base.index.nodes} & {"Conv", "MatMul"}
        placement = select_ops(base.index, dialect, sorted(weighted), quant_type).placement
        return dict(
            ranges_in_every_way(
                source, base, self.worker, placement, provider, dialect.format_of(quant_type),
                method, lambda done, total: self.told.append((done, total)),
            )
        )  # fmt: skip


@pytest.fixture
def calibrate(residual_path: Path, worker: Worker, tmp_path: Path) -> Calibration:
    return Calibration(residual_path, worker, tmp_path / "base")


@pytest.fixture
def hits(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """Tells how many calibrations were known, since it was last asked."""
    caplog.set_level(logging.INFO, "qdqtune")

    def count() -> int:
        found = caplog.text.count("known from an earlier calibration")
        caplog.clear()
        return found

    return count


def test_every_way_or_the_one_that_is_asked_for(calibrate: Calibration) -> None:
    ways = calibrate()
    assert list(ways) == list(RangeMethod)
    whole = ways[RangeMethod.MAX]
    assert whole.samples == 12
    assert whole.by_tensor["x"] == (DATA.min(), DATA.max())
    for way, ranges in ways.items():
        assert calibrate(method=way) == {way: ranges}
        for name, (low, high) in ranges.by_tensor.items():
            assert whole.by_tensor[name][0] <= low <= 0.0 <= high <= whole.by_tensor[name][1]


@pytest.mark.parametrize(("data", "quant_type"), [(None, "int8"), (DATA, "fp8")])
def test_random_inputs_and_float8_are_taken_whole(
    calibrate: Calibration, data: np.ndarray | None, quant_type: str
) -> None:
    assert list(calibrate(data, quant_type=quant_type)) == [RangeMethod.MAX]


def test_each_pass_tells_how_far_it_is(calibrate: Calibration) -> None:
    for _ in range(2):  # the second time, samples are only read
        calibrate(DATA[:3])
        assert calibrate.told == [(1, 3), (2, 3), (3, 3)]
    calibrate(None)
    assert calibrate.told[-1] == (8, 8)
    calibrate(lambda: iter(np.split(DATA * 2, 12)), limit=2)
    assert calibrate.told == [(1, None), (2, None)]


@pytest.mark.parametrize("data", [DATA, None], ids=["data", "random"])
def test_the_same_again_is_known(calibrate: Calibration, hits: Any, data: Any) -> None:
    first = calibrate(data)
    assert not hits()
    assert calibrate(data) == first
    assert hits() == 1


def test_the_content_counts_and_not_where_it_is(
    calibrate: Calibration, hits: Any, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", DATA)
    np.savez(tmp_path / "x.npz", x=DATA.astype(np.float64))
    folder = tmp_path / "samples"
    folder.mkdir()
    for number, sample in enumerate(DATA):
        np.save(folder / f"{number}.npy", sample[np.newaxis])
    rows = np.split(DATA, 12)
    sources = [
        tmp_path / "x.npy", tmp_path / "x.npz", folder, {"x": DATA}, list(rows),
        (row for row in rows), lambda: iter(rows), DATA.astype(np.float64),
    ]  # fmt: skip
    first = calibrate(DATA)
    for source in sources:
        assert calibrate(source) == first
    assert hits() == len(sources)


def changed_weight(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.name == "w1":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 2, "w1"))


def changed_op(model: onnx.ModelProto) -> None:
    next(node for node in model.graph.node if node.op_type == "Relu").op_type = "Sigmoid"


@pytest.mark.parametrize("change", [changed_weight, changed_op])
def test_another_model_is_not_known(
    calibrate: Calibration, hits: Any, residual: onnx.ModelProto, change: Any
) -> None:
    first = calibrate()
    change(residual)
    onnx.save(residual, calibrate.model)
    calibrate.folder = calibrate.folder.with_name("other")
    assert calibrate() != first
    assert not hits()


def test_other_samples_are_not_known(calibrate: Calibration, hits: Any) -> None:
    first = calibrate()
    other = DATA.copy()
    other[-1] *= 3  # the first sample is the same
    assert calibrate(other) != first
    assert calibrate(limit=11) != first
    assert calibrate(DATA[::-1])[RangeMethod.MAX] == first[RangeMethod.MAX]
    calibrate(None)
    calibrate(None, seed=1)
    assert not hits()


def test_what_was_found_for_one_way_is_not_taken_for_all(calibrate: Calibration, hits: Any) -> None:
    assert list(calibrate(method=RangeMethod.MAX)) == [RangeMethod.MAX]
    assert list(calibrate()) == list(RangeMethod)
    assert not hits()
    assert list(calibrate(method=RangeMethod.MAX)) == [RangeMethod.MAX]
    assert hits() == 1


def test_without_a_cache(
    calibrate: Calibration, hits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(range_cache.FOLDER, "")
    assert calibrate() == calibrate()
    assert not hits()


def test_a_tensor_without_a_range_is_named_each_time(
    worker: Worker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_from_text(
        "g (float[1,3,8,8] x) => (float[1,1,8,8] y) { l = Log(x) y = Conv(l, w) }",
        w=np.ones((1, 3, 1, 1), np.float32),
    )
    onnx.save(model, tmp_path / "log.onnx")
    calibrate = Calibration(tmp_path / "log.onnx", worker, tmp_path / "base")
    for _ in range(2):
        caplog.clear()
        calibrate(np.abs(DATA[:3]) * 0)
        assert "l takes infinite or undefined values, first in sample 0" in caplog.text


@pytest.fixture
def lookup(worker: Worker, tmp_path: Path) -> Callable[[str], Calibration]:
    """Calibrates a table of numbers 0 to 19 with a MatMul behind it, of a given batch."""

    def of_batch(batch: str) -> Calibration:
        model = model_from_text(
            f"""g (int64[{batch},4] ids) => (float[{batch},4,2] y) {{
                h = Gather(table, ids)
                y = MatMul(h, w)
            }}""",
            table=np.arange(20, dtype=np.float32)[:, np.newaxis] * np.ones((1, 3), np.float32),
            w=np.ones((3, 2), np.float32),
        )
        onnx.save(model, tmp_path / "lookup.onnx")
        return Calibration(tmp_path / "lookup.onnx", worker, tmp_path / "base")

    return of_batch


@pytest.mark.parametrize(("batch", "samples"), [("N", 10), ("1", 10), ("2", 5), ("4", 2)])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32])
def test_integers_in_batches_of_any_size(
    lookup: Callable[[str], Calibration], batch: str, samples: int, dtype: type
) -> None:
    ids = (np.arange(40) % 16 + 3).reshape(10, 4).astype(dtype)
    ranges = lookup(batch)({"ids": ids}, RangeMethod.MAX)[RangeMethod.MAX]
    assert ranges.samples == samples
    assert ranges.by_tensor["h"] == (3.0, 18.0)


def test_batches_that_code_makes_may_differ(lookup: Callable[[str], Calibration]) -> None:
    ids = np.arange(20).reshape(5, 4)
    ranges = lookup("N")([ids[:1], ids[1:4], ids[4:]], RangeMethod.ENTROPY)[RangeMethod.ENTROPY]
    assert (ranges.samples, ranges.by_tensor["h"]) == (3, (0.0, 19.0))


def test_less_than_a_batch_is_refused(lookup: Callable[[str], Calibration]) -> None:
    with pytest.raises(UsageError, match="takes \\(8, 4\\)") as caught:
        lookup("8")(np.zeros((5, 4), np.int64))
    assert "too short for one batch of 8" in caught.value.hint


@pytest.mark.parametrize(
    ("spelled", "method"), [("minmax", "max"), ("max", "max"), ("entropy", "entropy")]
)
def test_the_earlier_name_of_a_method_is_read(spelled: str, method: str) -> None:
    parser = argparse.ArgumentParser()
    add_config(parser, CalibrationConfig)
    assert parser.parse_args(["--calibration_method", spelled]).calibration_method == method
    assert RangeMethod(spelled).value == method
    assert "{max,entropy,percentile,mse}" in parser.format_help()


def test_a_method_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_config(parser, CalibrationConfig)
    with pytest.raises(SystemExit):
        parser.parse_args(["--calibration_method", "median"])
    assert "invalid choice: 'median'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="median"):
        RangeMethod("median")


def test_ranges_hold_on_both_sides_of_a_cast(tmp_path: Path) -> None:
    """A model converted to half precision has Casts at its inputs and at its outputs."""
    text = "g (float[4] x) => (float[4] y) { a = Cast<to=10>(x) b = Relu(a) y = Cast<to=1>(b) }"
    onnx.save(model_from_text(text), tmp_path / "m.onnx")
    source = open_source(tmp_path / "m.onnx")
    index = PreparedModel(source.model, tmp_path).index
    found = ranges_behind_casts(Ranges({"x": (-1.0, 2.0), "y": (0.0, 2.0)}), index)
    assert found.by_tensor == {"x": (-1.0, 2.0), "a": (-1.0, 2.0), "b": (0.0, 2.0), "y": (0.0, 2.0)}
