"""A limit of accuracy that could not be checked is a limit that is not kept: float is."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtune.calibration._output_error import SignalToNoise
from qdqtune.calibration._user_code import TookTooLong, UserFunction
from qdqtune.engines._worker import OpenModel, Worker
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Placement
from qdqtune.records._tuning import TuneResult
from qdqtune.report._tuning import tune_text
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows._accuracy_evaluator import AccuracyEvaluator
from qdqtune.workflows._quantize import quantize
from qdqtune.workflows.tuning import _accuracy as measured_accuracy
from qdqtune.workflows.tuning._journal_format import encode
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text

CONVS = """g (float[1,64,32,32] x) => (float[1,64,32,32] y) {
    a = Conv<pads=[1,1,1,1]>(x, w1)
    b = Relu(a)
    y = Conv<pads=[1,1,1,1]>(b, w2)
}"""


def convs(text: str = CONVS) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {f"w{n}": rng.normal(size=(64, 64, 3, 3)).astype(np.float32) / 24 for n in (1, 2)}
    return model_from_text(text, **weights)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(convs(), path)
    return path


def tuned(model: Path, output: Path, **options: Any) -> TuneResult:
    settings = {"engine": "simulated", "engine_options": QUIET, "preset": "quick"}
    return tune(model, output_dir=output, **{**settings, "max_benchmarks": 1, **options})


@pytest.fixture
def worker_dies(
    worker_processes: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, str], list[str]]:
    """Kills the process that compares outputs, so many times, when it is to run a candidate."""

    def arrange(times: int, name: str = "compared") -> list[str]:
        killed: list[str] = []
        run = Worker.run

        def deadly_run(worker: Worker, opened: OpenModel, *rest: Any, **more: Any) -> Any:
            if Path(opened.path).stem.startswith(name) and len(killed) < times:
                assert worker.pid is not None
                os.kill(worker.pid, signal.SIGKILL)
                killed.append(opened.path)
            return run(worker, opened, *rest, **more)

        monkeypatch.setattr(Worker, "run", deadly_run)
        return killed

    return arrange


def assert_float_is_kept(result: TuneResult, model: Path, *reasons: str) -> None:
    summary = result.summary
    assert summary.kept_float
    for reason in reasons:
        assert reason in summary.reason
    assert result.model.read_bytes() == model.read_bytes()
    assert result.placement == Placement()


@pytest.mark.slow
def test_a_worker_that_dies_once_is_asked_again(
    model: Path, tmp_path: Path, worker_dies: Callable[..., list[str]]
) -> None:
    undisturbed = tuned(model, tmp_path / "undisturbed")
    killed = worker_dies(1)
    result = tuned(model, tmp_path / "run")
    assert len(killed) == 1
    assert not result.summary.kept_float
    assert result.summary.output_sqnr_db == undisturbed.summary.output_sqnr_db


def test_nothing_ships_when_the_worker_keeps_dying(
    model: Path, tmp_path: Path, worker_dies: Callable[..., list[str]]
) -> None:
    killed = worker_dies(1000)
    result = tuned(model, tmp_path / "run", min_sqnr_db=60.0)
    assert killed
    assert_float_is_kept(result, model, "--min_sqnr 60 could not be checked", "SIGKILL")
    assert result.summary.blanket is not None
    assert not result.summary.blanket.identical
    assert "could not be checked" in result.summary.blanket.shortfall


def test_what_a_dead_worker_left_unknown_is_measured_by_the_next_run(
    model: Path, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AccuracyEvaluator, "quality", _raises_engine_error)
        assert tuned(model, tmp_path / "run").summary.kept_float
    assert not tuned(model, tmp_path / "run").summary.kept_float


def _raises_engine_error(*_: Any) -> Any:
    from qdqtune.records._errors import EngineError

    raise EngineError("it died", "")


@pytest.mark.slow
def test_without_a_limit_the_report_says_that_the_accuracy_is_unknown(
    model: Path, tmp_path: Path, worker_dies: Callable[..., list[str]]
) -> None:
    worker_dies(1000)
    result = tuned(model, tmp_path / "run", min_sqnr_db=None)
    assert not result.summary.kept_float
    assert result.summary.output_sqnr_db is None
    assert "Output SQNR unknown" in tune_text(result)


@pytest.mark.slow
def test_the_native_engine_is_no_exception(
    model: Path, tmp_path: Path, worker_dies: Callable[..., list[str]]
) -> None:
    killed = worker_dies(1000)
    result = tuned(
        model, tmp_path / "run", engine="onnxruntime", engine_options={}, threads=1,
        performance_threshold=1.0,
    )  # fmt: skip
    assert killed
    assert_float_is_kept(result, model)
    if "not faster" not in result.summary.reason:  # the machine decides what is
        assert "could not be checked" in result.summary.reason


def test_quantize_keeps_its_limit_as_well(
    model: Path, tmp_path: Path, worker_dies: Callable[..., list[str]]
) -> None:
    worker_dies(1000, "candidate")
    call: dict[str, Any] = {"engine": "tensorrt", "force": True}
    report = quantize(model, tmp_path / "out.onnx", **call).report
    assert report.kept_float
    assert "--min_sqnr 15 could not be checked" in report.reason
    assert not quantize(model, tmp_path / "out.onnx", min_sqnr_db=None, **call).report.kept_float


@pytest.mark.parametrize(
    "second",
    [None, math.inf, SystemExit(3)],
    ids=["none", "inf", "exits"],
)
def test_nothing_ships_when_the_metric_can_not_be_told(
    model: Path, tmp_path: Path, second: object
) -> None:
    calls: list[str] = []

    def metric(path: str) -> object:
        calls.append(path)
        if len(calls) == 1:
            return 0.9
        if isinstance(second, BaseException):
            raise second
        return second

    result = tuned(model, tmp_path / "run", evaluate=metric, min_sqnr_db=None)
    assert_float_is_kept(result, model, "--max_drop 0.01 could not be checked", "metric")
    assert calls[1:] == [calls[1]] * len(calls[1:])
    assert len(calls) == 3  # once more, and not for every part of it


def test_a_metric_that_fails_once_is_asked_again(model: Path, tmp_path: Path) -> None:
    calls: list[str] = []

    def metric(path: str) -> float:
        calls.append(path)
        return math.nan if len(calls) == 2 else 0.9

    assert not tuned(model, tmp_path / "run", evaluate=metric).summary.kept_float


def test_a_metric_that_hangs_is_given_up(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_accuracy, "_SHORTEST_LIMIT_S", 0.1)
    monkeypatch.setattr(measured_accuracy, "_TIMES_FLOAT", 0.0)
    calls: list[str] = []

    def metric(path: str) -> float:
        calls.append(path)
        if len(calls) > 1:
            time.sleep(1000)
        return 0.9

    result = tuned(model, tmp_path / "run", evaluate=metric)
    assert_float_is_kept(result, model, "metric did not return within 0.1 s")
    assert len(calls) == 2


def test_a_limit_leaves_no_alarm_behind() -> None:
    earlier = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TookTooLong):
        UserFunction("f", time.sleep).within(0.01, 10.0)
    assert UserFunction("f", abs).within(0.5, -1) == 1
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == earlier


@contextlib.contextmanager
def outputs_of_the_reference(
    change: Callable[[str, dict[str, Any]], dict[str, Any]],
) -> Iterator[None]:
    """Workers that answer something else; told whose outputs it is."""
    run = Worker.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Worker,
            "run",
            lambda worker, opened, *rest, **more: _changed(
                change, Path(opened.path).stem, dict(run(worker, opened, *rest, **more))
            ),
        )
        yield


def _changed(change: Callable[[str, Any], Any], name: str, found: dict[str, Any]) -> dict[str, Any]:
    return change(name, found) if name in ("compared", "reference") else found  # no calibration


def _nan(outputs: dict[str, Any]) -> dict[str, Any]:
    return {name: np.full_like(array, math.nan) for name, array in outputs.items()}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda name, found: {}, "no output of floats"),
        (lambda name, found: {} if name == "compared" else found, "does not report the output 'y'"),
        (lambda name, found: _nan(found) if name == "compared" else found, "SQNR -inf dB"),
        (lambda name, found: _nan(found), "output 'y' is NaN on every sample"),
        (
            lambda name, found: _nan(found) if name == "reference" else found,
            "output 'y' is NaN on every sample",
        ),
    ],
    ids=["no_outputs", "missing", "nan_quantized", "nan_both", "nan_float"],
)
def test_outputs_that_can_not_be_compared_are_not_accurate(
    model: Path,
    tmp_path: Path,
    change: Callable[[str, dict[str, Any]], dict[str, Any]],
    reason: str,
) -> None:
    with outputs_of_the_reference(change):
        result = tuned(model, tmp_path / "run")
    assert_float_is_kept(result, model, reason)


def test_what_is_nan_in_float_does_not_count_beside_what_is_not() -> None:
    ratio = SignalToNoise()
    ratio.add({"y": np.array([1.0, math.nan])}, {"y": np.array([1.0, 5.0])})
    ratio.add({"y": np.array([math.nan, math.nan])}, {"y": np.array([1.0, 5.0])})
    assert ratio.decibels() == {"y": math.inf}
    assert ratio.undefined == set()
    ratio.add({"y": np.array([1.0])}, {"y": np.array([math.nan])})
    assert ratio.decibels() == {"y": -math.inf}


def test_a_limit_that_can_not_be_checked_at_all_is_refused_at_once(tmp_path: Path) -> None:
    text = CONVS.replace("float[1,64,32,32] y", "int64[4] s").replace("    y =", "    z =")
    text = text.replace("w2)\n", "w2)\n    s = Shape(z)\n")
    model = tmp_path / "model.onnx"
    onnx.save(convs(text), model)
    with pytest.raises(UsageError, match="--min_sqnr 15 can't be checked") as error:
        tuned(model, tmp_path / "run")
    assert "--min_sqnr none" in error.value.hint


@pytest.mark.parametrize("value", [math.nan, 1e9])
def test_an_absurd_accuracy_in_the_journal_is_measured_again(
    model: Path, tmp_path: Path, value: float
) -> None:
    first = tuned(model, tmp_path / "run")
    assert first.summary.output_sqnr_db is not None
    journal = tmp_path / "run" / "measurements.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    with journal.open("w") as file:
        for body in lines:
            del body["checksum"]
            if body["kind"] == "accuracy":
                body["value"] = value
            file.write(_encoded(body))
    again = tuned(model, tmp_path / "run")
    assert again.summary.output_sqnr_db == first.summary.output_sqnr_db


def _encoded(body: dict[str, Any]) -> str:
    """The line as someone would write it who knows the checksum; JSON of Python has NaN."""
    with pytest.MonkeyPatch.context() as patch:
        dumps = json.dumps
        patch.setattr(
            json, "dumps", lambda value, **rest: dumps(value, **{**rest, "allow_nan": True})
        )
        return encode(body)
