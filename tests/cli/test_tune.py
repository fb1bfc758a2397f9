"""`qdqtune tune` and `export`, as a user calls them."""

from __future__ import annotations

import inspect
import io
import json
import os
import pty
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
import pytest

import qdqtune
from qdqtune import zoo
from qdqtune.cli.main import get_parser, main
from qdqtune.graph._files import load_model
from qdqtune.qdq._read_back import read
from qdqtune.records._measurement import EngineInfo
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import RANDOM_WARNING
from qdqtune.records._tuning import Blanket, Noise, Seconds, Summary, TuneEvent, TuneResult
from qdqtune.report._progress import event_line, show_progress
from qdqtune.report._tuning import tune_text

Capture = pytest.CaptureFixture[str]
SLOW = pytest.mark.slow

QUICK = ["--preset", "quick", "--max_benchmarks", "6"]
SIMULATED = ["--engine", "simulated", *QUICK]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tune") / "model.onnx"
    onnx.save(zoo.build("resnet18", width=32, image=64), path)
    return path


@dataclass
class Finished:
    """A run that is over, and what it printed."""

    folder: Path
    out: str
    err: str


@pytest.fixture(scope="module")
def finished(model: Path) -> Finished:
    folder = model.with_name("run")
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        assert main(["tune", str(model), *SIMULATED, "-o", str(folder)]) == 0
    return Finished(folder, out.getvalue(), err.getvalue())


def test_one_command_gives_a_faster_model(finished: Finished) -> None:
    run, lines = finished.folder, finished.out.splitlines()
    assert lines[-1] == RANDOM_WARNING
    assert "These times are simulated: they say nothing about a real machine." in lines
    assert f"Written: {run / 'optimized_final.onnx'}" in lines
    summary = json.loads((run / "summary.json").read_text())
    assert summary["speedup"] > 1.02
    assert not summary["kept_float"]
    (tuned,) = [line for line in lines if line.startswith("tuned")]
    assert f"{summary['speedup']:.3f}x" in tuned
    assert summary["benchmarks"] <= 6
    placement = Placement.from_json((run / "placement.json").read_text())
    assert read(load_model(run / "optimized_final.onnx")).placement.edges == placement.edges
    assert len(placement.tensors) == summary["qdq_pairs"] > 0
    # One line per step, on stderr: stdout is no terminal here.
    steps = [line for line in finished.err.splitlines() if line.startswith("[")]
    assert any("of 6 benchmarks" in line and "x so far" in line for line in steps)
    seeds = next(line for line in steps if "seeds: " in line and "best " in line)
    assert " % against float (" in seeds
    assert steps[-1].split("] ")[1].startswith("done: ")


def test_json_is_the_summary(model: Path, tmp_path: Path, capsys: Capture) -> None:
    arguments = ["tune", str(model), *SIMULATED, "--output-dir", str(tmp_path), "--format", "json"]
    assert main([*arguments, "--seed", "3", "-q"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    record = json.loads(captured.out)
    assert record == json.loads((tmp_path / "summary.json").read_text())
    assert record["seed"] == 3
    assert record["command"] == shlex.join(["qdqtune", *arguments, "--seed", "3", "-q"])
    assert record["engine"]["name"] == "simulated"
    assert record["calibration"] == "random"


def test_float_is_kept_where_nothing_pays(model: Path, tmp_path: Path, capsys: Capture) -> None:
    no_kernels = ["--engine_option", "profile=float-only"]
    assert main(["tune", str(model), *SIMULATED, *no_kernels, "-o", str(tmp_path), "-q"]) == 0
    out = capsys.readouterr().out
    assert "The float model is kept, byte for byte: " in out
    assert RANDOM_WARNING not in out
    assert (tmp_path / "optimized_final.onnx").read_bytes() == model.read_bytes()


def test_a_dry_run_writes_nothing(
    model: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tune", str(model), "--dry_run", "--max_benchmarks", "7"]) == 0
    assert "at most 7 benchmarks on onnxruntime" in capsys.readouterr().out
    assert main(["tune", str(model), "--dry-run", "--engine", "simulated", "--format=json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["kind"] == "plan"
    assert plan["groups"] > 5
    assert plan["quantizable"] <= plan["nodes"]
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_looks_the_metric_up(model: Path, capsys: Capture) -> None:
    assert main(["tune", str(model), "--dry_run", "--evaluate", "no_such_module_here:f"]) == 2
    assert "no_such_module_here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--budget", "soon"], "300, 90s, 30m or 2h, not soon"),
        (["--budget", "0"], "must be a time above 0"),
        (["--preset", "slow"], "unknown value slow"),
        (["--max_benchmarks", "0"], "from 1 up"),
        (["--min_sqnr", "much"], "must be none or a number of dB"),
        (["--performance_threshold", "0.9"], "must be a ratio of 1 or more"),
        (["--max_drop", "-1"], "from 0 up"),
        (["--evaluate", "no_such_module_here:f"], "no_such_module_here"),
        (["--quant_type", "int3"], "unknown value int3; did you mean int8?"),
        (["--node_filter", "nothing*"], "matches the node filter"),
        (["--node_filter", "layer9.0.conv1"], "layer9.0.conv1 (there are layer"),
        (["--node_filter_list", "gone.txt"], "gone.txt can't be read"),
        (["--qdq_baseline", "{model}"], "has no Q/DQ to begin with"),
    ],
)
def test_mistakes(
    arguments: list[str], words: str, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    filled = [argument.format(model=model) for argument in arguments]
    assert main(["tune", str(model), *SIMULATED, "-o", str(tmp_path), "-q", *filled]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
    assert not (tmp_path / "optimized_final.onnx").exists()


def test_a_filter_from_a_file_names_what_matches_nothing(
    model: Path, tmp_path: Path, capsys: Capture
) -> None:
    """A region that it leaves out stays float."""
    wildcards = tmp_path / "wildcards.txt"
    wildcards.write_text("# two stages\nlayer[34]*\nlayer7.0.conv1\n")
    folder = tmp_path / "run"
    arguments = ["tune", str(model), *SIMULATED, "-o", str(folder), "--min_sqnr", "none"]
    assert main([*arguments, "--node_filter_list", str(wildcards)]) == 0
    assert "no node matches these patterns of the node filter: layer7.0.conv1 (there are layer" in (
        capsys.readouterr().err
    )
    quantized = {edge[1] for edge in json.loads((folder / "placement.json").read_text())["edges"]}
    assert any(name.startswith("layer3") for name in quantized)
    assert not any(name.startswith("fc") for name in quantized)


def test_the_output_folder_is_not_the_model_s(model: Path, capsys: Capture) -> None:
    baseline = model.with_name("baseline.onnx")
    baseline.write_bytes(model.read_bytes())
    assert main(["tune", str(baseline), *SIMULATED, "-o", str(model.parent), "-q"]) == 1
    assert "would replace baseline.onnx" in capsys.readouterr().err
    assert baseline.read_bytes() == model.read_bytes()


def test_an_accuracy_that_nothing_reaches(
    model: Path, finished: Finished, tmp_path: Path, capsys: Capture
) -> None:
    """The earlier run is resumed: nothing is measured again, but the result is another."""
    shutil.copytree(finished.folder, tmp_path / "run")
    arguments = ["tune", str(model), *SIMULATED, "-o", str(tmp_path / "run"), "-q"]
    assert main([*arguments, "--format", "json", "--min_sqnr", "200"]) == 0
    strict = json.loads(capsys.readouterr().out)
    assert strict["benchmarks"] == 0 < strict["memo_hits"]
    assert strict["kept_float"]
    assert strict["reason"]
    assert main([*arguments, "--format", "json", "--min_sqnr", "none"]) == 0
    assert not json.loads(capsys.readouterr().out)["kept_float"]


@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGINT],  # the whole foreground group gets it, as on a terminal
        pytest.param(
            [signal.SIGHUP, signal.SIGHUP], marks=SLOW
        ),  # a shell repeats what the kernel sent
        pytest.param([signal.SIGTERM, signal.SIGHUP], marks=SLOW),  # some supervisors send both
    ],
    ids=lambda signals: "+".join(each.name for each in signals),
)
def test_signals_leave_the_best_so_far(
    model: Path, tmp_path: Path, signals: list[signal.Signals]
) -> None:
    command = [sys.executable, "-m", "qdqtune", "tune", str(model), "-o", str(tmp_path)]
    process = subprocess.Popen(
        [*command, "--engine", "simulated", "--preset", "extensive"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    read_so_far = ""
    for line in process.stderr:
        read_so_far += line
        if "benchmarks" in line:
            break
    time.sleep(0.2)
    for each in signals:
        os.killpg(process.pid, each)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, read_so_far + errors
    assert "Traceback" not in errors
    assert "The search was interrupted; the same command resumes it." in out
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["stopped"] == "interrupted"
    onnx.checker.check_model(str(tmp_path / "optimized_final.onnx"), full_check=True)


@pytest.mark.slow
def test_a_terminal_that_is_closed_leaves_the_best_so_far(model: Path, tmp_path: Path) -> None:
    """Nothing can be written to it any more, and the run must not end of that."""
    command = [sys.executable, "-m", "qdqtune", "tune", str(model), "-o", str(tmp_path / "run")]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command[0], [*command, "--engine", "simulated", "--preset", "extensive"])
    journal = tmp_path / "run" / "measurements.jsonl"
    deadline = time.monotonic() + 60
    while not (journal.exists() and journal.read_text().count('"measurement"') > 1):
        assert time.monotonic() < deadline
        if select.select([terminal], [], [], 0.05)[0]:
            os.read(terminal, 1 << 16)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stopped"] == "interrupted"
    onnx.checker.check_model(str(tmp_path / "run" / "optimized_final.onnx"), full_check=True)


def test_any_candidate_can_be_exported(finished: Finished, tmp_path: Path, capsys: Capture) -> None:
    run, output = finished.folder, tmp_path / "out.onnx"
    assert main(["export", str(run), "--list", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)["candidates"]
    assert len(listed) >= 3
    (plain,) = [one for one in listed if one["tensors"] == 0]
    assert plain["speedup"] == 1.0
    chosen = max(listed, key=lambda one: one["tensors"])
    arguments = ["export", str(run), "--candidate", chosen["id"], "-o", str(output)]
    assert main(arguments) == 0
    assert str(output) in capsys.readouterr().out
    assert len(read(load_model(output)).placement.tensors) == chosen["tensors"]
    assert main(arguments) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["export", str(run)]) == 2
    missing = capsys.readouterr()
    assert missing.out == ""
    assert all(one["id"] in missing.err for one in listed)
    assert main(["export", str(run), "--candidate", "c99"]) == 2
    unknown = capsys.readouterr().err
    assert "has no candidate 'c99'" in unknown
    assert chosen["id"] in unknown


# What is shown, without a run.

EVENT = TuneEvent("sweep 1", "4 candidates, \x1b[2Jbest", 12, 40, 1.25, 61.0, 100.0)


def test_a_step_is_one_line() -> None:
    assert event_line(EVENT) == (
        "[1 min 01 s] sweep 1: 4 candidates, \ufffd[2Jbest "
        "(12 of 40 benchmarks, 1.250x so far, 1 min 40 s left)"
    )
    early = TuneEvent("model", "49 ops", seconds=0.25)
    assert event_line(early) == "[0.2 s] model: 49 ops"
    named = TuneEvent("model", "reading a\nWritten: b.onnx", seconds=0.25)
    assert event_line(named) == "[0.2 s] model: reading a\ufffdWritten: b.onnx"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with show_progress(eager=True) as watch:
        watch(EVENT)
    shown = screen.getvalue()
    facts = "12 of 40 benchmarks, 1.250x so far, 1 min 40 s left"
    assert f"4 candidates, \ufffd[2Jbest ({facts})" in shown  # stays
    assert "sweep 1: 0.0 s so far" in shown  # the live line
    assert shown.count(f"({facts})") == 1
    assert f"in all, {facts}" in shown
    assert "\x1b[2J" not in shown


@pytest.mark.parametrize("screen", [Terminal, io.StringIO])
def test_quiet_shows_nothing(screen: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen())
    with show_progress(quiet=True, eager=True) as watch:
        watch(EVENT)
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def summary(**changes: object) -> Summary:
    values: dict[str, object] = {
        "model": "m.onnx",
        "engine": EngineInfo("onnxruntime", "1", "a CPU", "avx2", 1),
        "dialect": "onnxruntime",
        "quant_type": "int8",
        "calibration": "data",
        "calibrated_on": "32 samples of x.npz",
        "calibration_method": "mse",
        "seed": 0,
        "preset": "quick",
        "stopped": "finished",
        "baseline_ms": 20.0,
        "final_ms": 10.0,
        "speedup": 2.0,
        "speedup_interval": (1.9, 2.1),
        "confidence": 0.96,
        "kept_float": False,
        "reason": "",
        "output_sqnr_db": 31.26,
        "metric": {"float": 0.91, "final": 0.9},
        "noise": Noise(1.001, 0.012),
        "benchmarks": 30,
        "memo_hits": 4,
        "failed": 1,
        "regions": 9,
        "patterns": 5,
        "groups": 7,
        "qdq_pairs": 44,
        "seconds": Seconds(125.0, 20.0, 90.0, 5.0),
        "files": {"optimized_final": "optimized_final.onnx", "placement": "placement.json"},
        "seeds": {"everything": 1.5, "weighted ops": 1.7},
    }
    return Summary(**{**values, **changes})  # type: ignore[arg-type]


def text(**changes: object) -> list[str]:
    run = Path("run")
    model = run / "optimized_final.onnx"
    return tune_text(TuneResult(model, run, Placement(), summary(**changes))).splitlines()


def test_the_text_says_what_matters() -> None:
    lines = text()
    rows = [line.split() for line in lines if line.startswith(("float", "best", "tuned"))]
    assert rows[0] == ["float", "20.000", "0.91"]
    assert rows[1] == ["tuned", "10.000", "2.000x", "1.900", "to", "2.100", "31.3", "dB", "0.9"]
    assert len(rows) == 2  # what was only seen while searching is on another scale
    shown = "\n".join(lines)
    for words in (
        "with 96 % intervals",
        "44 tensors are quantized (int8), in the onnxruntime dialect.",
        "Output SQNR 31.3 dB",
        "float 0.91, final 0.9",
        "Calibrated on 32 samples of x.npz, mse ranges.",
        "30 benchmarks (1 failed, 4 known from before)",
        "2 min 05 s",
        "differences from 1.2 %",
        "Beside it: placement.json, summary.json",
    ):
        assert words in shown
    assert RANDOM_WARNING not in shown
    assert "busy" not in shown
    assert "the engine waited for a core 47 % of the time" in "\n".join(text(contention=0.47))
    assert text(calibration="random")[-1] == RANDOM_WARNING


@pytest.mark.parametrize(
    ("sqnr_db", "limit", "said"),
    [
        (15.0, 15.0, "0.0 dB"), (15.94, 15.0, "0.9 dB"), (16.0, 15.0, ""), (31.3, None, ""),
        (31.3, 31.0, "0.3 dB"), (None, 15.0, ""),
    ],
)  # fmt: skip
def test_a_result_near_its_limit_is_marked(
    sqnr_db: float | None, limit: float | None, said: str
) -> None:
    changes = {"output_sqnr_db": sqnr_db, "conditions": {"min_sqnr_db": limit}}
    found = [line for line in text(**changes) if "above the limit" in line]
    assert bool(said) == bool(found) == summary(**changes).to_dict()["near_min_sqnr"]
    assert not found or f"Only {said} above the limit of {limit:g} dB" in found[0]
    assert not summary(**changes, kept_float=True).near_min_sqnr


@pytest.mark.parametrize(("limit_ms", "is_missed"), [(None, False), (10.0, False), (9.9, True)])
def test_a_latency_that_nothing_reaches_is_the_last_word(
    limit_ms: float | None, is_missed: bool
) -> None:
    changes = {"conditions": {"max_latency_ms": limit_ms}}
    said = "No model reaches --max_latency 9.9 ms: the fastest takes 10 ms."
    assert (text(**changes)[-1] == said) is is_missed
    assert summary(**changes).to_dict()["misses_max_latency"] is is_missed
    kept = text(**changes, kept_float=True)[-1]
    assert kept.endswith("as given, which is kept, takes 10 ms.") is is_missed


def test_the_parts_of_the_time_make_up_the_whole() -> None:
    (line,) = [line for line in text() if "2 min 05 s" in line]
    assert line.endswith(
        "building 20 s, timing 1 min 30 s, calibration and checks 10 s, own 5.0 s."
    )
    (line,) = [line for line in text(seconds=Seconds(9.0, 0.0, 20.0, 2.0)) if "choices" in line]
    assert line.endswith("9.0 s: timing 20 s, own 2.0 s.")  # simulated seconds are shorter


def test_every_command_has_the_same_limit() -> None:
    for call in (qdqtune.tune, qdqtune.quantize):
        assert inspect.signature(call).parameters["min_sqnr_db"].default >= 15.0
    defaults = {
        get_parser().parse_args([command, "m.onnx"]).min_sqnr for command in ("tune", "quantize")
    }
    assert defaults == {inspect.signature(qdqtune.tune).parameters["min_sqnr_db"].default}


BLANKET = Blanket("weighted ops", 12.5, 1.6, (1.5, 1.7), 12.04, None)


def test_the_best_blanket_is_on_the_same_scale() -> None:
    lines = text(blanket=BLANKET)
    (row,) = [line.split() for line in lines if line.startswith("best blanket (weighted ops)")]
    assert row[4:] == ["12.500", "1.600x", "1.500", "to", "1.700", "12.0", "dB"]
    assert not any("not accurate enough" in line for line in lines)
    lines = text(blanket=replace(BLANKET, shortfall="SQNR 12.0 dB is 3.0 dB below --min_sqnr 15"))
    assert (
        "The blanket is not accurate enough: SQNR 12.0 dB is 3.0 dB below --min_sqnr 15." in lines
    )


def test_a_result_that_is_a_blanket_says_so() -> None:
    lines = text(blanket=replace(BLANKET, identical=True))
    (row,) = [line.split() for line in lines if line.startswith("best blanket (weighted ops)")]
    assert row[4:] == ["identical", "to", "tuned"]
    assert "The result is identical to a blanket: weighted ops." in lines


def test_a_blanket_is_shown_beside_float_that_is_kept() -> None:
    lines = text(kept_float=True, blanket=replace(BLANKET, speedup=0.8, latency_ms=25.0))
    (row,) = [line.split() for line in lines if line.startswith("best blanket (weighted ops)")]
    assert row[4:6] == ["25.000", "0.800x"]
    assert any(line.startswith("Speedups are over the model as given") for line in lines)


def test_kept_float_is_said_with_its_reason() -> None:
    lines = text(kept_float=True, reason="it gains 1.01x, less than 1.02x", calibration="random")
    assert "The float model is kept, byte for byte: it gains 1.01x, less than 1.02x." in lines
    assert not any("SQNR" in line for line in lines)
    assert RANDOM_WARNING not in lines


@pytest.mark.parametrize(
    ("stopped", "why"),
    [
        ("budget", "The time was up"),
        ("max_benchmarks", "The search ended at --max_benchmarks: too few candidates"),
        ("interrupted", "The search was interrupted"),
    ],
)
def test_why_a_search_ended_early(stopped: str, why: str) -> None:
    (line,) = set(text(stopped=stopped)) - set(text())
    assert line.startswith(why)


# The package itself.


def test_importing_is_light_and_offers_what_it_says() -> None:
    code = (
        "import sys, qdqtune\n"
        "assert not {'numpy', 'onnx', 'onnx_ir', 'rich', 'argparse'} & set(sys.modules)\n"
        "assert {'tune', 'compare', 'TuneResult'} <= set(dir(qdqtune))\n"
        "for name in qdqtune.__all__: assert getattr(qdqtune, name) is not None\n"
        "from qdqtune import tune\n"
        "from qdqtune.workflows.tuning._tune import tune as same\n"
        "assert tune is same\n"
        "try: qdqtune.tuna\n"
        "except AttributeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "module 'qdqtune' has no attribute 'tuna'", done.stderr
