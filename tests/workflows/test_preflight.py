"""What is found out before a search: nothing stays open behind it, and nothing hangs for long."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtune import zoo
from qdqtune.config import TuneConfig
from qdqtune.engines import _registry as registry
from qdqtune.engines._hosts import LocalHost
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._worker import OpenModel, StoredFeeds, Worker
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._errors import EngineError, UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.search._space import Form, Grouping
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows._sample_provider import sample_provider
from qdqtune.workflows._source_model import open_source
from qdqtune.workflows.tuning import (
    _baseline as baseline,
)
from qdqtune.workflows.tuning import (
    _preflight as preflight,
)
from qdqtune.workflows.tuning import (
    _setup as setup,
)
from qdqtune.workflows.tuning._layer_groups import write_layer_file
from qdqtune.workflows.tuning._preflight import (
    build_limit_s,
    check_runs,
    find_choices,
    layers_told,
    with_ranges,
)
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text

ENGINES = Path(__file__).parents[1] / "engines"
PreflightStep = Callable[[Worker, Path, StoredFeeds], object]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """With the engine whose models say how they misbehave."""
    environment = {"PYTHONPATH": os.pathsep.join([str(ENGINES), *sys.path])}
    place = LocalHost(variables=environment)
    with Worker("faulty_engine:FaultyEngine", SessionOptions(), host=place) as worker:
        yield worker


@pytest.fixture
def released(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were closed."""
    paths: list[str] = []
    release = worker.release

    def spy(model: OpenModel, *, timeout_s: float | None = None) -> None:
        paths.append(model.path)
        release(model, timeout_s=timeout_s)

    monkeypatch.setattr(worker, "release", spy)
    return paths


@pytest.mark.parametrize(
    ("at", "preflight_step"),
    [
        ("time", check_runs),
        ("feed", check_runs),
        ("layers", lambda worker, path, feeds: layers_told(worker, path, feeds, 1)),
        ("feed", lambda *given: write_layer_file(*given, given[1].with_suffix(".json"))),
        ("close", lambda worker, path, feeds: layers_told(worker, path, feeds, 1)),
    ],
)
def test_what_fails_is_closed(
    at: str, preflight_step: PreflightStep, worker: Worker, released: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_text(json.dumps({"at": at, "fault": "raise"}))
    feeds = worker.store({"x": np.zeros(1, np.float32)})
    if preflight_step is check_runs:
        with pytest.raises(EngineError, match="does not run the model as it is"):
            preflight_step(worker, path, feeds)
    else:
        preflight_step(worker, path, feeds)
    assert released == [str(path)]


def test_a_budget_ends_what_does_not_open(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_LEAST_FOR_OPENING_S", 0.2)
    path = tmp_path / "model.onnx"
    path.write_text(json.dumps({"at": "open", "fault": "hang"}))
    feeds = worker.store({"x": np.zeros(1, np.float32)})
    with pytest.raises(EngineError, match=r"--budget is too short .* had not opened"):
        check_runs(worker, path, feeds, most_s=-1.0)


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
        def restart(self, opening: int) -> None:
            started.append(self.timeout_s)
            super().restart(opening)

    monkeypatch.setattr(baseline, "build_limit_s", limit)
    monkeypatch.setattr(setup, "Worker", Started)
    weights = np.random.default_rng(0).normal(size=(64, 64, 3, 3)).astype(np.float32)
    text = "g (float[1,64,16,16] x) => (float[1,64,16,16] y) { y = Conv<pads=[1,1,1,1]>(x, w) }"
    onnx.save(model_from_text(text, w=weights), tmp_path / "model.onnx")
    tune(
        tmp_path / "model.onnx", engine="simulated", engine_options=QUIET, preset="quick",
        max_benchmarks=1, output_dir=tmp_path / "run",
    )  # fmt: skip
    assert [worker.timeout_s for worker in engine] == [77.0]
    assert len(started) > 1  # the processes of the last comparison
    assert set(started) == {77.0}


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resnet") / "model.onnx"
    onnx.save(zoo.build("resnet18", width=8, image=32, blocks=(2, 1, 1, 1)), path)
    return path


def choices(model: Path, **filters: Any) -> Grouping:
    source = open_source(model)
    provider = sample_provider(source, InputRequest(), None, None)
    with tempfile.TemporaryDirectory() as folder:
        base = PreparedModel(source.model, Path(folder))
        config = TuneConfig(**filters)
        return find_choices(base, dialect_named("onnxruntime"), config, provider)[1]


@pytest.mark.parametrize(
    ("wildcards", "blocks", "regions"),
    [
        (["layer2.0.relu1"], {"layer2.0", "layer2.0.downsample"}, 1),
        (["layer1.1.a*", "no such node"], {"layer1.0", "layer1.1"}, 2),
        (["*.downsample.*"], {f"layer{n}.0{d}" for n in (2, 3, 4) for d in ("", ".downsample")}, 3),
    ],
)
def test_regions_without_a_node_that_matches_are_skipped(
    wildcards: list[str], blocks: set[str], regions: int, resnet: Path
) -> None:
    """What is named may be nothing to quantize; a pattern is tuned in all of its regions."""
    found = choices(resnet, region_filter=wildcards, regions="structure")
    nodes = [name for group in found.groups for name in group.nodes]
    assert {name.rpartition(".")[0] for name in nodes} == blocks
    assert found.regions == regions
    assert {view.pattern.signature for view in found.views} == {g.pattern for g in found.groups}


def test_a_node_filter_takes_ops_and_not_their_regions(resnet: Path) -> None:
    groups = choices(resnet, node_filter=["layer2.0.conv1"]).groups
    assert [group.nodes for group in groups] == [("layer2.0.conv1",)]


def test_a_region_filter_must_leave_something(resnet: Path) -> None:
    with pytest.raises(UsageError, match="No region with a node that matches"):
        choices(resnet, region_filter=["nothing*"])


def test_tensors_without_a_range_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = zoo.build("resnet18", width=8, image=32, blocks=(1, 1, 1, 1))
    onnx.save(model, tmp_path / "m.onnx")
    source = open_source(tmp_path / "m.onnx")
    base = PreparedModel(source.model, tmp_path)
    provider = sample_provider(source, InputRequest(), None, None)
    planner, grouping = find_choices(base, dialect_named("onnxruntime"), TuneConfig(), provider)
    kept = with_ranges(grouping, planner, lambda tensor: tensor != "image")
    assert len(kept.groups) == len(grouping.groups) - 1
    assert "no range is known of 'image'," in caplog.text
    (dynamic,) = with_ranges(grouping, planner, lambda _: False).groups
    assert (dynamic.nodes, dynamic.form) == (("fc",), Form.DYNAMIC)  # its range is found as it runs
    assert " more, which took infinite" in caplog.text


def test_what_nothing_could_quantize_is_not_said_to_lack_a_range(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = """
    g (float[1,64] x, int64[1] i) => (float[1,64] y, float[1] z) {
        y = MatMul(x, w)
        e = Erf(x)
        z = Gather<axis = 1>(e, i)
    }"""
    onnx.save(model_from_text(text, w=np.eye(64, dtype=np.float32)), tmp_path / "m.onnx")
    source = open_source(tmp_path / "m.onnx")
    base = PreparedModel(source.model, tmp_path)
    provider = sample_provider(source, InputRequest(), None, None)
    planner, grouping = find_choices(base, dialect_named("onnxruntime"), TuneConfig(), provider)
    # The Gather would follow the Erf, which has no kernel; the MatMul may be dynamic as well.
    assert len(grouping.groups) == 3
    assert len(with_ranges(grouping, planner, lambda tensor: tensor != "e").groups) == 2
    assert not caplog.records
    (left,) = with_ranges(grouping, planner, lambda _: False).groups
    assert left.form is Form.DYNAMIC
    assert "1 of 3 choices are left out: no range is known of 'w', 'x'," in caplog.text
