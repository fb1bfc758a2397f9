"""What is shown while a command works: every step once, and no long silence."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from qdqtune.records._tuning import TuneEvent
from qdqtune.report import _progress
from qdqtune.report._progress import show_progress
from qdqtune.workflows._progress_reporter import ProgressReporter
from qdqtune.zoo import build
from tests.silence import listen_to

MOST_S = 2.0  # a sign of life is due after 1.5 s; the rest is for a thread that has to wait

needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_a_silence_is_noticed() -> None:
    code = "import time; print(1, flush=True)\nwhile time.process_time() < 0.6: pass"
    output = listen_to([sys.executable, "-c", code])
    assert output.code == 0
    assert output.lines == ["1"]
    assert output.longest.after == "1"
    assert output.longest.seconds > 0.3


@pytest.fixture(scope="module")
def yolo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "yolo.onnx"
    onnx.save(build("yolo", image=320), path)
    return path


@needs_proc
@pytest.mark.parametrize(
    "command",
    [
        ["quantize", "{model}", "-o", "{out}.onnx", "--min_sqnr", "45"],  # with a repair
        ["tune", "{model}", "-o", "{out}", "--preset", "quick", "--budget", "15s"],
        ["tune", "{model}", "-o", "{out}", "--preset", "quick", "--workflow", "subgraph",
         "--max_benchmarks", "1", "--budget", "25s"],
        ["inspect", "{model}", "--layers", "--runs", "60"],
    ],
    ids=["quantize", "tune", "subgraph", "layers"],
)  # fmt: skip
def test_no_command_is_silent_for_long(command: list[str], yolo: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    words = [word.format(model=yolo, out=tmp_path / "out") for word in command]
    output = listen_to([sys.executable, "-m", "qdqtune", *words, "--engine", "onnxruntime"])
    assert output.code == 0, output.lines
    assert output.longest.seconds < MOST_S, output.longest
    stamped = [line for line in output.lines if re.match(r"\[[\d.]+ (s|min)", line)]
    assert len(set(stamped)) == len(stamped)  # each line once


Shown = Callable[..., list[str]]


@pytest.fixture
def shown_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    """Shows events, with pauses between them, and returns the lines without their times."""
    monkeypatch.setattr(_progress, "_FIRST_AFTER_S", 0.2)
    monkeypatch.setattr(_progress._Lines, "interval_s", 0.2)

    def show(*events: TuneEvent | float, eager: bool = True) -> list[str]:
        with show_progress(eager=eager) as watch:
            for event in events:
                if isinstance(event, float):
                    time.sleep(event)
                else:
                    watch(event)
        lines = capsys.readouterr().err.splitlines()
        return [re.sub(r"^\[[^]]*\] ", "", line) for line in lines]

    return show


def test_a_step_that_goes_on_is_shown_again(shown_of: Shown) -> None:
    step = TuneEvent("final", "timing", speedup=1.5, eta_s=60.0, budget_left_s=90.0)
    first, *others = shown_of(step, 0.7)
    assert first == "final: timing (1.500x so far, 1 min 00 s left, budget: 1 min 30 s left)"
    assert others
    for line in others:
        assert re.fullmatch(r"final: 0\.\d s so far \(1\.500x so far, .* left, .* left\)", line)


def test_an_estimate_that_was_too_short_is_dropped(shown_of: Shown) -> None:
    *_, last = shown_of(TuneEvent("final", "timing", eta_s=0.05), 0.5)
    assert re.fullmatch(r"final: 0\.\d s so far", last)


def test_of_an_amount_only_the_latest_is_shown(shown_of: Shown) -> None:
    counted: list[TuneEvent] = []
    show = ProgressReporter([counted.append]).counter("calibration", "samples")
    for n in range(90):
        show(n, 99)
    lines = shown_of(TuneEvent("calibration", "on data"), *counted, 0.4)
    assert lines[0] == "calibration: on data"
    assert lines[1].startswith("calibration: 89 of 99 samples")


def test_an_amount_that_stays_is_not_shown_twice(
    shown_of: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_progress, "_OLD_S", 0.3)
    events: list[TuneEvent] = []
    ProgressReporter([events.append]).counter("accuracy", "layers compared")(9, 9)
    first, *others = shown_of(TuneEvent("accuracy", "of layers"), *events, 0.7)[1:]
    assert first == "accuracy: 9 of 9 layers compared"  # and not that no time is left
    assert others
    for line in others:
        assert re.fullmatch(r"accuracy: 9 of 9 layers compared; 0\.\d s since then", line)


@pytest.mark.parametrize("pause_s", [0.0, 0.5])
def test_nothing_is_shown_of_a_command_that_takes_no_time(pause_s: float, shown_of: Shown) -> None:
    lines = shown_of(TuneEvent("model", "reading"), pause_s, eager=False)
    assert lines[:1] == (["model: reading"] if pause_s else [])


def test_the_budget_bounds_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[TuneEvent] = []
    reporter = ProgressReporter([events.append], budget_s=50.0)
    reporter.search_begins()
    clock = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: clock + 10.0)
    reporter.tell("sweep", "one", benchmarks=1, planned=100, speedup=1.2)
    reporter.tell("final", "timing")
    first, last = events
    assert first.eta_s == pytest.approx(40.0, abs=0.1)  # the rest would take 990 s
    assert first.budget_left_s == pytest.approx(40.0, abs=0.1)
    assert (last.speedup, last.eta_s) == (1.2, None)


def test_an_amount_predicts_the_rest_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[TuneEvent] = []
    show = ProgressReporter([events.append]).counter("calibration", "samples")
    clock = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: clock + 6.0)
    show(3, 9)
    show(4, None)
    assert events[0].eta_s == pytest.approx(12.0, abs=0.1)
    assert (events[1].done, events[1].total, events[1].eta_s) == (4, None, None)


def test_a_notebook_has_one_output_that_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    shell_class = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    capture = pytest.importorskip("IPython.utils.capture").capture_output
    shell = shell_class.instance()
    try:
        monkeypatch.setattr(shell, "kernel", object(), raising=False)  # what notebooks have
        with capture(stdout=False, stderr=False) as captured, show_progress(eager=True) as watch:
            watch(TuneEvent("model", "reading <b>"))
            watch(TuneEvent("final", "timing", speedup=1.5))
    finally:
        shell_class.clear_instance()
    texts = [output.data["text/plain"] for output in captured.outputs]
    pages = [output.data["text/html"] for output in captured.outputs]
    assert [output.update for output in captured.outputs] == [False] + [True] * (len(texts) - 1)
    assert re.fullmatch(r"\[.*\] model: reading <b>\n\[.*\] final: timing \(1.500x .*", texts[-1])
    assert "reading &lt;b&gt;" in pages[-1]
