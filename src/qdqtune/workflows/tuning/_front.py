"""Choose from what a search measured: models slower than the result, and more accurate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from qdqtune.graph._fingerprint import model_digest
from qdqtune.records._accuracy import SQNR
from qdqtune.records._front import FrontPoint, not_beaten
from qdqtune.search._error_model import ErrorModel
from qdqtune.search._space import State
from qdqtune.workflows.tuning import _folder as names
from qdqtune.workflows.tuning._accuracy import ChoiceAccuracy
from qdqtune.workflows.tuning._final_round import Finalist, FinalRound, Role
from qdqtune.workflows.tuning._finalists import Finalists
from qdqtune.workflows.tuning._search import CandidateEvaluator

# Candidates whose error is measured, besides the result's.
_MOST_EVALUATED = 12
# Models of the last comparison that are there for the front alone. One of them, and more if the
# search saw fewer than the least, are parts of the result without what harms most.
_MOST, _LEAST = 3, 2
# What is hardly more accurate than another model is no choice of its own.
_LEAST_DB = 0.5
# Measuring errors takes at most this part of the run's time, or these seconds.
_PART, _LEAST_S = 0.1, 10.0


class Trade(NamedTuple):
    """What a model offers: its log speedup, and how much more accurate than the result it is."""

    gain: float
    more_db: float


def best_trades(front: Sequence[Trade], most: int) -> tuple[int, ...]:
    """Choose the points of a front that come closest to all of it.

    Together they are at least as fast and as accurate as the largest part of what the whole front
    is, in speedup and decibels.

    Args:
        front: The points, fastest first.
        most: The maximum number of points.

    Returns:
        Their positions, in order.
    """

    def covered(chosen: Sequence[int]) -> float:
        slower = [front[number].gain for number in chosen[1:]]
        return sum(
            (front[number].gain - gain) * front[number].more_db
            for number, gain in zip(chosen, [*slower, 0.0], strict=False)
        )

    numbers = range(len(front))
    return max(itertools.combinations(numbers, min(most, len(front))), key=covered, default=())


@dataclass(frozen=True)
class FrontFinder:
    """Finds the points of a run's front.

    Attributes:
        evaluator: Has the measurements of the search.
        finalists: Writes models, and measures their accuracy.
    """

    evaluator: CandidateEvaluator
    finalists: Finalists

    def finalists_beyond(self, result: Finalist) -> list[Finalist]:
        """Return models to time beside the result, which are slower and more accurate.

        Their error is measured with the ranges of the result, which their files get as well.

        Args:
            result: The result of the search.
        """
        run, space = self.evaluator.run, self.evaluator.problem.space
        most = run.budget.spare_finals(_MOST, run.reporter.elapsed_s)
        if not most or result.method is None:
            return []
        accuracy = self.finalists.accuracy[result.method]
        threshold = math.log(run.request.config.performance_threshold)
        speedups = {
            state: gain for state, gain in self.evaluator.speedups().items() if gain > threshold
        }
        found = self._sqnr_db(accuracy, result.state, speedups)
        if result.state not in found:
            return []
        better = [
            state
            for state in speedups.keys() & found.keys()
            if found[state] >= found[result.state] + _LEAST_DB
            and space.placement(state) != result.placement
        ]
        front = not_beaten(better, speedups.__getitem__, lambda state: _rounded(found[state]))
        trades = [Trade(speedups[state], found[state] - found[result.state]) for state in front]
        parts = int(run.provider.is_data and most > 1)
        chosen = [front[each] for each in best_trades(trades, most - parts)]
        if run.provider.is_data and (room := max(parts, min(most, _LEAST) - len(chosen))):
            more = self.finalists.more_accurate(
                result.state, room, method=result.method, most_s=self._most_s
            )
            chosen += (state for state in more if state not in chosen)
        return [
            self.finalists.rival(self._name(state), state, result.method, Role.FRONT)
            for state in chosen
        ]

    @property
    def _most_s(self) -> float:
        """The seconds that measuring errors may take."""
        run = self.evaluator.run
        return min(max(_LEAST_S, _PART * run.reporter.elapsed_s), run.budget.repair_left_s())

    def points(
        self, final: FinalRound, front: Sequence[Finalist], shipped: Finalist
    ) -> tuple[FrontPoint, ...]:
        """Return the records of a front; a small file is written for each model but the result.

        Args:
            final: The last comparison.
            front: The models.
            shipped: The result.
        """
        return tuple(self._point(final, each, each is shipped) for each in front)

    def _point(self, final: FinalRound, model: Finalist, is_shipped: bool) -> FrontPoint:
        timed = final.time_of(model)
        assert timed is not None
        assert model.method is not None
        key = self.evaluator.key(model.state)
        file, candidate = model.file, self.evaluator.journal.name_of(key)
        if not is_shipped:
            inserter = self.finalists.accuracy_of(model).inserter
            name = f"{candidate}_{model.method.value}{'_smoothed' * model.is_smoothed}"
            file = inserter.write(model.placement, name)
        metric = self.finalists.metric(model, most_s=0.0)
        return FrontPoint(
            name=model.name,
            file=names.FINAL if is_shipped else f"{names.CANDIDATES}/{file.name}",
            digest=model_digest(file),
            latency_ms=timed.final_ms,
            speedup=timed.comparison.ratio,
            speedup_interval=(timed.comparison.low, timed.comparison.high),
            sqnr_db=model.sqnr_db,
            metric=metric,
            qdq_pairs=len(model.placement.tensors),
            candidate=candidate,
            chosen=is_shipped,
        )

    def _sqnr_db(
        self, accuracy: ChoiceAccuracy, result: State, speedups: Mapping[State, float]
    ) -> dict[State, float]:
        """Measure the error of the result, and of candidates that may be on the front.

        These are the ones that the estimates so far have there; every measurement improves them.
        """
        run, most_s = self.evaluator.run, self._most_s
        began_s = run.reporter.elapsed_s
        model = ErrorModel(self.evaluator.problem.space)
        measured = {
            state: accuracy.measured(SQNR, state)
            for state in (result, *speedups)
            if state == result or accuracy.knows(SQNR, state)
        }
        for _ in range(_MOST_EVALUATED):
            found = {state: db for state, db in measured.items() if db is not None}
            model.observe(found)
            spent_s = run.reporter.elapsed_s - began_s
            if spent_s + run.budget.evaluation_s > most_s:
                break
            front = not_beaten(speedups, speedups.__getitem__, model.sqnr_db)
            unknown = [state for state in front if state not in measured]
            if not unknown:
                break
            state = max(unknown, key=model.sqnr_db)
            measured[state] = accuracy.measured(SQNR, state)
        return {state: db for state, db in measured.items() if db is not None}

    def _name(self, state: State) -> str:
        key = self.evaluator.key(state)
        for name, seed in self.evaluator.problem.seeds.items():
            if self.evaluator.key(seed) == key:
                return name
        return self.evaluator.journal.name_of(key)


def _rounded(decibels: float) -> float:
    """What is hardly more accurate counts as equal."""
    return round(decibels / _LEAST_DB) if math.isfinite(decibels) else decibels
