"""What is not accurate enough: how little is left float, how fast, and what is told of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.search_quality import synthetic_table

from qdqtune.records._accuracy import APPROXIMATE_SQNR
from qdqtune.records._tuning import TuneResult
from qdqtune.report._tuning import tune_text
from qdqtune.search._space import Space, State
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows._accuracy_evaluator import AccuracyEvaluator
from qdqtune.workflows.tuning import _accuracy_repair as repairing
from qdqtune.workflows.tuning._accuracy_repair import AccuracyRepair
from qdqtune.workflows.tuning._folder import JOURNAL
from qdqtune.workflows.tuning._journal_format import encode, whole_lines
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text

CHECK_S, PART_S = 4.0, 1.0
HARMFUL = frozenset({1, 4})


class FixedAccuracy:
    """Two groups spoil the outputs; to find that out takes time, unless it is known."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.known: set[tuple[str, State]] = set()

    def shortfall(self, choice: State, *, with_metric: bool) -> str:
        assert with_metric
        self._measure("exactly", choice, CHECK_S)
        return "too far" if choice & HARMFUL else ""

    def measured(self, measure: str, choice: State) -> float:
        assert measure == APPROXIMATE_SQNR
        self._measure("roughly", choice, PART_S)
        return 5.0 if choice & HARMFUL else 40.0

    def knows_shortfall(self, choice: State) -> bool:
        return ("exactly", choice) in self.known

    def knows(self, measure: str, choice: State) -> bool:
        assert measure == APPROXIMATE_SQNR
        return ("roughly", choice) in self.known

    def _measure(self, how: str, choice: State, seconds: float) -> None:
        if (how, choice) not in self.known:
            self.now_s += seconds
        self.known.add((how, choice))


@pytest.fixture(scope="module")
def space() -> Space:
    return synthetic_table(3).space


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> FixedAccuracy:
    made = FixedAccuracy()
    monkeypatch.setattr(repairing.time, "monotonic", lambda: made.now_s)
    return made


def repair(space: Space, accuracy: FixedAccuracy, budget_s: float) -> AccuracyRepair:
    end_s = accuracy.now_s + budget_s
    return AccuracyRepair(space, accuracy, lambda: end_s - accuracy.now_s)


def test_with_time_only_what_harms_is_left_float(space: Space, accuracy: FixedAccuracy) -> None:
    repaired = repair(space, accuracy, 1000.0)
    assert repaired.correct_part(space.everything) == space.everything - HARMFUL
    assert not repaired.is_cut_short


@pytest.mark.parametrize("budget_s", [0.0, 3.0, 5.0, 12.0, 16.0, 24.0, 30.0])
def test_when_time_is_short_more_is_left_float_but_nothing_that_is_wrong(
    space: Space, accuracy: FixedAccuracy, budget_s: float
) -> None:
    repaired = repair(space, accuracy, budget_s)
    kept = repaired.correct_part(space.everything)
    assert not kept & HARMFUL
    # The first check has to be made; after that, what does not fit is not begun.
    assert accuracy.now_s <= CHECK_S + max(budget_s, 0.0)
    assert repaired.is_cut_short or kept == space.everything - HARMFUL


def test_what_is_known_is_used_whatever_the_time(space: Space, accuracy: FixedAccuracy) -> None:
    for budget_s in (1000.0, 24.0, 16.0):
        accuracy.known.clear()
        found = repair(space, accuracy, budget_s).correct_part(space.everything)
        before_s = accuracy.now_s
        assert repair(space, accuracy, -5.0).correct_part(space.everything) == found
        assert accuracy.now_s == before_s


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chance = np.random.default_rng(0)
    shapes = {"w1": (16, 3, 3, 3), "w2": (16, 16, 3, 3), "w3": (16, 16, 3, 3), "w4": (8, 16, 3, 3)}
    weights = {n: chance.normal(0, 0.2, shape).astype("f") for n, shape in shapes.items()}
    text = """g (float[1,3,32,32] x) => (float[1,8,32,32] y) {
        a = Conv<pads=[1,1,1,1]>(x, w1)
        b = Relu(a)
        c = Conv<pads=[1,1,1,1]>(b, w2)
        d = Sigmoid(c)
        e = Conv<pads=[1,1,1,1]>(d, w3)
        f = Sigmoid(e)
        y = Conv<pads=[1,1,1,1]>(f, w4)
    }"""
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(model_from_text(text, **weights), path)
    return path


def tuned(model: Path, output: Path, **options: Any) -> TuneResult:
    return tune(
        model, engine="simulated", engine_options=QUIET, preset="quick", max_benchmarks=3,
        output_dir=output, **options,
    )  # fmt: skip


def quantizers(path: str) -> float:
    nodes = onnx.load(path, load_external_data=False).graph.node
    return 0.0 - float(sum(node.op_type == "QuantizeLinear" for node in nodes))


def test_a_repair_is_not_made_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[str] = []

    def metric(path: str) -> float:
        evaluated.append(path)
        return quantizers(path)

    limits = {"evaluate": metric, "max_drop": 2.0, "min_sqnr_db": 5.0}
    first = tuned(model, tmp_path / "run", **limits)
    assert len(evaluated) > 2
    rejected = [each.metric for each in first.summary.rejected]
    assert len(rejected) > 1
    assert all(found is not None and found < -2.0 for found in rejected)
    evaluated.clear()
    compared: list[Path] = []
    quality = AccuracyEvaluator.quality
    monkeypatch.setattr(
        AccuracyEvaluator, "approximate_sqnr_db", lambda *_: pytest.fail("evaluated again")
    )
    monkeypatch.setattr(
        AccuracyEvaluator,
        "quality",
        lambda accuracy, path: compared.append(path) or quality(accuracy, path),
    )
    again = tuned(model, tmp_path / "run", **limits)
    assert evaluated == [str(model)]
    assert 1 <= len(compared) <= 2, "every run compares what it may hand over: result, blanket"
    assert again.placement == first.placement
    assert again.summary.rejected == first.summary.rejected
    assert again.summary.output_sqnr_db == first.summary.output_sqnr_db


def test_it_is_made_again_for_another_metric_of_the_float_model(
    model: Path, tmp_path: Path
) -> None:
    """Then the data is another one, as far as anybody can tell."""
    offset, evaluated = [0.0], []

    def metric(path: str) -> float:
        evaluated.append(path)
        return quantizers(path) + offset[0]

    limits = {"evaluate": metric, "max_drop": 2.0, "min_sqnr_db": None}
    tuned(model, tmp_path / "run", **limits)
    count, offset[0] = len(evaluated), 100.0
    again = tuned(model, tmp_path / "run", **limits)
    assert len(evaluated) == 2 * count
    assert again.summary.metric is not None
    assert again.summary.metric["float"] == 100.0


def test_the_limit_that_failed_is_told_with_what_was_left_float(
    model: Path, tmp_path: Path
) -> None:
    free = tuned(model, tmp_path / "run", min_sqnr_db=None)
    assert free.summary.lost_to_accuracy == ""
    assert free.summary.output_sqnr_db is not None
    wanted = round(free.summary.output_sqnr_db) + 4
    bound = tuned(model, tmp_path / "bound", min_sqnr_db=wanted)
    told = bound.summary.lost_to_accuracy
    below = wanted - free.summary.output_sqnr_db
    assert f"SQNR {free.summary.output_sqnr_db:.1f} dB is {below:.1f} dB below" in told
    assert f"below --min_sqnr {wanted:g}; left float: " in told
    assert " groups: " in told
    assert told in tune_text(bound)
    written = json.loads((tmp_path / "bound/summary.json").read_text())
    assert written["lost_to_accuracy"] == told


def test_a_limit_that_nothing_keeps_is_told_as_the_reason(model: Path, tmp_path: Path) -> None:
    result = tuned(model, tmp_path / "run", min_sqnr_db=5.0, evaluate=quantizers, max_drop=0.5)
    assert result.summary.kept_float
    reason = result.summary.reason
    assert "what is faster is not accurate enough: quantizers -" in reason
    assert "below the float model's 0, more than --max_drop 0.5; left float: " in reason


def test_what_a_journal_says_of_the_error_ships_nothing(model: Path, tmp_path: Path) -> None:
    """A journal may have been changed: what is handed over is evaluated by the run that does so."""
    first = tuned(model, tmp_path / "run", min_sqnr_db=5.0)
    honest = first.summary.output_sqnr_db
    assert honest is not None
    journal = tmp_path / "run" / JOURNAL
    bodies = [
        {**body, "value": 300.0} if body["kind"] == "accuracy" else body
        for body in whole_lines(journal)
    ]
    journal.write_text("".join(map(encode, bodies)))
    again = tuned(model, tmp_path / "run", min_sqnr_db=5.0)
    assert again.summary.output_sqnr_db == pytest.approx(honest)
    limit = honest + 1.0
    strict = tuned(model, tmp_path / "run", min_sqnr_db=limit)
    assert strict.summary.kept_float or (strict.summary.output_sqnr_db or 0.0) >= limit
