"""An engine that crashes, hangs, prints junk or returns no times costs one trial of a tune."""

from __future__ import annotations

import ast
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import psutil
import pytest

from qdqtune.engines import _comparison as comparison
from qdqtune.graph._files import load_model
from qdqtune.qdq._read_back import read
from qdqtune.records._tuning import Summary, TuneResult
from tests.promises.conftest import ROOT
from tests.promises.models import four_convs, two_convs

Tune = Callable[..., TuneResult]


def failures(folder: Path) -> list[str]:
    lines = map(json.loads, (folder / "measurements.jsonl").read_text().splitlines())
    found = [line["failure"] for line in lines if line["kind"] == "measurement"]
    return [failure for failure in found if failure is not None]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("segfault", "SIGSEGV"),
        pytest.param("hang", "no answer to 'time' within 0.5 s", marks=pytest.mark.slow),
    ],
)
def test_a_candidate_that_breaks_the_engine_is_a_failed_trial_and_the_rest_is_tuned(
    faulty_tune: Tune, monkeypatch: pytest.MonkeyPatch, fault: str, words: str
) -> None:
    monkeypatch.setattr(comparison, "_SHORTEST_LIMIT_S", 0.5)
    result = faulty_tune(two_convs(), fault=fault, poisoned="n0")
    failed = failures(result.output_dir)
    assert failed
    assert all(words in failure for failure in failed)
    assert_right_but_for(result, "n0", left={"n2"})
    assert result.summary.failed == len(failed) < result.summary.benchmarks


@pytest.mark.parametrize(
    ("fault", "latencies"),
    [
        ("impossible", ["nan", "-1.0", "0.0", "inf"]),
        pytest.param("absurd", ["100000000000000.0", "5e-324"], marks=pytest.mark.slow),
    ],
)
def test_a_latency_that_can_not_be_is_a_failed_trial_and_the_rest_is_tuned(
    faulty_tune: Tune, fault: str, latencies: list[str]
) -> None:
    result = faulty_tune(four_convs(), fault=fault, poisoned="n6")
    failed = failures(result.output_dir)
    for impossible in latencies:
        words = f"impossible latency: {impossible} ms"
        assert any(words in failure for failure in failed), failed
    assert_right_but_for(result, "n6", left={"n0", "n2", "n4"})
    assert result.summary.failed == len(failed) < result.summary.benchmarks


@pytest.mark.parametrize("workflow", ["region", "subgraph"])
@pytest.mark.slow
def test_layer_times_that_are_none_are_no_times(faulty_tune: Tune, workflow: str) -> None:
    result = faulty_tune(two_convs(), fault="layers", poisoned="every", workflow=workflow)
    assert_right_but_for(result, "none", left={"n0", "n2"})


def assert_right_but_for(result: TuneResult, poisoned: str, left: set[str]) -> None:
    """All that the engine can run is quantized, nothing of what it can't, and that is measured."""
    readers = {edge.node for edge in result.placement.edges}
    assert left <= readers
    assert poisoned not in readers
    assert read(load_model(result.model)).placement.edges == result.placement.edges
    assert result.summary.stopped == "finished"
    assert result.summary.speedup > 1.02


@pytest.mark.slow
def test_an_engine_that_dies_over_everything_but_float_gives_float_back(
    faulty_tune: Tune, tmp_path: Path
) -> None:
    result = faulty_tune(two_convs(), fault="segfault", poisoned="*")
    assert result.summary.kept_float
    assert result.summary.failed == result.summary.benchmarks == len(failures(result.output_dir))
    assert result.model.read_bytes() == (tmp_path / "model.onnx").read_bytes()
    assert not result.placement
    assert result.summary.speedup == 1.0
    # Not "nothing was faster": nothing ran.
    assert "SIGSEGV" in result.summary.reason


def test_an_engine_that_dies_over_the_last_file_gives_float_back(
    faulty_tune: Tune, tmp_path: Path
) -> None:
    result = faulty_tune(two_convs(), fault="segfault", poisoned="final")
    assert result.summary.kept_float
    assert "SIGSEGV" in result.summary.reason
    assert result.model.read_bytes() == (tmp_path / "model.onnx").read_bytes()
    assert not (result.output_dir / ".staged").exists()


@pytest.mark.slow
def test_what_an_engine_prints_and_jumps_of_the_wall_clock_change_nothing(
    faulty_tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy: dict[str, Any] = {"noise": {"seed": "3"}, "budget_s": 3600.0}
    steady = faulty_tune(two_convs(), "steady", **noisy)
    before = psutil.Process().memory_info().rss
    loud = faulty_tune(two_convs(), "loud", fault="junk", poisoned="*", **noisy)
    assert psutil.Process().memory_info().rss - before < 100 * 2**20
    logs = [file.stat().st_size for file in (loud.output_dir / "logs").iterdir()]
    assert 2**20 < max(logs) <= 8 * 2**20
    rng = random.Random(0)
    monkeypatch.setattr(time, "time", lambda: rng.uniform(-1e10, 1e10))
    jumping = faulty_tune(two_convs(), "jumping", fault="clock", **noisy)
    assert 0.0 < jumping.summary.seconds.total < 600.0
    assert steady.placement
    for other in (loud, jumping):
        assert other.placement == steady.placement
        assert comparable(other.summary) == comparable(steady.summary)


KILLED = """
import sys
from qdqtune.engines import _registry as registry
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows.tuning._tune import tune
from tests.promises.faulty import ENTRY
registry.ENGINES[ENTRY.name] = ENTRY
options = {**QUIET, "fault": "hang_with_gil", "poisoned": "*"}
tune(sys.argv[1], engine="faulty", engine_options=options, output_dir=sys.argv[2])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent")
def test_no_process_of_a_tune_outlives_it(stand_in: None, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(two_convs(), model)
    log = tmp_path / "run/logs/engine.log"
    argv = [sys.executable, "-c", KILLED, str(model), str(tmp_path / "run")]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as tuner:
        try:
            wait_for(lambda: log.exists() and b"about to break down" in log.read_bytes())
            children = psutil.Process(tuner.pid).children(recursive=True)
        finally:
            os.kill(tuner.pid, signal.SIGKILL)
    assert len(children) >= 2
    _, alive = psutil.wait_procs(children, timeout=5)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


WALL_CLOCK = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}


def wall_clock_reads(text: str) -> list[int]:
    """Lines that read it; a date that is written as text at once is for people, and is not one."""
    module = ast.parse(text)
    written = {
        id(node.func.value.func)
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "isoformat"
        and isinstance(node.func.value, ast.Call)
    }
    lines = []
    for node in ast.walk(module):
        match node:
            case ast.Attribute() if id(node) in written:
                pass
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if (owner, name) in WALL_CLOCK:
                lines.append(node.lineno)
            case ast.Attribute(value=ast.Attribute(attr="datetime"), attr="now" | "utcnow"):
                lines.append(node.lineno)
            case ast.ImportFrom(module="time", names=names) if {"time", "time_ns"} & {
                each.name for each in names
            }:
                lines.append(node.lineno)
    return sorted(lines)


def test_nothing_decides_by_the_wall_clock() -> None:
    assert wall_clock_reads("import time\ntime.time()\nfrom time import time\n") == [2, 3]
    assert wall_clock_reads("a = datetime.now()\nb = datetime.datetime.now().isoformat()") == [1]
    files = sorted((ROOT / "src/qdqtune").rglob("*.py"))
    assert len(files) > 100
    found = {str(file): lines for file in files if (lines := wall_clock_reads(file.read_text()))}
    assert found == {}


def comparable(summary: Summary) -> dict[str, Any]:
    """A summary without when it was and how fast this machine is, and without the fault."""
    record = summary.to_dict()
    del record["engine"]["options"]
    left_out = ("seconds", "date")
    return {key: record[key] for key in record if not any(word in key for word in left_out)}


def wait_for(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.05)
