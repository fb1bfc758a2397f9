"""What is found out before a search: nothing stays open behind it, and nothing hangs for long."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtune.engines import registry
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.isolated import OpenModel, StoredFeeds, Worker
from qdqtune.engines.simulated import QUIET
from qdqtune.records.errors import EngineError
from qdqtune.workflows.tune import tune
from qdqtune.workflows.tuning import run
from qdqtune.workflows.tuning.layer_file import write_layer_file
from qdqtune.workflows.tuning.scouting import build_limit_s, check_runs, layers_told
from tests.conftest import model_from_text

ENGINES = Path(__file__).parents[1] / "engines"
Scout = Callable[[Worker, Path, StoredFeeds], object]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """With the engine whose models say how they misbehave."""
    environment = {"PYTHONPATH": str(ENGINES)}
    with Worker("faulty_engine:FaultyEngine", SessionOptions(), environment=environment) as worker:
        yield worker


@pytest.fixture
def released(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were closed."""
    paths: list[str] = []
    release = worker.release

    def spy(model: OpenModel) -> None:
        paths.append(model.path)
        release(model)

    monkeypatch.setattr(worker, "release", spy)
    return paths


@pytest.mark.parametrize(
    ("at", "scout"),
    [
        ("time", check_runs),
        ("feed", check_runs),
        ("layers", lambda worker, path, feeds: layers_told(worker, path, feeds, 1)),
        ("feed", lambda *given: write_layer_file(*given, given[1].with_suffix(".json"))),
        ("close", lambda worker, path, feeds: layers_told(worker, path, feeds, 1)),
    ],
)
def test_what_fails_is_closed(
    at: str, scout: Scout, worker: Worker, released: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_text(json.dumps({"at": at, "fault": "raise"}))
    feeds = worker.store({"x": np.zeros(1, np.float32)})
    if scout is check_runs:
        with pytest.raises(EngineError, match="does not run the model as it is"):
            scout(worker, path, feeds)
    else:
        scout(worker, path, feeds)
    assert released == [str(path)]


@pytest.mark.parametrize(
    ("engine", "build_s", "limit_s"),
    [
        ("tensorrt", 0.5, 300.0),
        ("tensorrt", 60.0, 1200.0),
        ("tensorrt", 600.0, 3600.0),
        ("onnxruntime", 60.0, 300.0),
    ],
)
def test_other_models_may_take_as_long_as_the_float_model_lets_expect(
    engine: str, build_s: float, limit_s: float, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "timeout_s", registry.entry(engine).open_limit_s)
    assert build_limit_s(worker, build_s) == limit_s


def test_a_run_goes_by_that_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine: list[Worker] = []

    def limit(worker: Worker, build_s: float) -> float:
        assert build_s > 0
        engine.append(worker)
        return 77.0

    started: list[float] = []

    class Started(Worker):
        def close(self) -> None:
            started.append(self.timeout_s)
            super().close()

    monkeypatch.setattr(run, "build_limit_s", limit)
    monkeypatch.setattr(run, "Worker", Started)
    weights = np.random.default_rng(0).normal(size=(64, 64, 3, 3)).astype(np.float32)
    text = "g (float[1,64,16,16] x) => (float[1,64,16,16] y) { y = Conv<pads=[1,1,1,1]>(x, w) }"
    onnx.save(model_from_text(text, w=weights), tmp_path / "model.onnx")
    tune(
        tmp_path / "model.onnx", engine="simulated", engine_options=QUIET, preset="quick",
        max_benchmarks=1, output_dir=tmp_path / "run",
    )  # fmt: skip
    assert [worker.timeout_s for worker in engine] == [77.0]
    assert started == [77.0, 77.0]  # that of the last comparison, and that of the search
