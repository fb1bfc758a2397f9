"""Files compared in several fresh processes: how often, what fails, and what the interval says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.conftest import model_from_text

from qdqtune.engines import _comparison as reopened_comparison
from qdqtune.engines._comparison import Allowance, combine, compare_reopened, is_faster
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._pool import WorkerPool
from qdqtune.engines._timing import least_half_width
from qdqtune.engines._worker import Worker
from qdqtune.records._measurement import Comparison, Measurement, Verdict
from qdqtune.testing.simulated import QUIET

NARROW = Comparison(1.1, 1.099, 1.101, 0.96, 20, margin=0.01)


def comparisons(*ratios: float, **more: Any) -> list[Comparison]:
    return [Comparison(r, 0.999 * r, 1.001 * r, 0.96, 20, margin=0.01, **more) for r in ratios]


class PlayedWorker(Worker):
    """A worker that never starts a process."""

    opening = -1

    def restart(self, opening: int) -> None:
        self.opening = opening


class Played:
    """Stands in for `compare_files`: what each process says, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *processes: Any, workers: int = 1) -> None:
        self.processes = list(processes)
        self.now_s = 0.0
        self.opened: list[int] = []
        self.fewest: list[int] = []
        self.pool = WorkerPool([PlayedWorker() for _ in range(workers)])
        monkeypatch.setattr(reopened_comparison, "compare_files", self)
        monkeypatch.setattr(reopened_comparison.time, "monotonic", lambda: self.now_s)

    def __call__(
        self, worker: Any, paths: list[str], feeds: Any, **how: Any
    ) -> tuple[list[Measurement], list[Comparison | None]]:
        self.opened.append(worker.opening)
        self.now_s += 10.0 / len(self.pool)
        self.fewest.append(how["fewest_rounds"])
        said = self.processes[min(worker.opening, len(self.processes) - 1)]
        if said == "baseline fails":
            return [Measurement(error="it crashed")] * len(paths), [None] * (len(paths) - 1)
        found = [None if ratio is None else comparisons(ratio)[0] for ratio in said][
            : len(paths) - 1
        ]
        candidates = [
            Measurement(((1.0,),)) if each is not None else Measurement(error="it crashed")
            for each in found
        ]
        return [Measurement(((1.0,),)), *candidates], found

    def compare(self, files: int = 2, **allowed: Any) -> list[reopened_comparison.Reopened]:
        paths = [f"{n}.onnx" for n in range(files)]
        allowance = Allowance(1.0, **{"reopening_s": 1000.0, **allowed})
        return compare_reopened(self.pool, paths, {}, allowance)


def test_every_file_is_opened_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, (1.10,), (1.12,), (1.08,), (1.11,), (1.09,))
    base, found = played.compare()
    assert played.opened == [0, 1, 2, 3, 4]
    assert played.fewest[0] > played.fewest[1] == played.fewest[-1]
    assert base.comparison is None
    assert found.comparison is not None
    assert (found.comparison.openings, found.comparison.pairs) == (5, 100)
    assert found.comparison.ratio == pytest.approx(1.1, rel=1e-3)
    # Student's quantile for four degrees of freedom, times the error of the mean.
    half = 4.604 * np.std(found.log_ratios, ddof=1) / math.sqrt(5)
    assert math.log(found.comparison.high / found.comparison.ratio) == pytest.approx(half)


def test_openings_that_agree_are_not_repeated_more_than_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch, (1.10,))
    _, found = played.compare()
    assert len(played.opened) == reopened_comparison.FEWEST_OPENINGS
    assert found.comparison is not None
    assert found.comparison.verdict is Verdict.FASTER


@pytest.mark.parametrize(
    ("allowed", "times"),
    [
        ({"reopening_s": 15.0}, 1),  # a second one alone would tell nothing
        ({"reopening_s": 29.0}, 3),
        ({"reopening_s": 1000.0}, 5),
        ({"left_s": lambda: 25.0}, 3),
        ({"left_s": lambda: 5.0}, 1),
    ],
)
def test_as_often_as_there_is_time(
    monkeypatch: pytest.MonkeyPatch, allowed: dict[str, Any], times: int
) -> None:
    played = Played(monkeypatch, (1.10,), (1.12,), (1.08,), (1.11,), (1.09,))
    _, found = played.compare(**allowed)
    assert len(played.opened) == times
    assert found.comparison is not None
    assert found.comparison.openings == times


@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize(("reopening_s", "times"), [(1000.0, 5), (5.0, 1)])
def test_several_workers_open_the_files_side_by_side(
    workers: int, reopening_s: float, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratios = [(1.10,), (1.12,), (1.08,), (1.11,), (1.09,)]
    played = Played(monkeypatch, *ratios, workers=workers)
    _, found = played.compare(reopening_s=reopening_s)
    times = max(times, min(workers, 5))
    assert sorted(played.opened) == list(range(times))
    assert found.log_ratios == pytest.approx([math.log(each) for (each,) in ratios[:times]])


def test_a_candidate_that_fails_in_any_process_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, (1.1, 1.2), (1.1, None), (1.12,), (1.08,), (1.09,))
    _, first, second = played.compare(files=3)
    assert second.error == "it crashed"
    assert second.comparison is None
    assert first.comparison is not None
    assert first.comparison.openings == 5


@pytest.mark.parametrize(("failures", "error"), [(1, None), (2, "it crashed")])
def test_a_process_in_which_the_baseline_fails_is_repeated_once(
    monkeypatch: pytest.MonkeyPatch, failures: int, error: str | None
) -> None:
    failing = ["baseline fails"] * failures
    played = Played(monkeypatch, (1.10,), *failing, (1.12,), (1.08,), (1.11,), (1.09,))
    base, found = played.compare()
    assert (base.error, found.error) == (error, error)


def test_one_opening_counts_less_the_more_the_baseline_was_seen_to_differ() -> None:
    calm, shaky = combine([NARROW], 1.0), combine([NARROW], 1.03)
    assert calm.ratio == shaky.ratio == pytest.approx(1.1)
    assert 1.03 < calm.low < 1.09
    assert shaky.low < 1.03


def test_what_a_busy_machine_does_to_all_processes_alike_stays_in_the_interval() -> None:
    # With few rounds, a single process can't tell anything on a busy machine.
    wide = [
        Comparison(1.3, 0.0, math.inf, 0.96, 4, margin=0.01, contention=share)
        for share in (0.0, 0.2, 0.4)
    ]
    found = combine(wide)
    assert found.contention == pytest.approx(0.2)
    assert math.log(found.ratio / found.low) == pytest.approx(least_half_width(0.2), rel=0.01)
    assert found.verdict is Verdict.FASTER


@pytest.mark.parametrize(
    ("differences", "is_so"),
    [((0.02, 0.021, 0.019, 0.02, 0.02), True), ((0.02, 0.06, -0.03, 0.02, 0.01), False),
     ((0.05, 0.05), False)],
)  # fmt: skip
def test_one_of_two_candidates_is_faster_if_all_processes_say_so(
    differences: tuple[float, ...], is_so: bool
) -> None:
    assert is_faster(differences, (0.0,) * len(differences)) is is_so


def test_a_simulated_machine_is_another_one_in_each_process(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model_from_text("g (float[1,8] x) => (float[1,8] y) { y = Relu(x) }"), path)
    feeds = {"x": np.ones((1, 8), np.float32)}
    options = SessionOptions(engine_options={**QUIET, "offset": "0.02"})

    def latency_ms(opening: int) -> float:
        with Worker("simulated", options) as worker:
            worker.restart(opening)
            opened = worker.open(path)
            worker.feed(opened, feeds)
            return worker.time(opened, 1)[0]

    assert latency_ms(1) != latency_ms(0) == latency_ms(0)
