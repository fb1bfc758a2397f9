"""What a pattern cache knows of the choices in a model: where a search begins, and what it doubts.

What was measured counts as such if engine, device, dialect, quant type and shapes are the same.
Anything else says only what to try first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qdqtune.search._space import Form, Group, Space, State
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.search.patterns._pattern_outcomes import ChoiceOutcome, Conditions, PatternOutcome
from qdqtune.search.regions._canonical import scalable

_Key = tuple[str, int, Form]
Gain = tuple[float, float]
"""A log speedup of the model, and its standard error."""

# Shapes are near if their dims differ by this on average, as the logarithm of base 2: those of a
# batch of 8 are near those of one, those of another stage of a network are not.
_NEAR = 0.6
# Those of another pattern are never the same, even if it differs only in what has no dims here.
_ANOTHER = 0.01
# With a smaller part of the latency known for sure, a search takes its usual course.
_MUCH_KNOWN = 0.9
# What a choice may bring, as a part of its share of the latency, if its gain was not measured; and
# how much further from it a gain may be that was measured with other shapes.
_UNMEASURED, _OTHER_SHAPES = 1.0, 0.1
# Conversions cost some even around ops that are parts of other kernels.
_LEAST_DOUBT = 0.002
# What a boundary may cost, as a part of the share of its neighbours, and of all groups on average.
_OF_NEIGHBOURS, _OF_GROUPS = 0.5, 0.25
# A gain is known from this share of the latency on, and is no larger than this as a part of it.
_LEAST_SHARE, _LARGEST = 1e-4, 10.0
# How wrong a gain may be that was measured in another model, as a part of itself.
_ELSEWHERE = 0.25


@dataclass(frozen=True)
class GroupEstimate:
    """What is known of a group.

    Attributes:
        is_chosen: Whether it was quantized in the other run's result.
        is_near: Whether that run was finished, had the same conditions, and shapes like these.
        is_unfinished: Whether it was not finished, but had these conditions and such shapes.
        is_same: Whether the shapes were the same, too.
        gain: Log speedup of the model by quantizing the group, as a part of its share of the
            latency; None if it was not measured, or not under the same conditions.
        error: Its standard error.
    """

    is_chosen: bool
    is_near: bool
    is_same: bool = False
    gain: float | None = None
    error: float = 0.0
    is_unfinished: bool = False


@dataclass(frozen=True)
class Prior:
    """What is known of the choices in a model before anything of it is measured.

    Attributes:
        estimates: By pattern, role and form of a group.
        chosen: Names of the ops that should be quantized, by their form.
    """

    estimates: Mapping[_Key, GroupEstimate]
    chosen: Mapping[Form, frozenset[str]]

    def state(self, space: Space) -> State:
        """The choice that it suggests."""
        return frozenset(
            number
            for number, group in enumerate(space.groups)
            if self.chosen.get(group.form, frozenset()).issuperset(group.nodes)
        )

    def of(self, space: Space) -> dict[int, GroupEstimate]:
        """What is known of each group; others are missing."""
        found = {n: self.estimates.get(_key(group)) for n, group in enumerate(space.groups)}
        return {number: estimate for number, estimate in found.items() if estimate is not None}

    def is_sure(self, space: Space) -> bool:
        """Whether it knows nearly all of a model from the same conditions."""
        return self._covers(space, [n for n, each in self.of(space).items() if each.is_near])

    def lacks_finished_runs(self, space: Space) -> bool:
        """Whether it is not sure of a model only because runs were not finished."""
        known = self.of(space).items()
        near = [n for n, each in known if each.is_near or each.is_unfinished]
        return self._covers(space, near) and not self.is_sure(space)

    def _covers(self, space: Space, groups: Iterable[int]) -> bool:
        known = sum(space.potential[number] for number in groups)
        return known >= _MUCH_KNOWN * sum(space.potential) > 0.0

    def hopes(self, space: Space, state: State) -> list[float]:
        """What a flip of each group may bring at best: below 0, it is hopeless."""
        return [gain + error for gain, error in self._flips(space, state, {}).values()]

    def doubts(self, space: Space, state: State, seen: Mapping[int, Gain]) -> dict[State, float]:
        """What flips may bring at best: of single groups, two neighbours, and those of a kind.

        Gains of two neighbours were measured one by one: what a boundary between them costs may be
        in both of them, or in none. Of a kind, those are flipped that are not hopeless alone.

        Args:
            space: The choices.
            state: What is flipped.
            seen: Gains of quantizing groups that were measured in the model itself.
        """
        flips, known = self._flips(space, state, seen), self.of(space)
        measured = {number for number, each in known.items() if each.gain is not None} | seen.keys()
        boundary = _OF_GROUPS * sum(space.potential) / max(1, len(flips))
        doubts: dict[State, float] = {}
        for one in map(frozenset, space.pairs):
            if one <= measured:
                share = sum(space.potential[number] for number in one) / 2.0
                doubts[one] = _best(flips, one, math.hypot(_OF_NEIGHBOURS * share, boundary))
        hopeful = frozenset(number for number, (gain, error) in flips.items() if gain + error > 0.0)
        kinds = (
            space.patterns,
            space.by(lambda group: group.structure or group.nodes[0]),
            space.by(lambda group: group.op_type),
        )
        for numbers in (numbers for kind in kinds for numbers in kind.values()):
            alike = hopeful.intersection(numbers)
            doubts |= {one: _best(flips, one) for one in (alike & state, alike - state) if one}
        return doubts | {frozenset({n}): gain + error for n, (gain, error) in flips.items()}

    def _flips(self, space: Space, state: State, seen: Mapping[int, Gain]) -> dict[int, Gain]:
        """What a flip of each group is expected to bring, and how wrong that may be."""
        known = self.of(space)
        flips: dict[int, Gain] = {}
        for number, share in enumerate(space.potential):
            estimate = known.get(number)
            gain, error = 0.0, math.hypot(_UNMEASURED * share, _LEAST_DOUBT)
            if number in seen:
                gain, error = seen[number]
            elif estimate is not None and estimate.gain is not None:
                gain, error = estimate.gain * share, estimate.error * share
            flips[number] = -gain if number in state else gain, error
        return flips


def _best(flips: Mapping[int, Gain], numbers: State, error: float = 0.0) -> float:
    """What flips of some groups at once may bring at best, where they err one by one."""
    return sum(flips[n][0] for n in numbers) + math.hypot(error, *(flips[n][1] for n in numbers))


def prior_of(groups: Iterable[Group], cache: PatternCache, here: Conditions) -> Prior | None:
    """What a cache knows of the choices in a model; None if it knows none of its patterns.

    Args:
        groups: The choices.
        cache: The cache.
        here: Where the model is tuned.
    """
    by_pattern: dict[str, list[Group]] = {}
    for group in groups:
        by_pattern.setdefault(group.pattern, []).append(group)
    estimates: dict[_Key, GroupEstimate] = {}
    chosen: dict[Form, set[str]] = {}
    for signature, same in by_pattern.items():
        outcome, distance = _nearest(cache, signature, here)
        if outcome is None:
            continue
        of_place = {(each.role, each.form): each for each in outcome.choices}
        for group in same:
            found = of_place.get((group.role, group.form.value))
            if found is None:
                continue
            estimates[_key(group)] = _estimate(found, outcome, distance, here)
            if found.is_chosen:
                chosen.setdefault(group.form, set()).update(group.nodes)
    named = {form: frozenset(names) for form, names in chosen.items()}
    return Prior(estimates, named) if estimates else None


def _key(group: Group) -> _Key:
    return group.pattern, group.role, group.form


def _estimate(
    found: ChoiceOutcome, outcome: PatternOutcome, distance: float, here: Conditions
) -> GroupEstimate:
    is_like = outcome.conditions.is_like(here)
    is_close = is_like and distance <= _NEAR
    is_near, is_unfinished = is_close and outcome.is_settled, is_close and not outcome.is_settled
    is_same = is_near and not distance
    if found.gain is None or not is_like or found.share < _LEAST_SHARE:
        return GroupEstimate(found.is_chosen, is_near, is_same, is_unfinished=is_unfinished)
    gain = min(max(found.gain / found.share, -_LARGEST), _LARGEST)
    error = min(math.hypot(found.error / found.share, _ELSEWHERE * gain), _LARGEST)
    error += _OTHER_SHAPES if distance else 0.0
    return GroupEstimate(found.is_chosen, is_near, is_same, gain, error, is_unfinished)


def _nearest(
    cache: PatternCache, signature: str, here: Conditions
) -> tuple[PatternOutcome | None, float]:
    """The outcome that says most of a pattern, and how far away its shapes are."""
    dims = scalable(signature).dims
    best: tuple[tuple[bool, float, bool, int], PatternOutcome | None] = ((True, 0.0, True, 0), None)
    for age, outcome in enumerate(reversed(cache.outcomes_of(signature))):
        conditions, distance = outcome.conditions, _distance(dims, outcome.scalable.dims)
        if outcome.signature != signature:
            distance = max(_ANOTHER, distance)
        rank = not conditions.is_like(here), distance, conditions != here, age
        if best[1] is None or rank < best[0]:
            best = rank, outcome
    return best[1], best[0][1]


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """How much dims differ on average; infinite if there is a dim more."""
    if len(one) != len(other):
        return math.inf
    apart = (abs(math.log2(max(1, a) / max(1, b))) for a, b in zip(one, other, strict=True))
    return sum(apart) / max(1, len(one))
