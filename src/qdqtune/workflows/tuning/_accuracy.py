"""Measure how accurate placements are, once per journal, and repair what is not accurate enough."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from qdqtune.calibration._ranges import SampleDigest
from qdqtune.calibration._user_code import TookTooLong
from qdqtune.engines._options import exact_options
from qdqtune.graph._files import load_model, save_model
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.records._accuracy import APPROXIMATE_SQNR, METRIC, SQNR, checked_metric
from qdqtune.records._errors import EngineError, UsageError
from qdqtune.records._placement import Placement
from qdqtune.search._space import Space, State
from qdqtune.workflows._accuracy_evaluator import (
    AccuracyEvaluator,
    Quality,
    fewest_dropped,
    has_own_kernels,
    kernels_of,
)
from qdqtune.workflows.tuning._context import RunContext
from qdqtune.workflows.tuning._journal import AccuracyKey, Journal
from qdqtune.workflows.tuning._setup import TuningTarget

_FLOAT_SQNR = "float_sqnr_db"
_WORST = "(the worst)"
# No ratio of float64 numbers that differ is larger; equal outputs are infinitely near.
_MOST_DB = 400.0
# A call of the user's function on a candidate is a hang after so many seconds, or after so many
# times what the call on the float model took, if that is more.
_SHORTEST_LIMIT_S = 600.0
_TIMES_FLOAT = 20.0

_logger = logging.getLogger(__name__)
# With more groups than this, whole patterns are evaluated instead: every evaluation takes some
# runs.
_MOST_EVALUATED = 60
_MOST_NAMED = 3


@dataclass
class MeasuredAccuracy:
    """Measures how accurate placements are; what an earlier run has measured costs nothing.

    Attributes:
        ctx: The run.
        target: What is tuned.
        base: The float model.
        journal: What is known, and where results go.
    """

    ctx: RunContext
    target: TuningTarget
    base: PreparedModel
    journal: Journal
    _here: dict[AccuracyKey, float | None] = field(default_factory=dict, init=False)
    _unknown: dict[AccuracyKey, str] = field(default_factory=dict, init=False)
    _written: set[AccuracyKey] = field(default_factory=set, init=False)

    @cached_property
    def evaluator(self) -> AccuracyEvaluator:
        """Compares outputs; made when it is first needed.

        The error is measured with the kernels that it is tuned for, wherever they can be run, and
        against the model as given if that was converted: users compare with that.
        """
        target, engines = self.target, self.ctx.engines
        kernels = kernels_of(engines.engine, engines.runner, target.info)
        reference = None
        if target.request.converted is not None:
            as_given = load_model(target.request.model)
            reference = save_model(as_given, self.ctx.folder.scratch / "as_given.onnx")
        return AccuracyEvaluator(
            target.source, self.base, engines.runner, target.provider.evaluation_samples,
            kernels=kernels if self._has_own_kernels else None, reference=reference,
        )  # fmt: skip

    def close(self) -> None:
        """Forget the outputs of the models that were run."""
        if "evaluator" in vars(self):
            self.evaluator.close()

    @cached_property
    def _has_own_kernels(self) -> bool:
        request = self.target.request
        return has_own_kernels(request.engine, request.options.engine_options)

    def sqnr_db(self, inserter: Inserter, placement: Placement) -> float | None:
        """The worst output's distance from the float model; None if it can't be known here."""
        return self._measured(SQNR, inserter, placement, self._find_sqnr_db)

    def quality(self, inserter: Inserter, placement: Placement) -> Quality:
        """The same beside the float model's own distance from float32, to hold against a limit."""
        found, of_float = self.sqnr_db(inserter, placement), self.float_sqnr_db(inserter)
        if found is None:
            return Quality(why_unknown=self.why_unknown(SQNR, inserter, placement))
        own = None if of_float is None else Quality({_WORST: of_float})
        return Quality({_WORST: found}, of_float=own)

    def why_unknown(self, measure: str, inserter: Inserter, placement: Placement) -> str:
        """Why a measurement of this run gave nothing.

        Args:
            measure: `SQNR` or `METRIC`.
            inserter: With which ranges.
            placement: Of what.
        """
        key = self._key(measure, inserter, placement)
        return self._unknown.get(key, "it could not be measured")

    def float_sqnr_db(self, inserter: Inserter) -> float | None:
        """How near to float32 the float model itself is, as the engine computes it.

        Returns:
            Decibels of the worst output; None if it is computed in float32, or can't be compared.
        """
        exact = exact_options(self.target.info, self.target.request.options)
        if exact is None or not self._has_own_kernels:
            return None
        return self._measured(
            _FLOAT_SQNR, inserter, Placement(), lambda *_: self.evaluator.float_sqnr_db()
        )

    def approximate_sqnr_db(self, inserter: Inserter, placement: Placement) -> float:
        """The same without the engine's own kernels: fast, and near enough to rank many."""
        found = self._measured(APPROXIMATE_SQNR, inserter, placement, self._find_approximate_db)
        return math.inf if found is None else found

    def metric(self, inserter: Inserter, placement: Placement) -> float | None:
        """What the user's function says of it; None if it fails, or says nothing of use."""
        return self._measured(METRIC, inserter, placement, self._find_metric)

    def knows(self, measure: str, inserter: Inserter, placement: Placement) -> bool:
        """Whether it was measured before.

        Args:
            measure: `SQNR`, `APPROXIMATE_SQNR` or `METRIC`.
            inserter: With which ranges.
            placement: Of what.
        """
        key = self._key(measure, inserter, placement)
        return key in self._here or self._journaled(key) is not None

    def _journaled(self, key: AccuracyKey) -> float | None:
        """What an earlier run has measured; None if that is nothing, or can't be true."""
        value = self.journal.accuracy.get(key)
        if value is None or math.isnan(value):
            return None
        if key.measure == METRIC:
            return value if math.isfinite(value) else None
        return value if math.isinf(value) or abs(value) <= _MOST_DB else None

    def forget_sqnr_db(self, inserter: Inserter, placement: Placement) -> bool:
        """Let `sqnr_db` measure anew what an earlier run has written down.

        What is handed over is evaluated by the run that does so: a journal may have been changed.

        Args:
            inserter: With which ranges.
            placement: Of what.

        Returns:
            Whether there was something to forget.
        """
        key = self._key(SQNR, inserter, placement)
        if key in self._written or key not in self.journal.accuracy:
            return False
        del self.journal.accuracy[key]
        return True

    def _measured(
        self,
        measure: str,
        inserter: Inserter,
        placement: Placement,
        find: Callable[[Inserter, Placement], float | None],
    ) -> float | None:
        key = self._key(measure, inserter, placement)
        if key in self._here:
            return self._here[key]
        if (known := self._journaled(key)) is not None:
            return known
        began, found = time.monotonic(), None
        try:
            found = find(inserter, placement)
        except (EngineError, UsageError) as error:
            _logger.warning("a candidate can't be evaluated: %s", error.what)
            self._unknown[key] = error.what.splitlines()[0].rstrip(".")
        finally:
            self.ctx.budget.saw_accuracy(measure, time.monotonic() - began)
        # What failed may be the machine's fault: another run tries again.
        if found is None or (measure == METRIC and not self._of_evaluate):
            self._here[key] = found
        else:
            self.journal.keep_accuracy(key, found)
            self._written.add(key)
        return found

    def _find_sqnr_db(self, inserter: Inserter, placement: Placement) -> float | None:
        found = self.evaluator.quality(inserter.write(placement, "compared"))
        if found.why_unknown:
            raise EngineError(found.why_unknown, "--min_sqnr none hands it over unchecked.")
        return min((found.against_float or found.scores).values())

    def _find_approximate_db(self, inserter: Inserter, placement: Placement) -> float:
        return self.evaluator.approximate_sqnr_db(inserter.write(placement, "compared"))

    def _find_metric(self, inserter: Inserter, placement: Placement) -> float:
        evaluate, float_s = self.target.request.evaluate, self.ctx.budget.accuracy_s.get(METRIC)
        assert evaluate is not None
        path = str(inserter.write(placement, "evaluated"))
        limit_s = max(_SHORTEST_LIMIT_S, _TIMES_FLOAT * (float_s or 0.0))
        try:
            return checked_metric(evaluate.within(limit_s, path), evaluate.label)
        except TookTooLong:
            raise
        except UsageError as error:
            _logger.warning("%s Calling it once more.", error.what)
            return checked_metric(evaluate.within(limit_s, path), evaluate.label)

    def _key(self, measure: str, inserter: Inserter, placement: Placement) -> AccuracyKey:
        of_measure = self._of_evaluate if measure == METRIC else self._of_outputs
        text = repr((inserter.encoder.digest(), of_measure))
        conditions = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return AccuracyKey(measure, placement.digest(), conditions)

    @cached_property
    def _of_outputs(self) -> str:
        """What outputs depend on beside the placement and its scales."""
        digest = SampleDigest()
        for feeds in self.target.provider.evaluation_samples():
            digest.add(feeds)
        arithmetic_of = self.target.request.engine if self._has_own_kernels else ""
        return f"{arithmetic_of} {digest.hexdigest()}"

    @property
    def _of_evaluate(self) -> str:
        """What the metric depends on; empty if another run can't tell that it is the same.

        The metric of the float model stands for the data, which only the function knows.
        """
        function = self.target.request.evaluate
        if function is None or not function.fingerprint:
            return ""
        return f"{function.label} {function.fingerprint} {self.target.float_metric!r}"


class Accuracy(Protocol):
    """How accurate choices are."""

    def shortfall(self, choice: State) -> str:
        """Which limit a choice fails, and by how much; empty if it may be shipped."""
        ...

    def approximate_sqnr_db(self, choice: State) -> float:
        """How near to the float model a choice is, roughly."""
        ...

    def knows_shortfall(self, choice: State) -> bool:
        """Whether `shortfall` costs nothing, because an earlier run has found it out."""
        ...

    def knows_approximate_sqnr_db(self, choice: State) -> bool:
        """Whether `approximate_sqnr_db` costs nothing."""
        ...


@dataclass
class AccuracyRepair:
    """Leaves float what a choice must not quantize.

    Each part of the choice is quantized alone; those that cost the most accuracy per share of the
    latency are dropped first, the fewest that it takes. If time is short, parts that were not
    evaluated count as the worst, and more of them are dropped at once; what is known from an
    earlier run is used whatever the time.

    Attributes:
        space: What states mean.
        accuracy: How accurate they are.
        left_s: Seconds that it may still take.
        progress: Told what is done, and how many of how many.
        is_cut_short: Whether it would have found more with more time.
    """

    space: Space
    accuracy: Accuracy
    left_s: Callable[[], float] = lambda: math.inf
    progress: Callable[[str, int, int], None] = lambda _what, _done, _total: None
    is_cut_short: bool = field(default=False, init=False)
    _check_s: float = field(default=0.0, init=False)

    def correct_part(self, state: State) -> State:
        """The choice itself if it is correct, or what is left of it without its worst offenders.

        Args:
            state: The fastest choice.
        """
        if not state or self._is_correct(state):
            return state
        ranked = self._ranked(parts_of(self.space, state))

        def without(count: int) -> State:
            return state.difference(*ranked[:count])

        def next_count(few: int, many: int) -> int | None:
            found = self._next_count(few, many, without)
            self.is_cut_short |= found is None
            return found

        def is_correct(count: int) -> bool:
            return self._is_correct(without(count))

        return without(fewest_dropped(len(ranked), is_correct, self.progress, next_count))

    def _ranked(self, parts: Sequence[State]) -> list[State]:
        """The parts, the most harmful first; those that were not evaluated before all others."""
        harm: dict[State, float] = {}
        for done, part in enumerate(sorted(parts, key=lambda part: -self._share(part)), 1):
            has_time = self.left_s() > self._check_s * math.ceil(math.log2(len(parts) + 1))
            if has_time or self.accuracy.knows_approximate_sqnr_db(part):
                harm[part] = self._harm(part)
                self.progress("measuring errors of parts of the fastest model", done, len(parts))
        self.is_cut_short = len(harm) < len(parts)
        return sorted(parts, key=lambda part: (-harm.get(part, math.inf), sorted(part)))

    def _next_count(self, few: int, many: int, without: Callable[[int], State]) -> int | None:
        """How many parts to drop next: half of those in question, more if time is short."""
        half, more = (few + many) // 2, few + max(1, 3 * (many - few) // 4)
        left_s = self.left_s()
        if left_s > self._check_s * math.ceil(math.log2(many - few)):
            return half
        if left_s > self._check_s:
            return more
        known = (n for n in (half, more) if self.accuracy.knows_shortfall(without(n)))
        return next(known, None)

    def _is_correct(self, choice: State) -> bool:
        began = time.monotonic()
        is_correct = not choice or not self.accuracy.shortfall(choice)
        self._check_s = max(self._check_s, time.monotonic() - began)
        return is_correct

    def _share(self, part: State) -> float:
        return sum(self.space.potential[number] for number in part)

    def _harm(self, part: State) -> float:
        """The error that a part brings, for what it may gain."""
        error = math.pow(10.0, -self.accuracy.approximate_sqnr_db(part) / 10.0)
        # Ops with a small share of their own may still carry what others gain.
        return error / (self._share(part) + len(part) / len(self.space.groups))


def parts_of(space: Space, state: State) -> list[State]:
    """What of a choice is evaluated alone: each of its groups, or of very many each pattern."""
    if len(state) <= _MOST_EVALUATED:
        return [frozenset({number}) for number in sorted(state)]
    parts = (frozenset(numbers) & state for numbers in space.patterns.values())
    return [part for part in parts if part]


def name_groups(space: Space, dropped: State, whole: State) -> str:
    """What was left float, in words: how many groups of how many, and the first of them.

    Args:
        space: What states mean.
        dropped: The groups in question.
        whole: All that were to be quantized.
    """
    names = [space.groups[number].nodes[0] for number in sorted(dropped)]
    shown = ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
    return f"{len(dropped)} of {len(whole)} groups: {shown}"
