"""How accurate a choice must be to be shipped, and by how much it is not."""

from __future__ import annotations

import math

from qdqtune.autotune.search.space import Space, State
from qdqtune.qdq.insert import Inserter
from qdqtune.records.accuracy import APPROXIMATE_SQNR, METRIC, SQNR, allowed_sqnr_db
from qdqtune.workflows.tuning.measured_accuracy import MeasuredAccuracy
from qdqtune.workflows.tuning.request import TuneRequest


class AccuracyLimits:
    """Holds choices against what was asked for.

    Args:
        space: What choices mean.
        inserter: Writes them, with the ranges that they are evaluated with.
        accuracy: How accurate placements are.
        request: What was asked for.
        float_metric: The user's metric of the float model; None without a metric.

    Attributes:
        missed: The choices that were asked about and must not be shipped, and why.
        unchecked: Those of them that may be accurate enough, but it could not be measured.
    """

    def __init__(
        self,
        space: Space,
        inserter: Inserter,
        accuracy: MeasuredAccuracy,
        request: TuneRequest,
        float_metric: float | None = None,
    ) -> None:
        self._space = space
        self._inserter = inserter
        self._accuracy = accuracy
        self._request = request
        self._float_metric = float_metric
        self.missed: dict[State, str] = {}
        self.unchecked: set[State] = set()

    def shortfall(self, choice: State) -> str:
        """Which limit a choice fails, and by how much; empty if it may be shipped."""
        return self.sqnr_shortfall(choice) or self._note(choice, self._metric_shortfall(choice))

    def sqnr_shortfall(self, choice: State) -> str:
        """The same without the user's metric, which may take long."""
        return self._note(choice, self._sqnr_shortfall(choice))

    def approximate_sqnr_db(self, choice: State) -> float:
        """How near to the float model a choice is, roughly."""
        placement = self._space.placement(choice)
        return self._accuracy.approximate_sqnr_db(self._inserter, placement)

    def knows_shortfall(self, choice: State) -> bool:
        """Whether `shortfall` costs nothing, because an earlier run has found it out."""
        if not self._space.placement(choice):
            return True
        if self._request.config.min_sqnr_db is not None:
            if not self._knows(SQNR, choice):
                return False
            if self._sqnr_shortfall(choice):
                return True
        return self._float_metric is None or self._knows(METRIC, choice)

    def knows_approximate_sqnr_db(self, choice: State) -> bool:
        """Whether `approximate_sqnr_db` costs nothing."""
        return self._knows(APPROXIMATE_SQNR, choice)

    def _knows(self, measure: str, choice: State) -> bool:
        return self._accuracy.knows(measure, self._inserter, self._space.placement(choice))

    def _note(self, choice: State, shortfall: str) -> str:
        if shortfall:
            self.missed[choice] = shortfall
        return shortfall

    def _not_checked(self, limit: str, measure: str, choice: State) -> str:
        """What is said of a limit that could not be checked: then nothing is shipped."""
        self.unchecked.add(choice)
        placement = self._space.placement(choice)
        why = self._accuracy.why_unknown(measure, self._inserter, placement)
        return f"{limit} could not be checked: {why}"

    def _sqnr_shortfall(self, choice: State) -> str:
        least_db = self._request.config.min_sqnr_db
        if least_db is None or not self._space.placement(choice):
            return ""
        found = self._accuracy.sqnr_db(self._inserter, self._space.placement(choice))
        of_float = self._accuracy.float_sqnr_db(self._inserter)
        allowed_db = allowed_sqnr_db(least_db, of_float)
        if found is None:
            return self._not_checked(f"--min_sqnr {least_db:g}", SQNR, choice)
        if found >= allowed_db:
            return ""
        below = f"{allowed_db - found:.1f} dB below" if math.isfinite(found) else "below"
        with_float = "" if of_float is None else f" (float itself: {of_float:.1f} dB)"
        return f"SQNR {found:.1f} dB is {below} --min_sqnr {least_db:g}{with_float}"

    def float_shortfall(self) -> str:
        """Whether the user's metric of the float model is too far below that of the file as given.

        They differ where the file has Q/DQ.
        """
        return self._metric_of(frozenset())

    def _metric_shortfall(self, choice: State) -> str:
        return self._metric_of(choice) if self._space.placement(choice) else ""

    def _metric_of(self, choice: State) -> str:
        before, evaluate = self._float_metric, self._request.evaluate
        max_drop = self._request.config.max_drop
        if before is None or evaluate is None:
            return ""
        found = self._accuracy.metric(self._inserter, self._space.placement(choice))
        if found is None:
            return self._not_checked(f"--max_drop {max_drop:g}", METRIC, choice)
        if found >= before - max_drop:
            return ""
        return (
            f"{evaluate.label} {found:.6g} is {before - found:.3g} below the float model's "
            f"{before:.6g}, more than --max_drop {max_drop:g}"
        )
