"""What ships must be correct: if the fastest choice is not, the fewest ops are left float."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from qdqtune.autotune.search.space import Space, State
from qdqtune.records.errors import UsageError

_logger = logging.getLogger(__name__)

# With more groups than this, whole patterns are judged instead: every judgement is some runs.
_MOST_JUDGED = 60


def correct_part(
    space: Space,
    state: State,
    is_correct: Callable[[State], bool],
    sqnr_db: Callable[[State], float],
) -> State:
    """The choice itself if it is correct, or what is left of it without its worst offenders.

    Each part of the choice is quantized alone; those that cost the most accuracy per share of the
    latency are dropped first, the fewest that it takes.

    Args:
        space: What states mean.
        state: The fastest choice.
        is_correct: Whether a choice may be shipped.
        sqnr_db: How near to the float model a choice is, roughly.
    """
    if not state or is_correct(state):
        return state
    parts = [frozenset({number}) for number in sorted(state)]
    if len(parts) > _MOST_JUDGED:
        parts = [frozenset(numbers) & state for numbers in space.patterns.values()]
        parts = [part for part in parts if part]
    _logger.warning("the fastest model is not accurate enough: judging %d parts of it", len(parts))
    ranked = sorted(parts, key=lambda part: (-_harm(space, part, sqnr_db), sorted(part)))

    def without(count: int) -> State:
        return state.difference(*ranked[:count])

    few, many = 0, len(ranked)  # too few to drop, and enough
    while many - few > 1:
        middle = (few + many) // 2
        if is_correct(without(middle)):
            many = middle
        else:
            few = middle
    _logger.warning("%d of %d parts stay float for accuracy", many, len(ranked))
    return without(many)


def _harm(space: Space, part: State, sqnr_db: Callable[[State], float]) -> float:
    """The error that a part brings, for what it may gain."""
    decibels = sqnr_db(part)
    error = 10.0 ** (-decibels / 10.0) if math.isfinite(decibels) else (decibels < 0) * math.inf
    share = sum(space.potential[number] for number in part)
    # Ops with a small share of their own may still carry what others gain.
    return error / (share + len(part) / len(space.groups))


def checked_metric(value: object, name: str) -> float:
    """What a user's function returned, as a number.

    Raises:
        UsageError: If it is none.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise UsageError(
            f"{name} returned {value!r}, which is not a number.",
            "It takes the path of a model and returns a metric: more is better.",
        )
    return number
