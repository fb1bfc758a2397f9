"""Leave as little as possible of a choice float, so that it is accurate enough."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from qdqtune.records._accuracy import APPROXIMATE_SQNR
from qdqtune.search._space import Space, State
from qdqtune.workflows._accuracy_evaluator import fewest_dropped
from qdqtune.workflows.tuning._accuracy import ChoiceAccuracy

# With more groups than this, whole patterns are evaluated instead, since every evaluation takes
# several runs.
_MOST_EVALUATED = 60
_MOST_NAMED = 3


@dataclass
class AccuracyRepair:
    """Drops the parts of a choice that cost too much accuracy.

    Each part of the choice is quantized alone; those that cost the most accuracy per share of the
    latency are dropped first, and as few as possible. If time is short, parts that were not
    evaluated count as the worst, and more of them are dropped at once; results of an earlier run
    are always used.

    Attributes:
        space: The search space that states refer to.
        accuracy: Measures their accuracy.
        left_s: Returns the seconds left for it.
        progress: Called with the current step, its index and the total.
        with_metric: Whether the user's metric counts, which may be slow.
        is_cut_short: Whether more time would have led to a better result.
    """

    space: Space
    accuracy: ChoiceAccuracy
    left_s: Callable[[], float] = lambda: math.inf
    progress: Callable[[str, int, int], None] = lambda _what, _done, _total: None
    with_metric: bool = True
    is_cut_short: bool = field(default=False, init=False)
    _check_s: float = field(default=0.0, init=False)

    def correct_part(self, state: State) -> State:
        """Return a choice if it is accurate, or what remains without its worst parts.

        Args:
            state: The fastest choice.
        """
        if not state or self._is_correct(state):
            return state
        ranked = self.ranked(parts_of(self.space, state))

        def without(count: int) -> State:
            return state.difference(*ranked[:count])

        def next_count(few: int, many: int) -> int | None:
            found = self._next_count(few, many, without)
            self.is_cut_short |= found is None
            return found

        def is_correct(count: int) -> bool:
            return self._is_correct(without(count))

        return without(fewest_dropped(len(ranked), is_correct, self.progress, next_count))

    def ranked(self, parts: Sequence[State]) -> list[State]:
        """Sort parts by harm, largest first; those that were not evaluated come first.

        Args:
            parts: The parts, which are evaluated alone.
        """
        harm: dict[State, float] = {}
        for done, part in enumerate(sorted(parts, key=lambda part: -self._share(part)), 1):
            has_time = self.left_s() > self._check_s * math.ceil(math.log2(len(parts) + 1))
            if has_time or self.accuracy.knows(APPROXIMATE_SQNR, part):
                harm[part] = self._harm(part)
                self.progress("parts of the fastest model measured alone", done, len(parts))
        self.is_cut_short = len(harm) < len(parts)
        return sorted(parts, key=lambda part: (-harm.get(part, math.inf), sorted(part)))

    def _next_count(self, few: int, many: int, without: Callable[[int], State]) -> int | None:
        """Return how many parts to drop next: halve the range, or drop more if time is short."""
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
        is_correct = not choice or not self.accuracy.shortfall(choice, with_metric=self.with_metric)
        self._check_s = max(self._check_s, time.monotonic() - began)
        return is_correct

    def _share(self, part: State) -> float:
        return sum(self.space.potential[number] for number in part)

    def _harm(self, part: State) -> float:
        """Return the error that a part adds, relative to its possible gain."""
        decibels = self.accuracy.measured(APPROXIMATE_SQNR, part)
        error = math.pow(10.0, -decibels / 10.0) if decibels is not None else 0.0
        # Ops with a small share may still enable the gain of others.
        return error / (self._share(part) + len(part) / len(self.space.groups))


def parts_of(space: Space, state: State) -> list[State]:
    """Split a choice into parts to evaluate alone: its groups, or its patterns if too many."""
    if len(state) <= _MOST_EVALUATED:
        return [frozenset({number}) for number in sorted(state)]
    parts = (frozenset(numbers) & state for numbers in space.patterns.values())
    return [part for part in parts if part]


def name_groups(space: Space, dropped: State, whole: State) -> str:
    """Describe what was left float: how many groups of how many, and the first of them.

    Args:
        space: The search space.
        dropped: The groups left float.
        whole: All groups that were to be quantized.
    """
    names = [space.groups[number].nodes[0] for number in sorted(dropped)]
    shown = ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
    return f"{len(dropped)} of {len(whole)} groups: {shown}"
