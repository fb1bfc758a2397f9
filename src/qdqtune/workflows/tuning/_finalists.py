"""Turn choices into files that may become the result: accurate enough, written, read back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from qdqtune.config import DEFAULT_MIN_SQNR_DB, NONE
from qdqtune.graph._files import save_model
from qdqtune.qdq._insert import Inserter
from qdqtune.records._accuracy import APPROXIMATE_SQNR, METRIC, SQNR, Rejected
from qdqtune.records._front import FrontPoint
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import CalibrationSource, RangeMethod
from qdqtune.records._tuning import Blanket
from qdqtune.search._error_model import ErrorModel
from qdqtune.search._space import Space, State
from qdqtune.workflows._bias_correction import (
    NEARLY_DB,
    is_worth_trying,
    with_corrected_biases,
)
from qdqtune.workflows._input_smoothing import LEAST_GAIN_DB, with_smoothed_inputs
from qdqtune.workflows.tuning import _folder as names
from qdqtune.workflows.tuning._accuracy import ChoiceAccuracy
from qdqtune.workflows.tuning._accuracy_repair import AccuracyRepair, name_groups, parts_of
from qdqtune.workflows.tuning._final_check import PreviousResult, Timed, check_written
from qdqtune.workflows.tuning._final_round import Finalist, Role
from qdqtune.workflows.tuning._run_records import TuningRun
from qdqtune.workflows.tuning._time_budget import TOLD_AHEAD_S

# Estimates of errors may be wrong by so much: what looks worse is not tried.
_UNSURE_DB = 1.0
# Correcting biases, or smoothing inputs, takes about as long as this many evaluations.
_CHANGE_EVALUATIONS = 8
# By how much more accurate models differ that are tried where accuracy is the objective.
_STEP_DB = 2.0


@dataclass(frozen=True)
class Finalized:
    """The result of a run, and the outcome of the last comparison.

    Attributes:
        reason: Why the original model is returned; empty if it is not.
        shipped: The finalist that becomes the result; None if none of this run does.
        earlier: The result of an earlier run, as far as it matches its claims.
        keeps_earlier: Whether that stays, because it is at least as good.
        timed: The timing of the proposed result; None if nothing was timed.
        float_sqnr_db: SQNR of the float model itself against float32, as the engine computes it.
        metric: The user's metric of the result.
        corrected_biases: Number of biases in the result that mean errors were taken off.
        smoothed_inputs: Number of products in it whose input is smoothed.
        lost_to_accuracy: What had to stay float, and why; empty if nothing did.
        left_float: The groups that had to, as far as that is about this result.
        rejected: Candidates that turned out not to be accurate enough.
        blanket: The best blanket placement, if it was timed.
        front: The models that no other beats in both speed and accuracy, fastest first.
    """

    reason: str = ""
    shipped: Finalist | None = None
    earlier: PreviousResult | None = None
    keeps_earlier: bool = False
    timed: Timed | None = None
    float_sqnr_db: float | None = None
    metric: float | None = None
    corrected_biases: int = 0
    smoothed_inputs: int = 0
    lost_to_accuracy: str = ""
    left_float: State = frozenset()
    rejected: tuple[Rejected, ...] = ()
    blanket: Blanket | None = None
    front: tuple[FrontPoint, ...] = ()

    @property
    def placement(self) -> Placement:
        """The placement of the result."""
        return self.shipped.placement if self.shipped is not None else Placement()


@dataclass(frozen=True)
class AccuratePart:
    """Where a search goes on whose best choice is not accurate enough.

    Attributes:
        state: The part of that choice that is; empty if none is.
        accuracy: Measures the accuracy of choices.
        model: Estimates it.
        least_db: The SQNR that the result must have.
    """

    state: State
    accuracy: ChoiceAccuracy
    model: ErrorModel
    least_db: float

    def allows(self, state: State) -> bool:
        """Whether a choice may be accurate enough, by an estimate."""
        return self.model.sqnr_db(state) >= self.least_db - _UNSURE_DB

    def has(self, state: State) -> bool:
        """Whether a choice is accurate enough, measured if it may be; this corrects estimates."""
        if not self.accuracy.space.placement(state):
            return True
        if not self.allows(state):
            return False
        found = self.accuracy.measured(SQNR, state)
        if found is not None:
            self.model.observe({state: found})
        return found is not None and found >= self.least_db


@dataclass
class Finalists:
    """Writes choices as files that may become the result.

    Attributes:
        run: The run.
        space: The search space that choices refer to.
        accuracy: Measures their accuracy, by the source of their ranges; not empty.
        smoothed: The same with smoothed inputs of products; None if that is not worth it.
        lost: Why the best of the search was not accurate enough, and what was left float of it;
            empty if it was.
        left_float: The groups that were left float so that a choice is accurate enough.
    """

    run: TuningRun
    space: Space
    accuracy: dict[RangeMethod, ChoiceAccuracy]
    smoothed: ChoiceAccuracy | None = field(default=None, init=False)
    lost: str = field(default="", init=False)
    left_float: State = field(default=frozenset(), init=False)
    _is_foreseen: bool = field(default=False, init=False)
    _known: list[Finalist] = field(default_factory=list, init=False)
    _accurate: State = field(default=frozenset(), init=False)
    _corrected_for: set[tuple[RangeMethod, State]] = field(default_factory=set, init=False)

    def falls_short(self, state: State) -> bool:
        """Evaluate a choice once during the search, and reserve time if it needs a repair.

        Args:
            state: The best choice so far.
        """
        budget = self.run.budget
        evaluations_s = budget.evaluation_s * len(self.accuracy)
        if self._is_foreseen or not state or not budget.has_time_for(evaluations_s):
            return False
        self._is_foreseen = True
        if evaluations_s > TOLD_AHEAD_S:
            told = "comparing outputs of the best seed with float"
            self.run.reporter.tell("accuracy", told)
        tried = [next(iter(self.accuracy.values()))]
        shortfall = tried[0].shortfall(state, with_metric=False)
        if shortfall and len(self.accuracy) > 1:  # other ranges may do
            tried.append(self.accuracy[self._best_ranges(state)])
            shortfall = tried[1].shortfall(state, with_metric=False)
        if shortfall:
            budget.foresee_repair(len(parts_of(self.space, state)))
        for accuracy in tried:
            accuracy.missed.clear()  # only choices evaluated at the end are reported
        return bool(shortfall)

    def accurate_part(self, state: State, *, with_metric: bool) -> AccuratePart | None:
        """Return what is accurate enough of a choice, to go on from; None if all of it is.

        Args:
            state: The best choice so far.
            with_metric: Whether the user's metric counts, which may be slow.
        """
        if not self.space.placement(state) or self._accurate:
            return None
        accuracy = self.accuracy[self._best_corrected(state)]
        if not accuracy.shortfall(state, with_metric=with_metric) or state in accuracy.unchecked:
            return None
        kept, self.lost = self._correct(state, accuracy, with_metric=with_metric)
        self.lost += ", and the search went on"
        least_db = accuracy.least_sqnr_db
        if with_metric and accuracy.known(METRIC, state) is not None:
            self._accurate = kept
            least_db = max(least_db, accuracy.measured(SQNR, kept) or -math.inf)
        model = self._model(accuracy, state, (state, kept, *accuracy.missed))
        return AccuratePart(kept, accuracy, model, least_db)

    def more_accurate(
        self,
        state: State,
        most: int,
        *,
        method: RangeMethod | None = None,
        most_s: float = math.inf,
    ) -> list[State]:
        """Return ever smaller parts of a choice, without what harms most for its latency.

        Args:
            state: The best choice.
            most: The maximum number of parts.
            method: The method of the ranges; the first one by default.
            most_s: Time limit in seconds, besides the budget.
        """
        accuracy, reporter = self.accuracy[method or next(iter(self.accuracy))], self.run.reporter
        reporter.tell("accuracy", "looking for what harms accuracy most")
        progress, end_s = reporter.progress("accuracy"), reporter.elapsed_s + most_s

        def left_s() -> float:
            return min(end_s - reporter.elapsed_s, self.run.budget.repair_left_s())

        ranked = AccuracyRepair(self.space, accuracy, left_s, progress).ranked(
            parts_of(self.space, state)
        )
        model, found = self._model(accuracy, state, (state,)), list[State]()
        last_db = model.sqnr_db(state)
        for part in ranked:
            state -= part
            if self.space.placement(state) and model.sqnr_db(state) >= last_db + _STEP_DB:
                found.append(state)
                last_db = model.sqnr_db(state)
        return found[:most]

    def _model(self, accuracy: ChoiceAccuracy, state: State, wholes: Iterable[State]) -> ErrorModel:
        """Return estimates from what was measured: parts of a choice alone, and other choices."""
        found = ErrorModel(self.space)
        known = {one: accuracy.known(APPROXIMATE_SQNR, one) for one in parts_of(self.space, state)}
        known |= {one: accuracy.known(SQNR, one) for one in wholes}
        found.observe({one: db for one, db in known.items() if db is not None})
        return found

    def result(self, state: State) -> Finalized:
        """Return the part of the fastest choice that is accurate enough, written to a file."""
        self.run.reporter.tell("accuracy", "comparing outputs with the float model")
        method = self._best_corrected(state)
        accuracy = self.accuracy[method]
        kept, lost = self._correct(state, accuracy)
        # A value that an earlier run recorded in the folder must be confirmed.
        while (
            kept and accuracy.forget_sqnr_db(kept) and accuracy.shortfall(kept, with_metric=False)
        ):
            kept, again = self._correct(state, accuracy)
            lost = again or lost
        lost = lost or self.lost
        if kept:
            written = self.rival(Role.RESULT.value, kept, method, Role.RESULT)
            return Finalized(shipped=written, lost_to_accuracy=lost)
        is_checked = state not in accuracy.unchecked
        reason = f"what is faster is not accurate enough: {lost}" if is_checked else lost
        return Finalized(reason, lost_to_accuracy=lost)

    def limit_to_dynamic(self, state: State) -> None:
        """Let no result be much less accurate than dynamic quantization of the model.

        That needs neither a search nor calibration, so who tunes expects no less. Limits that the
        user set go first.

        Args:
            state: The choice with everything dynamic that can be.
        """
        request = self.run.request
        is_users = request.config.min_sqnr_db != DEFAULT_MIN_SQNR_DB or request.evaluate is not None
        accuracy = next(iter(self.accuracy.values()))
        is_free = accuracy.knows(SQNR, state) or self._has_time_to_evaluate
        found = accuracy.measured(SQNR, state) if is_free and not is_users else None
        if found is not None:
            accuracy.evaluation.dynamic_db = found

    def uncalibrated(self, result: Finalist | None, state: State | None) -> Finalist | None:
        """Return a choice that does not depend on calibration, to be preferred if nearly as fast.

        Args:
            result: The result of the search.
            state: The fastest such choice.

        Returns:
            None if the result is one, if there is none that is accurate enough, if it is less
            accurate on the user's data, or if there is no time.
        """
        if result is None or state is None or not self.space.needs_ranges(result.state):
            return None
        method = result.method or next(iter(self.accuracy))
        if not self._has_time_to_evaluate or self.accuracy[method].shortfall(state):
            return None
        found = self.rival(Role.UNCALIBRATED.value, state, method, Role.UNCALIBRATED)
        is_random = self.run.provider.source is CalibrationSource.RANDOM
        return found if is_random or _is_nearer(found, result) else None

    def float_model(self) -> Finalized:
        """Return the float model inside a Q/DQ file, which may be faster than the file.

        It is empty if the user's metric of that model is too low compared with the original file.
        """
        accuracy = next(iter(self.accuracy.values()))
        if shortfall := accuracy.metric_shortfall(frozenset()):
            return Finalized(f"the float model in it is not accurate enough: {shortfall}")
        base = accuracy.inserter.base
        file = save_model(base.load(base.whole()), self.run.folder.staging() / names.FINAL)
        return Finalized(shipped=Finalist("the float model", frozenset(), Placement(), file))

    def blanket(self, result: Finalist | None, blankets: Mapping[str, State]) -> Finalist | None:
        """Return the fastest blanket that is accurate enough, or else the fastest.

        Args:
            result: The result of the search, which is also the blanket if both quantize the same.
            blankets: Whole-model choices that need no search, by name, fastest first.

        Returns:
            None if no blanket was timed, or if there is no time to time one again.
        """
        if not blankets:
            return None
        fastest = next(iter(blankets))
        method = result.method if result is not None else None
        method = method or self._best_ranges(blankets[fastest])
        name, progress = fastest, self.run.reporter.progress("accuracy")
        for number, (each, state) in enumerate(blankets.items()):
            progress("blankets checked", number, len(blankets))
            if self._is_near(state, method):
                name = each
                break
        state = blankets[name]
        is_result = result is not None and self.space.placement(state) == result.placement
        if not is_result and not self._has_time_to_evaluate:
            return None
        return self.rival(name, state, method, Role.BLANKET)

    def _is_near(self, state: State, method: RangeMethod) -> bool:
        """Whether a blanket is accurate enough; False if there is no time to find out."""
        accuracy = self.accuracy[method]
        if not accuracy.knows(SQNR, state) and not self._has_time_to_evaluate:
            return False
        return not accuracy.shortfall(state, with_metric=False)

    @property
    def _has_time_to_evaluate(self) -> bool:
        return self.run.budget.repair_left_s() >= self.run.budget.evaluation_s

    @property
    def _has_time_for_changes(self) -> bool:
        """Whether there is time to correct biases, or to smooth inputs."""
        budget = self.run.budget
        return budget.repair_left_s() >= _CHANGE_EVALUATIONS * budget.evaluation_s

    def shortfall(self, finalist: Finalist, *, with_metric: bool = True) -> str:
        """Return which accuracy limit a finalist misses; empty if none.

        Args:
            finalist: The finalist.
            with_metric: Whether the user's metric counts, which may be slow.
        """
        if finalist.method is None:
            return ""
        return self.accuracy_of(finalist).shortfall(finalist.state, with_metric=with_metric)

    def accuracy_of(self, finalist: Finalist) -> ChoiceAccuracy:
        """Return what measures the accuracy of choices as they are in a finalist."""
        return self._accuracy_in(finalist.role, finalist.method)

    def _accuracy_in(self, role: Role, method: RangeMethod | None) -> ChoiceAccuracy:
        if role is Role.SMOOTHED and self.smoothed is not None:
            return self.smoothed
        return self.accuracy[method or next(iter(self.accuracy))]

    def metric(self, finalist: Finalist, *, most_s: float = math.inf) -> float | None:
        """Return the user's metric of a finalist; None if there is none, or it would take too long.

        Args:
            finalist: The finalist.
            most_s: Time limit in seconds.
        """
        if self.run.request.evaluate is None:
            return None
        accuracy = self.accuracy_of(finalist)
        is_known = accuracy.knows(METRIC, finalist.state)
        if not is_known and self.run.budget.accuracy_s.get(METRIC, math.inf) > most_s:
            return None
        return accuracy.measured(METRIC, finalist.state)

    def rejected(self, fastest: State, blankets: Mapping[str, State]) -> tuple[Rejected, ...]:
        """Return the evaluated candidates that are not accurate enough.

        Args:
            fastest: The best choice of the search.
            blankets: Whole-model choices, by name.
        """
        key = self.space.key
        named = {key(state): name for name, state in blankets.items()}
        return tuple(
            Rejected(
                named.get(key(state)) or _name(state, fastest),
                len(self.space.placement(state).tensors),
                accuracy.known(SQNR, state),
                accuracy.known(METRIC, state),
                shortfall,
            )
            for accuracy in (*self.accuracy.values(), self.smoothed)
            if accuracy is not None
            for state, shortfall in accuracy.missed.items()
        )

    def with_smoothed_inputs(self, state: State, result: Finalist | None) -> Finalist | None:
        """Return the fastest choice with smoothed inputs, if that makes it more accurate.

        Smoothing takes time at run time: how much, the last comparison tells.

        Args:
            state: The fastest choice of the search.
            result: What is accurate enough of it without smoothing.

        Returns:
            None if nothing is smoothed, if it does not help enough, or if there is no time.
        """
        run = self.run
        if run.request.config.smoothing == NONE or not run.provider.is_data:
            return None
        if not self.space.placement(state):
            return None
        method = self._best_ranges(state)
        before = self.accuracy[method]
        before_db = before.known(SQNR, state)
        is_whole = result is not None and result.state == state
        if before_db is None or not self._has_time_for_changes:
            return None
        if is_whole and not is_worth_trying(before_db, run.request.config.min_sqnr_db):
            return None
        run.reporter.tell("accuracy", "smoothing inputs of products")
        inserters = with_smoothed_inputs(
            before.inserter, self.space.placement(state), run.runner,
            run.provider.unevaluated_samples(),
        )  # fmt: skip
        self.smoothed = self._nearest(state, before, inserters, before_db + LEAST_GAIN_DB)
        if self.smoothed is None or self.smoothed.shortfall(state):
            return None
        return self.rival(Role.SMOOTHED.value, state, method, Role.SMOOTHED)

    def _nearest(
        self, state: State, before: ChoiceAccuracy, inserters: Iterable[Inserter], least_db: float
    ) -> ChoiceAccuracy | None:
        """Return what writes a choice nearest to float, and nearer than that; None if nothing."""
        best = None
        for inserter in inserters:
            other = ChoiceAccuracy(before.evaluation, self.space, inserter)
            found_db = other.measured(SQNR, state)
            if found_db is not None and found_db > least_db:
                best, least_db = other, found_db
        return best

    def rival(self, name: str, state: State, method: RangeMethod, role: Role) -> Finalist:
        """Write a choice as a file that may become the result, unless there is one with it.

        Args:
            name: A description.
            state: The choice.
            method: The method of its ranges.
            role: Why it takes part in the last comparison.
        """
        placement = self.space.placement(state)
        for known in self._known:
            same = known.placement == placement and known.method is method
            if same and known.is_smoothed is (role is Role.SMOOTHED):
                return replace(known, name=name, role=role)
        folder = self.run.folder.scratch / f"finalist{len(self._known)}"
        folder.mkdir(exist_ok=True)
        accuracy = self._accuracy_in(role, method)
        accuracy.forget_sqnr_db(state)
        sqnr_db = accuracy.measured(SQNR, state)
        file = save_model(accuracy.inserter.model(placement), folder / names.FINAL, force=True)
        check_written(file, accuracy.inserter, placement, self.run.request.file)
        written = Finalist(name, state, placement, file, method, sqnr_db, role)
        self._known.append(written)
        return written

    def _best_ranges(self, state: State) -> RangeMethod:
        """Return the range method with which a choice is closest to the float model."""
        if len(self.accuracy) == 1:
            return next(iter(self.accuracy))
        progress = self.run.reporter.progress("accuracy")
        found: dict[RangeMethod, float] = {}
        progress("kinds of ranges compared", 0, len(self.accuracy))
        for way, accuracy in self.accuracy.items():
            if found and not accuracy.knows(SQNR, state) and not self._has_time_to_evaluate:
                continue  # no time: use only known values
            decibels = accuracy.measured(SQNR, state)
            found[way] = -math.inf if decibels is None else decibels
            progress("kinds of ranges compared", len(found), len(self.accuracy))
        return max(found, key=found.__getitem__)

    def _best_corrected(self, state: State) -> RangeMethod:
        """Correct the biases of a choice if that is worth trying, and return the best method."""
        run, best = self.run, self._best_ranges(state)
        if run.request.config.bias_correction == NONE or not run.provider.is_data:
            return best
        if not self.space.placement(state):
            return best
        best_db = self.accuracy[best].measured(SQNR, state)
        for way, accuracy in list(self.accuracy.items()):
            known_db = accuracy.known(SQNR, state)
            if known_db is not None and best_db is not None and known_db >= best_db - NEARLY_DB:
                self._correct_biases(state, way, known_db)
        return self._best_ranges(state)

    def _correct_biases(self, state: State, method: RangeMethod, before_db: float) -> None:
        """Correct the biases of all choices, if that brings the outputs of this one nearer."""
        run, accuracy, tried = self.run, self.accuracy[method], self._corrected_for
        least_db = run.request.config.min_sqnr_db
        is_wanted = self._has_time_for_changes and is_worth_trying(before_db, least_db)
        if not is_wanted or (method, state) in tried:
            return
        tried.add((method, state))
        run.reporter.tell("accuracy", f"correcting biases, with {method.value} ranges")
        inserters = with_corrected_biases(
            accuracy.inserter, self.space.placement(state), run.runner,
            run.provider.unevaluated_samples(),
        )  # fmt: skip
        self.accuracy[method] = self._nearest(state, accuracy, inserters, before_db) or accuracy

    def _correct(
        self, state: State, accuracy: ChoiceAccuracy, *, with_metric: bool = True
    ) -> tuple[State, str]:
        """Return the part of a choice that may become the result, and a description of the rest."""
        space, reporter = self.space, self.run.reporter
        shortfall = accuracy.shortfall(state, with_metric=with_metric)
        if not shortfall:
            return state, ""
        if self._accurate and not accuracy.shortfall(self._accurate):
            self.left_float |= state - self._accurate
            return self._accurate, self.lost  # another repair would take as many evaluations
        if state in accuracy.unchecked:  # leaving parts of it float would not help
            reporter.tell("accuracy", shortfall)
            return frozenset(), shortfall
        reporter.tell("accuracy", f"{shortfall}; looking for what has to stay float")
        repair = AccuracyRepair(
            space, accuracy, self.run.budget.repair_left_s, reporter.progress("accuracy"),
            with_metric,
        )  # fmt: skip
        kept = repair.correct_part(state)
        kept = kept if space.placement(kept) else frozenset()
        self.left_float |= state - kept
        left = f"left float: {name_groups(space, state - kept, state)}"
        if repair.is_cut_short:
            left += " (--budget left no time to look for fewer)"
        reporter.tell("accuracy", left)
        return kept, f"{shortfall}; {left}"


def _is_nearer(one: Finalist, other: Finalist) -> bool:
    """Whether a finalist is known to be nearer to the float model than another."""
    known = one.sqnr_db is not None and other.sqnr_db is not None
    return known and one.sqnr_db > other.sqnr_db  # type: ignore[operator]  # both are known


def _name(state: State, fastest: State) -> str:
    dropped = len(fastest - state)
    if not state <= fastest:
        return f"a candidate with {len(state)} choices quantized"
    if not dropped:
        return "the fastest candidate"
    return f"the fastest candidate with {dropped} of {len(fastest)} choices left float"
