"""A budget bounds the whole run: what does not fit is not begun, what is known costs nothing."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtune.calibration._instrumentation import TensorStatistics
from qdqtune.calibration._output_error import Reference
from qdqtune.engines._worker import Worker
from qdqtune.records._tuning import TuneEvent, TuneResult
from qdqtune.report._tuning import tune_text
from qdqtune.search.strategies._strategy import Effort
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows import _sample_provider as sample_provider
from qdqtune.workflows.tuning._baseline import BoundedSamples
from qdqtune.workflows.tuning._time_budget import PRESETS, TimeBudget
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text

BUILD_S, EVALUATION_S, EVALUATE_S = 4.0, 6.0, 15.0


class Clock:
    """The time, and what slow steps are said to have taken."""

    def __init__(self) -> None:
        self.slept_s = 0.0

    def slowly(self, function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def slow(*arguments: Any, **options: Any) -> Any:
            self.slept_s += seconds
            return function(*arguments, **options)

        return slow


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made, now = Clock(), time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + made.slept_s)
    return made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chance = np.random.default_rng(0)
    weights = {
        f"w{n}": chance.normal(0, 0.1, (16, 16, 3, 3)).astype(np.float32) for n in range(1, 7)
    }
    convs = "\n".join(
        f"a{n} = Conv<pads=[1,1,1,1]>(s{n - 1}, w{n}) s{n} = Sigmoid(a{n})" for n in range(1, 6)
    )
    text = f"""g (float[1,16,32,32] s0) => (float[1,16,32,32] y) {{
        {convs}
        y = Conv<pads=[1,1,1,1]>(s5, w6)
    }}"""
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(model_from_text(text, **weights), path)
    return path


def tuned(model: Path, output: Path, **options: Any) -> TuneResult:
    return tune(
        model, engine="simulated", engine_options=QUIET, preset="quick", output_dir=output,
        **options,
    )  # fmt: skip


@pytest.fixture
def slow(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Every build and every comparison of outputs takes seconds."""
    build = Worker.open

    def open_slowly(worker: Worker, *arguments: Any, **options: Any) -> Any:
        opened = build(worker, *arguments, **options)
        if "simulated" in worker.engine:
            clock.slept_s += BUILD_S
            return type(opened)(**{**vars(opened), "build_s": BUILD_S})
        return opened

    monkeypatch.setattr(Worker, "open", open_slowly)
    monkeypatch.setattr(Reference, "compare", clock.slowly(Reference.compare, EVALUATION_S))
    return clock


@pytest.mark.parametrize(
    ("budget_s", "with_metric", "min_sqnr_db"),
    [(90.0, False, None), (90.0, True, 60.0), (200.0, False, 60.0), (500.0, True, 60.0)],
)
def test_a_run_with_slow_steps_ends_in_time(
    model: Path,
    tmp_path: Path,
    slow: Clock,
    budget_s: float,
    with_metric: bool,
    min_sqnr_db: float | None,
) -> None:
    """In time is ten percent, or ten seconds over the budget."""
    evaluate = slow.slowly(lambda path: 1.0, EVALUATE_S)
    result = tuned(
        model, tmp_path / "run", budget_s=budget_s, min_sqnr_db=min_sqnr_db,
        evaluate=evaluate if with_metric else None,
    )  # fmt: skip
    assert slow.slept_s <= budget_s + max(0.1 * budget_s, 10.0)
    if budget_s == 500.0:
        assert result.summary.benchmarks > 0
        assert f"below --min_sqnr {min_sqnr_db:g}" in result.summary.lost_to_accuracy


def test_a_budget_for_nothing_hands_back_float_and_says_what_is_needed(
    model: Path, tmp_path: Path, slow: Clock
) -> None:
    short = tuned(model, tmp_path / "short", budget_s=5.0)
    assert short.summary.kept_float
    assert (short.summary.stopped, short.summary.benchmarks) == ("budget", 0)
    assert short.model.read_bytes() == model.read_bytes()
    found = re.search(
        r"^--budget 5s is too short for this model: timing the baseline and checking a result "
        r"take about (\d+) s$",
        short.summary.reason,
    )
    assert found
    text = tune_text(short)
    assert short.summary.reason in text
    assert "resumes it" not in text  # it would not
    enough = tuned(model, tmp_path / "enough", budget_s=float(found[1]) + 1.0)
    assert enough.summary.benchmarks > 0
    assert "too short" not in enough.summary.reason


def test_with_everything_known_the_smallest_budget_gives_the_same(
    model: Path, tmp_path: Path, slow: Clock
) -> None:
    first = tuned(model, tmp_path / "run", budget_s=400.0)
    assert not first.summary.kept_float
    before_s = slow.slept_s
    events: list[TuneEvent] = []
    again = tuned(model, tmp_path / "run", budget_s=0.1, callbacks=[events.append])
    assert again.placement == first.placement
    assert again.speedup == first.speedup
    assert again.summary.benchmarks == 0
    # The baseline is built anew: once to see that it runs, and twice against itself. The earlier
    # result is trusted only after its outputs were compared.
    assert slow.slept_s - before_s <= 4 * BUILD_S + EVALUATION_S
    assert "final" not in {event.stage for event in events}


def test_a_resumed_run_without_time_for_anything_says_what_is_needed(
    model: Path, tmp_path: Path, slow: Clock
) -> None:
    limits = {"performance_threshold": 100.0}
    first = tuned(model, tmp_path / "run", budget_s=400.0, **limits)
    assert first.summary.kept_float
    again = tuned(model, tmp_path / "run", budget_s=0.1, **limits)
    assert again.summary.stopped == "budget"
    assert re.match(r"--budget 0.1s is too short for this model: .* \d+ s$", again.summary.reason)


def test_the_best_of_a_search_that_is_cut_short_is_finished(
    model: Path, tmp_path: Path, slow: Clock
) -> None:
    short = tuned(model, tmp_path / "run", budget_s=140.0)
    assert short.summary.stopped == "budget"
    assert not short.summary.kept_float
    longer = tuned(model, tmp_path / "run", budget_s=1000.0)
    assert longer.summary.memo_hits >= short.summary.benchmarks
    assert longer.summary.benchmarks > 0


def test_long_steps_are_told_before_they_begin(model: Path, tmp_path: Path, slow: Clock) -> None:
    events: list[TuneEvent] = []
    silent_s: list[tuple[float, str]] = []

    def collect_statistics(event: TuneEvent) -> None:
        if events:
            silent_s.append((event.seconds - events[-1].seconds, events[-1].message))
        events.append(event)

    tuned(model, tmp_path / "run", budget_s=600.0, min_sqnr_db=60.0, callbacks=[collect_statistics])
    # Nothing takes longer than one trial of four candidates and their reference.
    assert max(silent_s)[0] < 8 * BUILD_S
    told = [event.message for event in events]
    assert any(re.match(r"building and timing \d candidates, about \d+ s", each) for each in told)
    repaired = [
        e for e in events if e.message.endswith("parts of the fastest model measured alone")
    ]
    assert repaired
    assert any(event.eta_s is not None for event in repaired)


def test_builds_that_are_kept_are_paid_once() -> None:
    """A baseline that took a minute leaves time for a candidate in five."""
    rebuilt = TimeBudget(lambda: 235.0, PRESETS["quick"].within(300.0), 300.0)
    kept = TimeBudget(lambda: 235.0, PRESETS["quick"].within(300.0), 300.0)
    rebuilt.saw_baseline(60.0, 1.2)
    kept.saw_baseline(60.0, 1.2, again_s=2.0)
    assert kept.noise_check_s + kept.least_s < kept.left_s()
    assert rebuilt.noise_check_s + rebuilt.least_s > rebuilt.left_s()
    assert rebuilt.noise_check_s == rebuilt.trial_s(1, Effort.SCREEN)


def test_candidates_are_expected_to_build_as_those_before() -> None:
    """The first build of a process takes longer; what was only opened again tells nothing."""
    budget = TimeBudget(lambda: 235.0, PRESETS["quick"].within(300.0), 300.0)
    budget.saw_baseline(60.0, 1.2, again_s=2.0)
    assert budget.candidate_s == 60.0
    budget.saw_build(3.0)
    assert budget.candidate_s == 60.0
    before_s = budget.trial_s(2, Effort.CONFIRM)
    budget.saw_build(10.0)
    assert budget.trial_s(2, Effort.CONFIRM) == pytest.approx(before_s - 2 * 50.0)
    budget.saw_build(30.0)
    assert budget.candidate_s == 30.0
    budget.saw_build(5.0)
    assert budget.candidate_s == 15.0


def test_subgraphs_leave_time_for_whole_models() -> None:
    """All that are wanted if they take less than half, half of them else, but always one."""
    left = [math.inf]
    budget = TimeBudget(lambda: left[0], PRESETS["quick"].within(600.0), 600.0)
    budget.saw_baseline(30.0, 1.2, again_s=2.0)
    assert budget.subgraphs_s(12) == math.inf
    left[0] = 10_000.0
    assert budget.subgraphs_s(12) == left[0] - budget.end_s() - budget.trial_s(12, Effort.CONFIRM)
    left[0] = 500.0
    room_s = left[0] - budget.end_s()
    assert budget.subgraphs_s(12) == pytest.approx(room_s / 2)
    left[0] = budget.end_s() + 1.5 * budget.trial_s(1, Effort.CONFIRM)
    assert budget.subgraphs_s(12) == pytest.approx(0.5 * budget.trial_s(1, Effort.CONFIRM))
    left[0] = budget.end_s()
    assert budget.subgraphs_s(12) < 0.0


@pytest.mark.parametrize("seconds", [10.0, 60.0, 3600.0])
def test_less_time_never_fits_more(seconds: float) -> None:
    budget = TimeBudget(lambda: seconds, PRESETS["default"].within(seconds), seconds)
    budget.saw_baseline(2.0, 40.0)
    fitting = [budget.fitting(n, Effort.CONFIRM, least=True) for n in range(1, 9)]
    assert fitting == sorted(fitting)
    before = budget.fitting(8, Effort.CONFIRM)
    budget.saw_trial(1, Effort.CONFIRM, 3 * budget.trial_s(1, Effort.CONFIRM))
    assert budget.fitting(8, Effort.CONFIRM) <= before
    budget.foresee_repair(20)
    assert 0.0 < budget.repair_s <= 0.25 * seconds


def test_the_last_comparison_takes_what_is_left() -> None:
    left = [100.0]
    budget = TimeBudget(lambda: left[0], PRESETS["default"], 100.0)
    budget.saw_baseline(1.0, 10.0)
    assert budget.final_s(2) == PRESETS["default"].final_s
    left[0] = 8.0
    assert 0.0 < budget.final_s(2) <= 4.0
    left[0] = -3.0
    assert budget.final_s(2) == 0.0


def samples() -> Iterator[dict[str, np.ndarray]]:
    chance = np.random.default_rng(1)
    for _ in range(12):
        yield {"s0": chance.normal(size=(1, 16, 32, 32)).astype(np.float32)}


def test_calibration_ends_in_time_and_a_resumed_run_takes_the_same_samples(
    model: Path, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QDQTUNE_CACHE", "")
    collect_statistics = sample_provider.collect_statistics

    def slowly(
        base: Any, worker: Any, fed: Any, *arguments: Any, **options: Any
    ) -> TensorStatistics:
        def each() -> Iterator[Any]:
            for one in fed:
                yield one
                clock.slept_s += 10.0

        return collect_statistics(base, worker, each(), *arguments, **options)

    monkeypatch.setattr(sample_provider, "collect_statistics", slowly)
    options = {"calibration_data": samples, "max_benchmarks": 2, "min_sqnr_db": None}
    short = tuned(model, tmp_path / "run", budget_s=120.0, **options)
    ranges = json.loads((tmp_path / "run/ranges.json").read_text())
    assert 1 <= ranges["samples"] < 12
    assert f"the first {ranges['samples']} samples" in short.summary.calibrated_on
    assert clock.slept_s <= 120.0
    again = tuned(model, tmp_path / "run", **options)
    assert (again.summary.benchmarks, again.summary.memo_hits) == (0, short.summary.benchmarks)
    assert json.loads((tmp_path / "run/ranges.json").read_text()) == ranges


def test_at_least_one_sample_is_taken_and_all_if_there_is_time() -> None:
    for seconds, count in ((-1.0, 1), (100.0, 12)):
        bounded = BoundedSamples(samples, None, seconds)
        assert len(list(bounded)) == bounded.count == count
        assert bounded.is_cut_short == (count < 12)
    known = BoundedSamples(samples, 5, 100.0)
    assert len(list(known)) == 5
