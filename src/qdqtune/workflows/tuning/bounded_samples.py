"""Calibration samples until the time for them is up."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Iterator

from qdqtune.calibration.random_inputs import Feeds


class BoundedSamples:
    """Makes samples as long as there is time, and at least one.

    Args:
        samples: Makes all of them.
        most: How many to take, if an earlier run had no time for more; None is all.
        seconds: How long each pass over them may take.

    Attributes:
        count: How many the last pass took.
        is_cut_short: Whether that were not all.
    """

    def __init__(
        self, samples: Callable[[], Iterable[Feeds]], most: int | None, seconds: float
    ) -> None:
        self.count = 0
        self.is_cut_short = False
        self._samples = samples
        self._most = most
        self._seconds = seconds

    def begin(self) -> Iterable[Feeds]:
        """Samples for one pass."""
        return _Pass(self._samples(), self)

    def is_over(self, began: float) -> bool:
        """Whether a pass may not take another sample.

        Args:
            began: When it began.
        """
        if self._most is not None:
            return self.count >= self._most
        return self.count > 0 and time.monotonic() - began >= self._seconds


class _Pass:
    def __init__(self, samples: Iterable[Feeds], bounds: BoundedSamples) -> None:
        self._samples = samples
        self._bounds = bounds

    def __iter__(self) -> Iterator[Feeds]:
        bounds, began = self._bounds, time.monotonic()
        bounds.count, bounds.is_cut_short = 0, False
        for feeds in self._samples:
            if bounds.is_over(began):
                bounds.is_cut_short = True
                return
            bounds.count += 1
            yield feeds

    def __length_hint__(self) -> int:
        return operator.length_hint(self._samples)
