"""`autotuner_state.yaml` grows with a run, and a run in another folder goes on from it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtune.records._errors import UsageError
from qdqtune.records._tuning import TuneResult
from qdqtune.search.patterns._state_file import SavedState, read_state
from qdqtune.workflows.tuning import _run_records as snapshot
from qdqtune.workflows.tuning._journal_format import decode
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text

SETTINGS: dict[str, Any] = {
    "engine": "simulated",
    "engine_options": {"seed": "7"},
    "preset": "quick",
}
KILLED = """
import sys
from qdqtune.cli.main import main
from qdqtune.workflows.tuning import _run_records as snapshot
snapshot._EVERY_S = snapshot._TIMES_COST = 0.0  # the simulated engine is faster than that
main(["tune", sys.argv[1], "-o", sys.argv[2], "-q", "--preset", "quick",
      "--engine", "simulated", "--engine_option", "seed=7"])
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    weights = {
        f"w{n}": rng.normal(size=(32, 32, 3, 3)).astype(np.float32) / 17 for n in range(1, 4)
    }
    text = """g (float[1,32,32,32] x) => (float[1,32,32,32] y) {
        a = Conv<pads=[1,1,1,1]>(x, w1)
        b = Relu(a)
        c = Conv<pads=[1,1,1,1]>(b, w2)
        d = Sigmoid(c)
        e = Mul(d, b)
        y = Conv<pads=[1,1,1,1]>(e, w3)
    }"""
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(model_from_text(text, **weights), path)
    return path


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    """The run that nobody disturbs."""
    return tuned(model, tmp_path_factory.mktemp("whole") / "run")


def tuned(model: Path, output: Path, **options: Any) -> TuneResult:
    return tune(model, output_dir=output, **{**SETTINGS, **options})


def measured(lines: list[str]) -> list[tuple[str, str, str]]:
    bodies = [json.loads(line) for line in lines]
    return [
        (body["reference"], body["candidate"], body["effort"])
        for body in bodies
        if body["kind"] == "measurement"
    ]


def journal(run: Path) -> list[str]:
    return (run / "measurements.jsonl").read_text().splitlines()


def wait_for(state: Path, is_enough: Callable[[SavedState], bool]) -> SavedState:
    end_s = time.monotonic() + 120
    while time.monotonic() < end_s:
        if state.exists() and is_enough(found := read_state(state)):
            return found
        time.sleep(0.01)
    raise AssertionError(f"{state} did not come")


@pytest.mark.slow
def test_after_a_kill_a_run_in_another_folder_goes_on_from_the_state_alone(
    model: Path, whole: TuneResult, tmp_path: Path
) -> None:
    state = tmp_path / "killed/autotuner_state.yaml"
    with subprocess.Popen([sys.executable, "-c", KILLED, str(model), str(state.parent)]) as process:
        wait_for(state, lambda found: len(measured(list(found.measurements))) >= 3)
        os.kill(process.pid, signal.SIGKILL)
    assert not (state.parent / "summary.json").exists()
    left = read_state(state)
    known = measured(list(left.measurements))
    assert left.baseline_latency_ms
    assert any(len(pattern.schemes) > 1 for pattern in left.patterns)
    elsewhere = tmp_path / "elsewhere.yaml"
    shutil.move(state, elsewhere)
    shutil.rmtree(state.parent)

    resumed = tuned(model, tmp_path / "resumed", state_file=elsewhere)
    assert resumed.placement == whole.placement
    assert resumed.summary.memo_hits >= len(known)
    assert resumed.summary.benchmarks == whole.summary.benchmarks - len(known)
    assert resumed.summary.total_benchmarks == whole.summary.benchmarks
    assert resumed.summary.total_seconds > resumed.summary.seconds.total
    assert measured(journal(resumed.output_dir)) == measured(journal(whole.output_dir))
    # The file that was named goes on, too.
    assert measured(list(read_state(elsewhere).measurements)) == measured(journal(whole.output_dir))


def test_a_finished_state_costs_nothing_again_in_any_folder(
    model: Path, whole: TuneResult, tmp_path: Path
) -> None:
    state = shutil.copy(whole.output_dir / "autotuner_state.yaml", tmp_path / "state.yaml")
    before = read_state(state)
    for run in ("one", "one"):  # also over a folder that has taken it over already
        again = tuned(model, tmp_path / run, state_file=state)
        assert again.summary.benchmarks == 0
        assert again.placement == whole.placement
        assert again.summary.total_benchmarks == whole.summary.benchmarks
    assert measured(journal(tmp_path / "one")) == measured(journal(whole.output_dir))
    after = read_state(state)
    assert [each.to_dict()["schemes"] for each in after.patterns] == [
        each.to_dict()["schemes"] for each in before.patterns
    ]


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"quant_type": "uint8"}, "quant type: int8, not uint8"),
        ({"engine_options": {"seed": "8"}}, "engine option seed: 7, not 8"),
        ({"threads": 2}, "number of threads: the default, not 2"),
        ({"model": "other"}, "model"),
    ],
)
def test_the_state_of_something_else_is_refused_and_stays(
    model: Path, whole: TuneResult, tmp_path: Path, other: dict[str, Any], field: str
) -> None:
    state = Path(shutil.copy(whole.output_dir / "autotuner_state.yaml", tmp_path / "state.yaml"))
    before = state.read_bytes()
    if other == {"model": "other"}:
        proto, model, other = onnx.load(model), tmp_path / "other.onnx", {}
        proto.graph.initializer[0].raw_data = b"\0" * len(proto.graph.initializer[0].raw_data)
        onnx.save(proto, model)
    with pytest.raises(
        UsageError, match=rf"state\.yaml is the state of a run with another {field}"
    ):
        tuned(model, tmp_path / "run", state_file=state, **other)
    assert state.read_bytes() == before


def test_restart_keeps_a_named_state_under_another_name(
    model: Path, whole: TuneResult, tmp_path: Path
) -> None:
    state = Path(shutil.copy(whole.output_dir / "autotuner_state.yaml", tmp_path / "state.yaml"))
    before = state.read_bytes()
    again = tuned(model, tmp_path / "run", state_file=state, restart=True, max_benchmarks=2)
    assert again.summary.memo_hits == 0
    assert (tmp_path / "state.earlier-1.yaml").read_bytes() == before


def test_the_state_grows_and_keeps_its_numbers(
    model: Path, whole: TuneResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a log calls scheme 3 is scheme 3 ever after, also if an earlier result is there."""
    monkeypatch.setattr(snapshot, "_EVERY_S", 0.0)
    monkeypatch.setattr(snapshot, "_TIMES_COST", 0.0)
    run = Path(shutil.copytree(whole.output_dir, tmp_path / "run"))
    for file in run.glob("autotuner_state*"):
        file.unlink()
    seen: list[list[list[str]]] = []

    def look(_event: object) -> None:
        file = run / "autotuner_state.yaml"
        if file.exists():
            seen.append([[s.hash for s in p.schemes] for p in read_state(file).patterns])

    tuned(model, run, callbacks=[look])
    assert len({str(each) for each in seen}) > 2
    for one, next_one in itertools.pairwise(seen):
        for before, after in zip(one, next_one, strict=True):
            assert after[: len(before)] == before


def test_lines_that_are_damaged_or_of_another_run_are_left_out(
    model: Path, whole: TuneResult, tmp_path: Path
) -> None:
    state = Path(shutil.copy(whole.output_dir / "autotuner_state.yaml", tmp_path / "state.yaml"))
    known = measured(list(read_state(state).measurements))
    lost = next(
        line for line in read_state(state).measurements if json.loads(line)["kind"] == "measurement"
    )
    body = decode(lost)
    assert body is not None
    state.write_text(state.read_text().replace(f'"gain": {body["gain"]}', '"gain": 9.0', 1))
    again = tuned(model, tmp_path / "run", state_file=state)
    assert again.summary.benchmarks == 1
    assert sorted(measured(journal(tmp_path / "run"))) == sorted(known)
    assert again.placement == whole.placement
