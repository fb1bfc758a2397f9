"""Measure how accurate placements are, once per journal."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from dataclasses import dataclass, field
from functools import cached_property

from qdqtune.calibration._ranges import SampleDigest
from qdqtune.calibration._user_code import TookTooLong
from qdqtune.engines._options import exact_options
from qdqtune.graph._files import load_model, save_model
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.records._accuracy import (
    APPROXIMATE_SQNR,
    METRIC,
    SQNR,
    allowed_sqnr_db,
    checked_metric,
)
from qdqtune.records._errors import EngineError, UsageError
from qdqtune.search._space import Space, State
from qdqtune.workflows._accuracy_evaluator import (
    AccuracyEvaluator,
    Quality,
    has_own_kernels,
    kernels_of,
)
from qdqtune.workflows.tuning._journal import AccuracyKey
from qdqtune.workflows.tuning._run_records import TuningRun

_FLOAT_SQNR = "float_sqnr_db"
_WORST = "(the worst)"
# The largest possible ratio of float64 numbers that differ; equal outputs have an infinite one.
_MOST_DB = 400.0
# A call of the user's function on a candidate counts as hung after this many seconds, or this many
# times the duration of the call on the float model, whichever is longer.
_SHORTEST_LIMIT_S = 600.0
_TIMES_FLOAT = 20.0

_logger = logging.getLogger(__name__)
# How much less accurate a result may be than dynamic quantization, which has no range to miss.
_BELOW_DYNAMIC_DB = 3.0


@dataclass
class Evaluation:
    """How outputs are compared, and with what, independent of the ranges.

    Attributes:
        run: The run.
        base: The float model.
        dynamic_db: SQNR of the model with dynamic quantization, if a result has to come near it.
    """

    run: TuningRun
    base: PreparedModel
    dynamic_db: float | None = None

    @cached_property
    def evaluator(self) -> AccuracyEvaluator:
        """Compares outputs; created on first use.

        The error is measured with the kernels of the target engine, if they can be run here, and
        against the original model if it was converted, since users compare with that.
        """
        run = self.run
        kernels = kernels_of(run.engine, run.runner, run.info)
        reference = None
        if run.request.converted is not None:
            as_given = load_model(run.request.model)
            reference = save_model(as_given, self.run.folder.scratch / "as_given.onnx")
        return AccuracyEvaluator(
            run.source, self.base, run.runner, run.provider.evaluation_samples,
            kernels=kernels if self.has_own_kernels else None, reference=reference,
        )  # fmt: skip

    def close(self) -> None:
        """Discard the outputs of the models that were run."""
        if "evaluator" in vars(self):
            self.evaluator.close()

    @cached_property
    def has_own_kernels(self) -> bool:
        """Whether the engine's own kernels compute the outputs."""
        request = self.run.request
        return has_own_kernels(request.engine, request.options.engine_options)

    @cached_property
    def of_outputs(self) -> str:
        """Everything that outputs depend on besides the placement and its scales."""
        digest = SampleDigest()
        for feeds in self.run.provider.evaluation_samples():
            digest.add(feeds)
        arithmetic_of = self.run.request.engine if self.has_own_kernels else ""
        return f"{arithmetic_of} {digest.hexdigest()}"

    @property
    def of_metric(self) -> str:
        """Everything that the metric depends on; empty if another run could not recognize it.

        The metric of the float model represents the data, which only the function knows.
        """
        function = self.run.request.evaluate
        if function is None or not function.fingerprint:
            return ""
        return f"{function.label} {function.fingerprint} {self.run.float_metric!r}"


@dataclass
class ChoiceAccuracy:
    """Measures how accurate choices are with ranges of one kind, and checks the user's limits.

    Results that an earlier run measured cost nothing.

    Attributes:
        evaluation: Compares outputs.
        space: The search space that choices refer to.
        inserter: Writes them, with the ranges.
        missed: Evaluated choices that must not become the result, and why.
        unchecked: Those of them that could not be measured, and may be accurate enough.
    """

    evaluation: Evaluation
    space: Space
    inserter: Inserter
    missed: dict[State, str] = field(default_factory=dict, init=False)
    unchecked: set[State] = field(default_factory=set, init=False)
    _here: dict[AccuracyKey, float | None] = field(default_factory=dict, init=False)
    _unknown: dict[AccuracyKey, str] = field(default_factory=dict, init=False)

    def measured(self, measure: str, choice: State) -> float | None:
        """Measure the accuracy of a choice; None if that is not possible here.

        Args:
            measure: `SQNR` is that of the worst output against the float model, `APPROXIMATE_SQNR`
                the same without the engine's own kernels: fast, and good enough to rank many.
                `METRIC` is the result of the user's function.
            choice: The choice.
        """
        key = self._key(measure, choice)
        if key in self._here:
            return self._here[key]
        if (known := self._journaled(key)) is not None:
            return known
        began, found = time.monotonic(), None
        try:
            found = self._measure(measure, choice)
        except (EngineError, UsageError) as error:
            _logger.warning("a candidate can't be evaluated: %s", error.what)
            self._unknown[key] = error.what.splitlines()[0].rstrip(".")
        finally:
            self.evaluation.run.budget.saw_accuracy(measure, time.monotonic() - began)
        self._here[key] = found
        # Failures may be the machine's fault: another run tries again.
        if found is not None and (measure != METRIC or self.evaluation.of_metric):
            self.evaluation.run.journal.keep_accuracy(key, found)
        return found

    def knows(self, measure: str, choice: State) -> bool:
        """Whether `measured` costs nothing."""
        key = self._key(measure, choice)
        return key in self._here or self._journaled(key) is not None

    def known(self, measure: str, choice: State) -> float | None:
        """Return the accuracy of a choice, if it was measured."""
        return self.measured(measure, choice) if self.knows(measure, choice) else None

    def forget_sqnr_db(self, choice: State) -> bool:
        """Discard an SQNR that an earlier run recorded, so that it is measured again.

        A run evaluates its own result, since the journal may have been modified.

        Returns:
            Whether there was a recorded value.
        """
        key = self._key(SQNR, choice)
        if key in self._here or key not in self.evaluation.run.journal.accuracy:
            return False
        del self.evaluation.run.journal.accuracy[key]
        return True

    def float_sqnr_db(self) -> float | None:
        """Measure the SQNR of the float model itself against float32, as the engine computes it.

        Returns:
            Decibels of the worst output; None if it is computed in float32, or can't be compared.
        """
        run = self.evaluation.run
        is_exact = exact_options(run.info, run.request.options) is None
        if is_exact or not self.evaluation.has_own_kernels:
            return None
        return self.measured(_FLOAT_SQNR, frozenset())

    @property
    def least_sqnr_db(self) -> float:
        """The SQNR that a choice must have."""
        least_db = self.evaluation.run.request.config.min_sqnr_db
        dynamic_db = self.evaluation.dynamic_db
        limits = [-math.inf]
        if least_db is not None:
            limits.append(allowed_sqnr_db(least_db, self.float_sqnr_db()))
        if dynamic_db is not None:
            limits.append(dynamic_db - _BELOW_DYNAMIC_DB)
        return max(limits)

    def shortfall(self, choice: State, *, with_metric: bool = True) -> str:
        """Return which limit a choice misses, and by how much; empty if it may become the result.

        Args:
            choice: The choice.
            with_metric: Whether the user's metric counts, which may be slow.
        """
        found = self._sqnr_shortfall(choice)
        if not found and with_metric and self.space.placement(choice):
            found = self.metric_shortfall(choice)
        if found:
            self.missed[choice] = found
        return found

    def knows_shortfall(self, choice: State) -> bool:
        """Whether `shortfall` costs nothing, because an earlier run determined it."""
        if not self.space.placement(choice):
            return True
        if self.evaluation.run.request.config.min_sqnr_db is not None:
            if not self.knows(SQNR, choice):
                return False
            if self._sqnr_shortfall(choice):
                return True
        return self.evaluation.run.float_metric is None or self.knows(METRIC, choice)

    def metric_shortfall(self, choice: State) -> str:
        """Return by how much the user's metric is too low; empty if it isn't.

        It is compared with the metric of the original file. The float model's differs if the file
        has Q/DQ.
        """
        before, request = self.evaluation.run.float_metric, self.evaluation.run.request
        if before is None or request.evaluate is None:
            return ""
        max_drop, found = request.config.max_drop, self.measured(METRIC, choice)
        if found is None:
            return f"--max_drop {max_drop:g} could not be checked: {self._why(METRIC, choice)}"
        if found >= before - max_drop:
            return ""
        return (
            f"{request.evaluate.label} {found:.6g} is {before - found:.3g} below the float model's "
            f"{before:.6g}, more than --max_drop {max_drop:g}"
        )

    def _sqnr_shortfall(self, choice: State) -> str:
        least_db = self.evaluation.run.request.config.min_sqnr_db
        if least_db is None or not self.space.placement(choice):
            return ""
        found, of_float = self.measured(SQNR, choice), self.float_sqnr_db()
        if found is None:
            return Quality(why_unknown=self._why(SQNR, choice)).shortfall(least_db)
        own = None if of_float is None else Quality({_WORST: of_float})
        shortfall = Quality({_WORST: found}, of_float=own).shortfall(least_db)
        return shortfall or self._below_dynamic(found)

    def _below_dynamic(self, found: float) -> str:
        """Say how far an SQNR is below that of dynamic quantization, if it is much."""
        dynamic_db = self.evaluation.dynamic_db
        if dynamic_db is None or not found < dynamic_db - _BELOW_DYNAMIC_DB:
            return ""
        return (
            f"SQNR {found:.1f} dB is more than {_BELOW_DYNAMIC_DB:g} dB below the "
            f"{dynamic_db:.1f} dB of dynamic quantization (another --min_sqnr lifts this limit)"
        )

    def _why(self, measure: str, choice: State) -> str:
        """Return why a measurement of this run failed, and mark the choice as unchecked."""
        self.unchecked.add(choice)
        return self._unknown.get(self._key(measure, choice), "it could not be measured")

    def _journaled(self, key: AccuracyKey) -> float | None:
        """Return an earlier run's value; None if there is none, or it is impossible."""
        value = self.evaluation.run.journal.accuracy.get(key)
        if value is None or math.isnan(value):
            return None
        if key.measure == METRIC:
            return value if math.isfinite(value) else None
        return value if math.isinf(value) or abs(value) <= _MOST_DB else None

    def _measure(self, measure: str, choice: State) -> float | None:
        if measure == _FLOAT_SQNR:
            return self.evaluation.evaluator.float_sqnr_db()
        placement = self.space.placement(choice)
        if measure == METRIC:
            return self._call_metric(str(self.inserter.write(placement, "evaluated")))
        file = self.inserter.write(placement, "compared")
        if measure == APPROXIMATE_SQNR:
            return self.evaluation.evaluator.approximate_sqnr_db(file)
        found = self.evaluation.evaluator.quality(file)
        if found.why_unknown:
            raise EngineError(found.why_unknown, "--min_sqnr none hands it over unchecked.")
        return min((found.against_float or found.scores).values())

    def _call_metric(self, path: str) -> float:
        evaluate = self.evaluation.run.request.evaluate
        assert evaluate is not None
        float_s = self.evaluation.run.budget.accuracy_s.get(METRIC, 0.0)
        limit_s = max(_SHORTEST_LIMIT_S, _TIMES_FLOAT * float_s)
        try:
            return checked_metric(evaluate.within(limit_s, path), evaluate.label)
        except TookTooLong:
            raise
        except UsageError as error:
            _logger.warning("%s Calling it once more.", error.what)
            return checked_metric(evaluate.within(limit_s, path), evaluate.label)

    def _key(self, measure: str, choice: State) -> AccuracyKey:
        evaluation = self.evaluation
        of_measure = evaluation.of_metric if measure == METRIC else evaluation.of_outputs
        text = repr((self.inserter.encoder.digest(), of_measure))
        conditions = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return AccuracyKey(measure, self.space.key(choice), conditions)
