"""Runs that end before they are over: killed, interrupted, in each other's way."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import os
import random
import resource
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
import onnxruntime
import psutil
import pytest

from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.engines._worker import Worker
from qdqtune.graph._files import load_model
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._read_back import read
from qdqtune.records._errors import (
    AutotunerError,
    ModelError,
    OutputError,
    QdqtuneError,
    UsageError,
)
from qdqtune.records._placement import Placement
from qdqtune.records._tuning import TuneEvent, TuneResult
from qdqtune.report._tuning import tune_text
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.workflows._export import export, list_candidates
from qdqtune.workflows._interrupts import interrupt_on_signals
from qdqtune.workflows.tuning import _run_files as handover
from qdqtune.workflows.tuning._folder import RunFolder
from qdqtune.workflows.tuning._journal import Journal
from qdqtune.workflows.tuning._search import CandidateEvaluator
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text
from tests.workflows.endings import end_with

SLOW = pytest.mark.slow
KINDS = ("run", "session", "shares", "candidate", "round", "measurement", "accuracy", "end")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small, and with enough to choose from for some forty measurements."""
    rng = np.random.default_rng(0)
    weights = {
        f"w{n}": rng.normal(size=(32, 32, 3, 3)).astype(np.float32) / 17 for n in range(1, 6)
    }
    text = """g (float[1,32,32,32] x) => (float[1,32,32,32] y) {
        a = Conv<pads=[1,1,1,1]>(x, w1)
        b = Relu(a)
        c = Conv<pads=[1,1,1,1]>(b, w2)
        d = Add(c, b)
        e = Sigmoid(d)
        f = Conv<pads=[1,1,1,1]>(e, w3)
        g = Relu(f)
        h = Conv<pads=[1,1,1,1]>(g, w4)
        i = Mul(h, e)
        y = Conv<pads=[1,1,1,1]>(i, w5)
    }"""
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(model_from_text(text, **weights), path)
    return path


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    """The run that nobody disturbs."""
    return simulated(model, tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def run(whole: TuneResult, tmp_path: Path) -> Path:
    """A copy of its folder."""
    return Path(shutil.copytree(whole.output_dir, tmp_path / "run"))


def simulated(model: Path, output: Path, **options: Any) -> TuneResult:
    """With the noise that the simulated engine has by default."""
    settings = {"engine": "simulated", "engine_options": {"seed": "7"}, "preset": "quick"}
    return tune(model, output_dir=output, **{**settings, **options})


def command(model: Path, output: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "qdqtune", "tune", str(model), "-o", str(output), "-q",
        "--engine", "simulated", "--engine_option", "seed=7", "--preset", "quick", *more,
    ]  # fmt: skip


def lines(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "measurements.jsonl").read_text().splitlines()]


def measured(output: Path) -> collections.Counter[tuple[str, ...]]:
    return collections.Counter(
        (line["reference"], line["candidate"], line["effort"])
        for line in lines(output)
        if line["kind"] == "measurement"
    )


def gains(output: Path) -> dict[str, float]:
    return {
        line["candidate"]: line["gain"] for line in lines(output) if line["kind"] == "measurement"
    }


def rounds(output: Path) -> collections.Counter[tuple[str, ...]]:
    return collections.Counter(
        (line["reference"], line["effort"], *line["candidates"])
        for line in lines(output)
        if line["kind"] == "round"
    )


class Killed(BaseException):
    """Ends a run as a kill would: nobody catches it, nothing is finished."""


@pytest.mark.parametrize("part", [0.3, *(pytest.param(at, marks=SLOW) for at in (0.05, 0.5, 0.95))])
def test_cut_off_anywhere_a_run_ends_like_the_one_that_was_not(
    model: Path, whole: TuneResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: float
) -> None:
    total = len(lines(whole.output_dir))
    append = Journal._append
    left = [round(part * total)]

    def die(journal: Journal, body: Any, *, force: bool = True) -> None:
        append(journal, body, force=force)
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    monkeypatch.setattr(Journal, "_append", die)
    with pytest.raises(Killed):
        simulated(model, tmp_path / "cut")
    monkeypatch.undo()
    resumed = simulated(model, tmp_path / "cut")
    assert resumed.placement == whole.placement
    assert resumed.summary.speedup == whole.summary.speedup
    assert resumed.summary.runs == 2
    assert resumed.summary.total_benchmarks == whole.summary.benchmarks
    # Nothing was measured twice, not a round of it.
    assert rounds(whole.output_dir)
    assert measured(tmp_path / "cut") == measured(whole.output_dir)
    assert rounds(tmp_path / "cut") == rounds(whole.output_dir)
    assert gains(tmp_path / "cut") == gains(whole.output_dir)


@pytest.mark.slow
def test_killed_at_random_moments_a_run_ends_like_the_one_that_was_not(
    model: Path, whole: TuneResult, tmp_path: Path
) -> None:
    rng = random.Random(0)
    kills = 0
    for _ in range(3):
        process = subprocess.Popen(
            command(model, tmp_path / "killed"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            process.wait(rng.uniform(1.0, 2.5))
        except subprocess.TimeoutExpired:
            workers = psutil.Process(process.pid).children(recursive=True)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            assert not psutil.wait_procs(workers, timeout=10)[1]  # no orphan goes on
    assert kills
    subprocess.run(command(model, tmp_path / "killed"), check=True, capture_output=True)
    for name in ("placement.json", "optimized_final.onnx"):
        assert (tmp_path / "killed" / name).read_bytes() == (whole.output_dir / name).read_bytes()
    assert measured(tmp_path / "killed") == measured(whole.output_dir)
    assert rounds(tmp_path / "killed") == rounds(whole.output_dir)
    assert not list((tmp_path / "killed").rglob("*.tmp"))


@pytest.mark.slow
def test_what_a_kill_leaves_lies_in_the_folder_and_goes_with_the_next_run(
    model: Path, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(
        command(model, tmp_path / "run"), stdout=subprocess.DEVNULL, env=environment
    )
    while not list((tmp_path / "run").glob("region_models/c0*.onnx")):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not list(temporary.glob("*qdqtune*"))
    simulated(model, tmp_path / "run")
    assert not (tmp_path / "run/.scratch").exists()
    assert not (tmp_path / "run/.staged").exists()


@pytest.mark.slow
def test_a_scheduler_that_takes_the_machine_back_gets_the_best_so_far(
    model: Path, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "qdqtune", "tune", str(model), "-o", str(tmp_path / "run"),
         "--engine", "onnxruntime", "--threads", "1", "--preset", "quick"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if " seeds: " in line:
            process.terminate()
            break
    process.stderr.read()
    assert process.wait(60) == 130
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["stopped"] == "interrupted"
    assert (tmp_path / "run/optimized_final.onnx").exists()


def test_a_kill_before_the_first_line_leaves_a_folder_that_can_be_used(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(Journal, "__init__", die)
    with pytest.raises(Killed):
        simulated(model, tmp_path / "run")
    monkeypatch.undo()
    assert simulated(model, tmp_path / "run", max_benchmarks=2).summary.benchmarks


def test_restart_keeps_the_old_run_aside(model: Path, whole: TuneResult, run: Path) -> None:
    before = {
        file.relative_to(run): file.read_bytes()
        for file in run.rglob("*")
        if file.is_file() and file.name != ".lock"
    }
    again = simulated(model, run, restart=True, seed=3, max_benchmarks=2)
    assert again.summary.memo_hits == 0
    assert again.summary.runs == 1
    assert all((run / "earlier/1" / name).read_bytes() == text for name, text in before.items())
    # It is still a run like any other.
    aside = simulated(model, run / "earlier/1")
    assert aside.summary.benchmarks == 0
    assert aside.placement == whole.placement
    simulated(model, run, restart=True, max_benchmarks=2)
    assert (run / "earlier/2/summary.json").exists()


def test_resume_never_refuses_a_run_and_takes_an_empty_folder(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    simulated(model, run, resume="never", max_benchmarks=2)
    with pytest.raises(UsageError, match="holds a run already"):
        simulated(model, run, resume="never")
    with pytest.raises(UsageError, match="resume must be one of auto, never, not 'maybe'"):
        simulated(model, run, resume="maybe")


HOLDS_A_FOLDER = """
import sys, time
from pathlib import Path
from qdqtune.workflows.tuning._run_files import lock_folder
lock = lock_folder(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_two_runs_cannot_share_a_folder_and_a_dead_owner_has_none(model: Path, run: Path) -> None:
    before = (run / "measurements.jsonl").read_bytes()
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLDS_A_FOLDER, str(run)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    second = subprocess.run(command(model, run, "--force"), capture_output=True, text=True)
    assert second.returncode == 2
    assert f"Another run is using {run} (process {owner.pid} on " in second.stderr
    assert (run / "measurements.jsonl").read_bytes() == before
    owner.kill()
    owner.wait()
    assert simulated(model, run).summary.benchmarks == 0


def test_an_interrupted_run_does_not_cost_what_an_earlier_one_proved(
    model: Path, whole: TuneResult, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not whole.summary.kept_float

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(CandidateEvaluator, "answer", interrupt)
    again = simulated(model, run, preset="default", seed=5)
    assert again.summary.speedup == whole.summary.speedup
    assert again.placement == whole.placement
    assert (run / "optimized_final.onnx").read_bytes() == whole.model.read_bytes()
    assert json.loads((run / "summary.json").read_text())["runs"] == 2
    assert again.summary.total_seconds > whole.summary.total_seconds


def test_a_run_that_finds_less_does_not_cost_it_either(
    model: Path, whole: TuneResult, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_with(monkeypatch, frozenset(range(7)))  # 1.24x, not 1.37x
    # Here the best blanket is what the earlier run found; it would ship again.
    monkeypatch.setattr("qdqtune.workflows.tuning._finalize.fastest_first", lambda *_: {})
    again = simulated(model, run, preset="default")
    assert again.placement == whole.placement
    assert again.summary.speedup == whole.summary.speedup
    summary = consistent(run)
    assert summary["final_sha256"] == whole.summary.final_sha256
    # What it says about the run is about this one, and about both together.
    assert summary["benchmarks"] == again.summary.benchmarks > 0
    assert summary["preset"] == "quick"  # of the result
    assert (summary["result_run"], summary["runs"]) == (1, 2)
    together = whole.summary.benchmarks + summary["benchmarks"]
    assert summary["total_benchmarks"] == together
    assert 0.0 < summary["seconds"]["total"] < summary["total_seconds"]
    shown = tune_text(again)
    assert f"This run: {summary['benchmarks']} benchmarks" in shown
    assert f"All 2 runs in this folder: {together} benchmarks" in shown
    assert "Nothing better was found in this run: the result is that of run 1." in shown
    assert "Its figures are from summary.json; `qdqtune verify` measures them again." in shown


def test_a_speedup_that_was_forged_is_not_told_again(
    model: Path,
    whole: TuneResult,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    summary = json.loads((run / "summary.json").read_text())
    forged = {**summary, "speedup": 9.9, "speedup_interval": [9.8, 10.0]}
    (run / "summary.json").write_text(json.dumps(forged))
    end_with(monkeypatch, frozenset(range(7)))
    monkeypatch.setattr("qdqtune.workflows.tuning._finalize.fastest_first", lambda *_: {})
    again = simulated(model, run, preset="default")
    assert again.placement == whole.placement
    assert again.summary.speedup == pytest.approx(whole.summary.speedup, rel=0.05)
    assert consistent(run)["speedup"] == again.summary.speedup
    assert "not 9.900x as its summary says" in caplog.text
    # What is not as fast as it has to be is not kept.
    forged["conditions"] = {**summary["conditions"], "performance_threshold": 5.0}
    (run / "summary.json").write_text(json.dumps(forged))
    again = simulated(model, run, preset="default", performance_threshold=5.0)
    assert again.summary.kept_float
    assert "x as fast as float, not 9.900x" in again.summary.reason


def test_a_result_that_is_not_what_its_summary_says_is_not_kept(
    model: Path, whole: TuneResult, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = run / "optimized_final.onnx"
    changed = onnx.load(final)
    for weight in changed.graph.initializer:
        if weight.data_type == onnx.TensorProto.INT8:
            values = np.roll(onnx.numpy_helper.to_array(weight).ravel(), 7).reshape(weight.dims)
            weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    onnx.save(changed, final)
    summary = json.loads((run / "summary.json").read_text())
    changes = {
        "final_sha256": handover.sha256_of_model(final),
        "build_with": "sh -c 'touch was_run'",
    }
    (run / "summary.json").write_text(json.dumps({**summary, **changes}))
    end_with(monkeypatch, frozenset())
    monkeypatch.setattr("qdqtune.workflows.tuning._finalize.fastest_first", lambda *_: {})
    again = simulated(model, run, preset="default")
    assert again.summary.kept_float
    assert "not what it claims: its outputs are" in again.summary.reason
    assert again.summary.build_with == ""
    assert final.read_bytes() == model.read_bytes()


def test_what_was_found_under_other_conditions_is_kept_aside(
    model: Path, whole: TuneResult, run: Path
) -> None:
    again = simulated(model, run, node_filter=["n0"])
    assert again.placement != whole.placement
    assert (run / "earlier/1/optimized_final.onnx").read_bytes() == whole.model.read_bytes()
    assert (run / "earlier/1/summary.json").exists()


def test_a_calibrated_result_is_not_replaced_by_one_with_random_scales(
    model: Path, tmp_path: Path
) -> None:
    inputs = next(random_inputs(GraphIndex(load_model(model)), 1))
    first = simulated(model, tmp_path / "run", calibration_data=[inputs], max_benchmarks=1)
    calls: list[str] = []

    def metric(path: str) -> float:  # may take minutes
        calls.append(path)
        return 1.0

    with pytest.raises(UsageError, match="was calibrated on data, and this command has none"):
        simulated(model, tmp_path / "run", max_benchmarks=1, evaluate=metric)
    assert not calls
    assert (tmp_path / "run/optimized_final.onnx").read_bytes() == first.model.read_bytes()
    simulated(model, tmp_path / "run", max_benchmarks=1, restart=True)


def consistent(run: Path) -> dict[str, Any]:
    """The summary, if all files of a result are about the same model."""
    summary = json.loads((run / "summary.json").read_text())
    placement = Placement.from_json((run / "placement.json").read_text())
    final = load_model(run / "optimized_final.onnx")
    assert len(placement.tensors) == summary["qdq_pairs"]
    assert len(read(final).placement.tensors) == summary["qdq_pairs"]
    assert (run / "ranges.json").exists() == bool(placement)
    assert not (run / ".handover").exists()
    return dict(summary)


@pytest.mark.parametrize(
    "is_external", [pytest.param(False, marks=SLOW), True], ids=["inside", "external"]
)
def test_a_kill_while_handing_over_leaves_the_old_result_or_the_new_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_external: bool
) -> None:
    source = tmp_path / "given/model.onnx"
    source.parent.mkdir()
    onnx.save(onnx.load(model), source, save_as_external_data=is_external, location="weights.bin")
    first = simulated(source, tmp_path / "run", max_benchmarks=1, min_sqnr_db=None)
    assert not first.summary.kept_float
    replace, put = os.replace, handover._put_into_place
    left = [0]

    def die(one: Any, other: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        replace(one, other)

    def put_or_die(folder: Path, names: set[str]) -> None:
        monkeypatch.setattr(os, "replace", die)
        put(folder, names)

    for steps in (0, 3):
        run = Path(shutil.copytree(tmp_path / "run", tmp_path / f"run{steps}"))
        left[0] = steps
        monkeypatch.setattr(handover, "_put_into_place", put_or_die)
        with contextlib.suppress(Killed):
            simulated(source, run)
        monkeypatch.undo()
        with RunFolder(run, source):
            summary = consistent(run)
        assert summary["conditions"]["min_sqnr_db"] is not None
        with Worker() as worker:
            worker.open(run / "optimized_final.onnx")


def test_restart_leaves_the_users_own_weights(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "own/model.onnx"
    source.parent.mkdir()
    onnx.save(onnx.load(model), source, save_as_external_data=True, location="mine.bin")
    weights = (tmp_path / "own/mine.bin").read_bytes()
    for _ in range(2):
        simulated(source, source.parent, max_benchmarks=2, restart=True)
        assert (tmp_path / "own/mine.bin").read_bytes() == weights
    with Worker() as worker:
        worker.open(tmp_path / "own/earlier/1/baseline.onnx")


@pytest.mark.parametrize(
    "wrong", [{"node_filter": ["nothing*"]}, {"engine_options": {"nonsense": "1"}}]
)
@pytest.mark.parametrize("how", ["restart", "force"])
def test_a_request_that_makes_no_sense_changes_nothing(
    model: Path, run: Path, how: str, wrong: dict[str, Any]
) -> None:
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with pytest.raises(QdqtuneError):
        simulated(model, run, **{how: True}, **wrong)
    after = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    before.pop(run / ".lock")
    after.pop(run / ".lock")
    assert after == before


def test_a_kill_while_a_run_is_set_aside_splits_no_run(
    model: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def die(one: Any, other: Any) -> None:
        if Path(one).name == "optimized_final.onnx":
            raise Killed
        replace(one, other)

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(Killed):
        simulated(model, run, restart=True)
    monkeypatch.undo()
    simulated(model, run, max_benchmarks=2)
    consistent(run / "earlier/1")
    assert (run / "earlier/1/measurements.jsonl").exists()
    assert not (run / "earlier/2").exists()


def test_a_first_interrupt_while_finishing_is_only_noted(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupts(times: int) -> Callable[[TuneEvent], None]:
        left = [signal.SIGINT] * times

        def interrupt(event: TuneEvent) -> None:
            while event.stage == "final" and left:
                signal.raise_signal(left.pop())

        return interrupt

    result = simulated(model, tmp_path / "run", callbacks=[interrupts(1)])
    assert "press Ctrl-C again to abort" in caplog.text
    assert not result.summary.kept_float
    with pytest.raises(KeyboardInterrupt):
        simulated(model, tmp_path / "run", callbacks=[interrupts(2)])


def test_hanging_up_is_never_a_second_interrupt(model: Path, tmp_path: Path) -> None:
    def hang_up(event: TuneEvent) -> None:
        if event.stage == "accuracy":
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)

    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        interrupt_on_signals()
        result = simulated(model, tmp_path / "run", callbacks=[hang_up])
        assert not result.summary.kept_float
        assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_a_signal_that_is_ignored_stays_so() -> None:
    """`nohup` starts commands like that; SIGQUIT is nobody's but the user's."""
    script = (
        "import signal\n"
        "signal.signal(signal.SIGQUIT, signal.SIG_DFL)\n"
        "from qdqtune.workflows._interrupts import interrupt_on_signals\n"
        "interrupt_on_signals()\n"
        "print(*(int(signal.getsignal(each)) for each in (signal.SIGHUP, signal.SIGQUIT)))"
    )
    command = ["nohup", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(int(signal.SIG_IGN)), str(int(signal.SIG_DFL))]


def test_a_result_that_somebody_changed_is_not_called_proven(model: Path, run: Path) -> None:
    final = run / "optimized_final.onnx"
    final.write_bytes(final.read_bytes() + b" ")

    def interrupt(event: TuneEvent) -> None:
        if event.benchmarks and event.stage not in ("final", "accuracy", "done"):
            raise KeyboardInterrupt

    again = simulated(model, run, preset="default", callbacks=[interrupt])
    assert again.summary.stopped == "interrupted"
    assert again.summary.runs == 2
    assert again.summary.final_sha256 == hashlib.sha256(again.model.read_bytes()).hexdigest()


def test_candidates_of_all_runs_in_a_folder_can_be_exported(
    model: Path, run: Path, tmp_path: Path
) -> None:
    kept: list[str] = []
    before = {
        candidate.id: (run / f"region_models/{candidate.id}.onnx").read_bytes()
        for candidate in list_candidates(run)
    }
    weights = (run / "region_models/weights.bin").read_bytes()
    simulated(model, run, max_benchmarks=2, seed=9)  # other random inputs, other scales
    for name, content in before.items():
        if (run / f"region_models/{name}.onnx").read_bytes() == content:  # not written anew
            kept.append(name)
        export(run, name, tmp_path / f"{name}.onnx")
    assert len(kept) > len(before) / 2
    now = (run / "region_models/weights.bin").read_bytes()
    assert now.startswith(weights)


@pytest.mark.parametrize("damaged", ["weights.index", "weights.bin"])
def test_candidates_whose_weights_were_repaired_can_be_exported(
    model: Path, run: Path, tmp_path: Path, damaged: str
) -> None:
    """The next run writes them to another place, and they are what was measured."""
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 32, 32, 32)).astype(np.float32)}
    file, names = run / "region_models" / damaged, [one.id for one in list_candidates(run)]
    before = {name: (run / f"region_models/{name}.onnx").read_bytes() for name in names}
    last = sorted(names)[-1]
    export(run, last, tmp_path / "before.onnx")
    content = file.read_bytes()
    file.write_bytes(content[1:] if damaged == "weights.index" else bytes(len(content)))
    if damaged == "weights.bin":
        with pytest.raises(ModelError, match="not what was measured"):
            export(run, last, tmp_path / "damaged.onnx")
    simulated(model, run)
    assert before != {name: (run / f"region_models/{name}.onnx").read_bytes() for name in names}
    for name in names:
        export(run, name, tmp_path / f"{name}.onnx")
    sound, repaired = (
        onnxruntime.InferenceSession(tmp_path / f"{name}.onnx").run(None, feeds)[0]
        for name in ("before", last)
    )
    np.testing.assert_array_equal(sound, repaired)


def test_another_pattern_cache_is_a_place_to_begin(
    model: Path, whole: TuneResult, tmp_path: Path
) -> None:
    cache = whole.output_dir / "autotuner_state_pattern_cache.yaml"
    assert PatternCache.load(cache).num_patterns
    again = simulated(model, tmp_path / "again", pattern_cache=cache, max_benchmarks=4)
    assert again.summary.seeds["pattern cache"] == pytest.approx(whole.speedup, rel=0.05)


@pytest.mark.parametrize("content", [b"\x00\xff", b"kind: ["])
def test_a_damaged_cache_or_state_is_named_and_does_not_stop_a_run(
    model: Path, run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    for name in ("autotuner_state.yaml", "autotuner_state_pattern_cache.yaml"):
        (run / name).write_bytes(content)
    given = tmp_path / "given.yaml"
    given.write_bytes(content)
    simulated(model, run, max_benchmarks=2, pattern_cache=given)
    for path in (run / "autotuner_state.yaml", given):
        assert str(path) in caplog.text
    assert (run / "autotuner_state.damaged-1.yaml").read_bytes() == content
    assert given.read_bytes() == content
    assert PatternCache.load(run / "autotuner_state_pattern_cache.yaml").num_patterns


@pytest.mark.parametrize("name", ["autotuner_state.yaml", "autotuner_state_pattern_cache.yaml"])
def test_a_state_of_a_newer_version_is_refused(model: Path, run: Path, name: str) -> None:
    newer = (run / name).read_text().replace("schema: 1", "schema: 99")
    (run / name).write_text(newer)
    with pytest.raises(AutotunerError, match="newer"):
        simulated(model, run)
    assert (run / name).read_text() == newer


def test_a_file_of_the_users_is_no_state_file(model: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.yaml"
    notes.write_text("shopping: [milk]\n")
    with pytest.raises(AutotunerError, match=r"notes\.yaml"):
        simulated(model, tmp_path / "run", state_file=notes)
    assert notes.read_text() == "shopping: [milk]\n"


def test_a_state_file_of_another_quant_type_is_refused(model: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.yaml"
    simulated(model, tmp_path / "int8", state_file=state, max_benchmarks=2)
    assert (tmp_path / "state_pattern_cache.yaml").exists()
    with pytest.raises(UsageError, match="another quant type"):
        simulated(model, tmp_path / "uint8", state_file=state, quant_type="uint8")


@pytest.mark.parametrize("limit_kb", [pytest.param(1, marks=SLOW), 190])
def test_a_full_disk_is_an_error_and_the_run_goes_on_later(
    model: Path, tmp_path: Path, limit_kb: int
) -> None:
    """Files that can't grow stand in for the disk."""
    limit = limit_kb * 1000
    done = subprocess.run(
        command(model, tmp_path / "run"), capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") or "\nerror: " in done.stderr
    assert "Traceback" not in done.stderr
    result = simulated(model, tmp_path / "run")
    assert result.speedup > 1.0


def test_a_folder_that_cannot_be_made_is_an_error_of_ours(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="can't be made"):
        simulated(model, tmp_path / "file/run")
