"""What ships must be correct: if the fastest choice is not, the fewest ops are left float."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from qdqtune.autotune.search.space import Space, State

# With more groups than this, whole patterns are evaluated instead: every evaluation takes some
# runs.
_MOST_EVALUATED = 60
_MOST_NAMED = 3


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


class AccuracyRepair:
    """Leaves float what a choice must not quantize.

    Each part of the choice is quantized alone; those that cost the most accuracy per share of the
    latency are dropped first, the fewest that it takes. If time is short, parts that were not
    evaluated count as the worst, and more of them are dropped at once; what is known from an
    earlier run is used whatever the time.

    Args:
        space: What states mean.
        accuracy: How accurate they are.
        left_s: Seconds that it may still take.
        progress: Told what is done, and how many of how many.

    Attributes:
        is_cut_short: Whether it would have found more with more time.
    """

    def __init__(
        self,
        space: Space,
        accuracy: Accuracy,
        left_s: Callable[[], float] = lambda: math.inf,
        progress: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
    ) -> None:
        self.is_cut_short = False
        self._space = space
        self._accuracy = accuracy
        self._left_s = left_s
        self._progress = progress
        self._check_s = 0.0

    def correct_part(self, state: State) -> State:
        """The choice itself if it is correct, or what is left of it without its worst offenders.

        Args:
            state: The fastest choice.
        """
        if not state or self._is_correct(state):
            return state
        ranked = self._ranked(parts_of(self._space, state))

        def without(count: int) -> State:
            return state.difference(*ranked[:count])

        few, many, steps = 0, len(ranked), 0  # too few to drop, and enough
        while many - few > 1:
            middle = self._next_count(few, many, without)
            if middle is None:
                self.is_cut_short = True
                break
            left = math.ceil(math.log2(many - few))
            self._progress("leaving the worst parts float", steps, steps + left)
            steps += 1
            if self._is_correct(without(middle)):
                many = middle
            else:
                few = middle
        return without(many)

    def _ranked(self, parts: Sequence[State]) -> list[State]:
        """The parts, the most harmful first; those that were not evaluated before all others."""
        harm: dict[State, float] = {}
        for done, part in enumerate(sorted(parts, key=lambda part: -self._share(part)), 1):
            has_time = self._left_s() > self._check_s * math.ceil(math.log2(len(parts) + 1))
            if has_time or self._accuracy.knows_approximate_sqnr_db(part):
                harm[part] = self._harm(part)
                self._progress("measuring errors of parts of the fastest model", done, len(parts))
        self.is_cut_short = len(harm) < len(parts)
        return sorted(parts, key=lambda part: (-harm.get(part, math.inf), sorted(part)))

    def _next_count(self, few: int, many: int, without: Callable[[int], State]) -> int | None:
        """How many parts to drop next: half of those in question, more if time is short."""
        half, more = (few + many) // 2, few + max(1, 3 * (many - few) // 4)
        left_s = self._left_s()
        if left_s > self._check_s * math.ceil(math.log2(many - few)):
            return half
        if left_s > self._check_s:
            return more
        known = (n for n in (half, more) if self._accuracy.knows_shortfall(without(n)))
        return next(known, None)

    def _is_correct(self, choice: State) -> bool:
        began = time.monotonic()
        is_correct = not choice or not self._accuracy.shortfall(choice)
        self._check_s = max(self._check_s, time.monotonic() - began)
        return is_correct

    def _share(self, part: State) -> float:
        return sum(self._space.potential[number] for number in part)

    def _harm(self, part: State) -> float:
        """The error that a part brings, for what it may gain."""
        decibels = self._accuracy.approximate_sqnr_db(part)
        error = 10.0 ** (-decibels / 10.0) if math.isfinite(decibels) else (decibels < 0) * math.inf
        # Ops with a small share of their own may still carry what others gain.
        return error / (self._share(part) + len(part) / len(self._space.groups))


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
