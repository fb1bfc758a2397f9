"""One pattern while it is being profiled: hands out schemes, and takes what was measured."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from itertools import chain

from qdqtune.autotune.config import Config
from qdqtune.autotune.errors import InvalidSchemeError
from qdqtune.autotune.patterns.pattern_schemes import PatternSchemes
from qdqtune.autotune.patterns.scheme import InsertionScheme
from qdqtune.autotune.session.mutation import variations
from qdqtune.autotune.session.tuned_pattern import TunedPattern
from qdqtune.records.placement import Edge


class Profiling:
    """Schemes of one pattern, tried one after the other against a background.

    Two schemes that make the same model are one candidate: the second is never handed out. What
    chance decides depends on the seed, the pattern and the number of schemes, so that a resumed
    run goes on as the first one would have.

    Args:
        tuned: The pattern.
        schemes: What was tried or is to be tried first; those that make the same model as an
            earlier one, and were not measured, are left out.
        background: Edges that are quantized because of other patterns.
        config: How schemes are varied.
        seed: What chance starts from.

    Attributes:
        tuned: The pattern.
        schemes: All schemes, the fastest first.
        index: The scheme that was handed out last; -1 if none was, or there are no more.
    """

    def __init__(
        self,
        tuned: TunedPattern,
        schemes: Iterable[InsertionScheme],
        background: frozenset[Edge],
        config: Config,
        seed: int,
    ) -> None:
        self.tuned = tuned
        self.index = -1
        self._background = background
        self._config = config
        self._seed = seed
        self._tried = {frozenset[Edge]()}
        self.schemes = PatternSchemes(tuned.pattern)
        for scheme in schemes:
            is_new = self._is_new(scheme)
            if is_new or scheme.is_profiled:
                self.schemes.schemes.append(scheme)
        self._sort()

    @property
    def current(self) -> InsertionScheme | None:
        """The scheme that was handed out last."""
        return self.schemes.schemes[self.index] if self.index >= 0 else None

    def select(self, index: int) -> None:
        """Let another scheme be the one that was handed out last.

        Raises:
            InvalidSchemeError: If there is no such scheme.
        """
        count = self.schemes.num_schemes
        if not -1 <= index < count:
            raise InvalidSchemeError(
                f"There is no scheme {index}.", f"There are {count}; -1 stands for none."
            )
        self.index = index

    def enter_empty(self, latency_ms: float) -> None:
        """Enter the scheme without points: it is the best model so far, which is known."""
        if not any(scheme.is_empty for scheme in self.schemes.schemes):
            empty = InsertionScheme(latency_ms=latency_ms, profile_timestamp=_now())
            self.schemes.schemes.append(empty)
            self._sort()

    def generate(self) -> int:
        """The place of the next scheme to measure; -1 if there is no other one."""
        schemes = self.schemes.schemes
        waiting = (place for place, each in enumerate(schemes) if not each.is_profiled)
        self.index = next(waiting, -1)
        if self.index < 0:
            new = next(filter(self._is_new, self._proposals()), None)
            if new is not None:
                schemes.append(new)
                self.index = len(schemes) - 1
        return self.index

    def submit(self, latency_ms: float, *, success: bool) -> None:
        """Take the latency of the scheme that was handed out last.

        Raises:
            InvalidSchemeError: If none was.
        """
        scheme = self.current
        if scheme is None:
            raise InvalidSchemeError(
                "There is no scheme that this latency could be of.", "Call generate() first."
            )
        scheme.error = not success
        scheme.latency_ms = latency_ms if success else math.inf
        scheme.profile_timestamp = _now()
        self._sort()

    def _sort(self) -> None:
        """The fastest first; the scheme that was handed out stays the same one."""
        current, schemes = self.current, self.schemes.schemes
        schemes.sort(key=lambda each: math.inf if each.error else each.latency_ms)
        if current is not None:
            self.index = next(place for place, each in enumerate(schemes) if each is current)

    def _proposals(self) -> Iterator[InsertionScheme]:
        schemes, points = self.schemes.schemes, self.tuned.points
        measured = [each for each in schemes if each.is_profiled and not each.error]
        chance = random.Random(f"{self._seed}/{len(schemes)}/{self.schemes.pattern_signature}")
        everything = [InsertionScheme.of(points)]
        return chain(everything, variations(measured, points, self._config, chance))

    def _is_new(self, scheme: InsertionScheme) -> bool:
        """Whether a scheme makes a model that was not tried yet; afterwards it counts as tried."""
        own = self.tuned.edges(scheme) - self._background
        if own in self._tried:
            return False
        self._tried.add(own)
        return True


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()
