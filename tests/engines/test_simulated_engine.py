"""The simulated engine in a worker, like any other."""

from __future__ import annotations

import itertools
import time

import numpy as np
import onnx
import pytest
from tests.conftest import model_from_text

from qdqtune import zoo
from qdqtune.engines import _registry as registry
from qdqtune.engines._comparison import compare_files
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._worker import Worker, WorkerFailure
from qdqtune.records._errors import EngineError
from qdqtune.records._measurement import Verdict
from qdqtune.report._bench import bench_text
from qdqtune.testing.simulated import PROFILES, QUIET, SimulatedEngine, true_latency_ms
from qdqtune.testing.simulated._engine import KEYS, Settings
from qdqtune.workflows._bench import bench

FEEDS = {"x": np.zeros((1, 32, 32, 32), np.float32)}


@pytest.fixture(scope="module")
def simulated():
    with Worker("simulated", timeout_s=60) as worker:
        yield worker


@pytest.fixture
def tower(tmp_path):
    """Writes so many equal Convs, one after the other."""

    def write(convs: int, shape: str = "1,32,32,32"):
        names = ["x", *(f"t{i}" for i in range(convs - 1)), "y"]
        body = "\n".join(
            f"{after} = Conv<pads=[1,1,1,1]>({before}, w)"
            for before, after in itertools.pairwise(names)
        )
        text = f"g (float[{shape}] x) => (float[{shape}] y) {{ {body} }}"
        path = tmp_path / f"tower{convs}{len(shape)}.onnx"
        onnx.save(model_from_text(text, w=np.ones((32, 32, 3, 3), np.float32)), path)
        return path

    return write


def session_of(path, **options):
    engine = SimulatedEngine()
    return engine, engine.open(str(path), SessionOptions(engine_options=options))


def test_it_must_be_named(monkeypatch):
    assert registry.available("simulated").usable
    assert registry.resolve("simulated") == "simulated"
    usable = {"simulated"}
    monkeypatch.setattr(
        registry, "available", lambda name: registry.EngineStatus(name in usable, "", "")
    )
    with pytest.raises(EngineError, match="No engine that could measure"):
        registry.resolve("auto")


def test_its_dialect_is_that_of_the_default_profile():
    assert native_dialect("simulated").name == PROFILES["cpu-vnni"].dialect


def test_it_says_what_it_is(simulated):
    info = simulated.info(SessionOptions(engine_options={"profile": "gpu", "seed": "7"}))
    assert (info.name, info.isa) == ("simulated", "gpu")
    assert "not a measurement" in info.device
    assert (info.options["seed"], info.options["noise"]) == ("7", "0.01")
    assert set(info.options) == set(KEYS) - {"wait"}  # told only if it does


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nois": "1"}, "unknown option 'nois'; did you mean 'noise'"),
        ({"profile": "cpu_vnni"}, "did you mean 'cpu-vnni'"),
        ({"noise": "much"}, "noise is 'much'"),
        ({"seed": "-1"}, "seed is '-1'"),
        ({"spikes": "2"}, "spikes is a probability"),
        ({"fusion": "yes"}, "fusion is 'yes'; it is 0 or 1"),
        ({"layout": "2"}, "layout is '2'; it is 0 or 1"),
        ({"wait": "yes"}, "wait is 'yes'; it is 0 or 1"),
        ({"build_s": "-1"}, "build_s is -1; it must be a number of at least 0"),
        ({"build_kernel_s": "inf"}, "build_kernel_s is inf"),
    ],
)
def test_wrong_options_are_explained(tower, options, message):
    with pytest.raises(ValueError, match=message):
        session_of(tower(1), **options)
    with pytest.raises(ValueError, match=message):
        SimulatedEngine().info(SessionOptions(engine_options=options))


def test_a_wrong_option_is_a_failed_request(simulated):
    with pytest.raises(WorkerFailure, match="unknown option 'nois'"):
        simulated.info(SessionOptions(engine_options={"nois": "1"}))


def test_options_are_written_as_they_are_read():
    given = {"profile": "gpu", "seed": "3", "drift": "0.5", "fusion": "0", "build_s": "30"}
    given["wait"] = "1"
    settings = Settings.from_options(given)
    assert Settings.from_options(settings.to_options()) == settings
    assert settings.to_options().items() >= given.items()


def test_time_is_virtual(simulated, tower):
    """Hours of building and running are told, not waited for: the limits are those of requests."""
    building_s, timing_s = simulated.totals.building_s, simulated.totals.timing_s
    slow = SessionOptions(engine_options={"profile": "gpu"})
    built = simulated.open(tower(3), slow, timeout_s=30)
    assert built.build_s > PROFILES["gpu"].build_s
    assert simulated.totals.building_s - building_s == pytest.approx(built.build_s)
    simulated.feed(built, FEEDS)
    samples = simulated.time(built, 20_000, timeout_s=30)
    assert simulated.totals.timing_s - timing_s == pytest.approx(sum(samples) / 1000)


def test_building_takes_as_long_as_it_is_told_to(simulated, tower):
    told = SessionOptions(engine_options={"build_s": "20", "build_kernel_s": "4"})
    assert simulated.open(tower(2), told).build_s == pytest.approx(28.0)


def test_building_waits_if_it_is_told_to(simulated, tower):
    given = {"build_s": "0.3", "build_kernel_s": "0", "wait": "1"}
    began_s = time.monotonic()
    built = simulated.open(tower(2), SessionOptions(engine_options=given))
    assert built.build_s == pytest.approx(0.3)
    assert time.monotonic() - began_s >= 0.3


def test_a_model_is_planned_for_the_machine_that_was_asked_for(residual_path):
    engine = SimulatedEngine()
    latencies_ms = []
    for fusion in ("1", "0", "1"):
        options = SessionOptions(engine_options={**QUIET, "fusion": fusion})
        session = engine.open(str(residual_path), options)
        session.set_feeds({"x": np.zeros((1, 3, 8, 8), np.float32)})
        latencies_ms += session.time_runs(1)
    assert latencies_ms[0] == latencies_ms[2] < latencies_ms[1]


def test_quiet_samples_and_kernels_add_up_to_the_truth(simulated, tower):
    path = tower(4)
    opened = simulated.open(path, SessionOptions(engine_options=QUIET))
    simulated.feed(opened, FEEDS)
    layers = simulated.layers(opened)
    assert [layer.name for layer in layers] == ["n0", "n1", "n2", "n3"]
    assert {(layer.op_type, layer.provider) for layer in layers} == {("Conv", "float")}
    truth = true_latency_ms(path)
    assert sum(layer.ms for layer in layers) == pytest.approx(truth)
    assert simulated.time(opened, 3) == pytest.approx([truth] * 3)


def test_the_same_requests_get_the_same_answers(tower):
    path, answers = tower(2), []
    for _ in range(2):
        engine = SimulatedEngine()
        for _ in range(2):
            session = engine.open(str(path), SessionOptions())
            session.set_feeds(FEEDS)
            answers.append(session.time_runs(5))
    assert answers[:2] == answers[2:]
    assert answers[0] != answers[1]


def test_open_dims_are_those_of_the_feeds(tower):
    path = tower(2, "N,32,32,32")
    _, session = session_of(path, **QUIET)
    assert session.inputs[0].shape == ("N", 32, 32, 32)
    session.set_feeds({"x": np.zeros((6, 32, 32, 32), np.float32)})
    (sample,) = session.time_runs(1)
    assert sample == pytest.approx(true_latency_ms(path, input_shapes={"x": (6, 32, 32, 32)}))
    assert sample > 4 * true_latency_ms(path)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, r"the inputs are \['x'\], the feeds \[\]"),
        ({"x": np.zeros((1, 32, 32, 16), np.float32)}, r"has the dims \[1, 32, 32, 32\], its feed"),
        ({"x": np.zeros((1, 32, 32, 32), np.float16)}, "its feed float16"),
    ],
)
def test_wrong_feeds_are_refused(tower, feeds, message):
    _, session = session_of(tower(1))
    with pytest.raises(ValueError, match=message):
        session.set_feeds(feeds)
    with pytest.raises(ValueError, match="no feeds"):
        session.time_runs(1)


def test_what_is_no_model_is_a_failure(simulated, tmp_path):
    garbage = tmp_path / "garbage.onnx"
    garbage.write_bytes(b"\xff" * 100)
    measured, _ = compare_files(simulated, [garbage, tmp_path / "missing.onnx"], FEEDS)
    assert not any(measurement.ok for measurement in measured)


def test_run_computes(simulated, worker, residual_path):
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)}
    outputs = simulated.run(simulated.open(residual_path), feeds)
    expected = worker.run(worker.open(residual_path), feeds)
    assert outputs.keys() == expected.keys()
    np.testing.assert_allclose(outputs["y"], expected["y"], rtol=1e-4, atol=1e-5)


def test_files_are_compared_in_a_worker(simulated, tower):
    paths = [tower(33), tower(33), tower(32), tower(34)]
    options = SessionOptions(engine_options={"seed": "5"})
    measured, compared = compare_files(simulated, paths, FEEDS, options=options)
    assert all(measurement.ok and measurement.build_s > 0 for measurement in measured)
    found = [comparison.verdict for comparison in compared]
    assert found == [Verdict.SAME, Verdict.FASTER, Verdict.SLOWER]


def test_a_bench_says_that_it_is_simulated(tower):
    options = {"seed": "1"}
    record = bench([tower(4), tower(2)], engine="simulated", engine_options=options, runs=20)
    assert record.engine.name == "simulated"
    assert record.entries[1].against_first.verdict is Verdict.FASTER
    assert "These times are simulated" in bench_text(record)


def test_what_was_built_once_is_only_loaded(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(zoo.build("resnet18", image=32, width=8), path)
    options = SessionOptions(
        engine_options={"profile": "gpu", "plan_cache": str(tmp_path / "plans")}
    )
    taken_s = []
    for _ in range(2):  # another process each time
        with Worker("simulated", options) as worker:
            worker.open(path)
            taken_s.append(worker.totals.building_s)
    assert taken_s[0] > 10.0
    assert taken_s[1] == pytest.approx(0.5)
