"""The strategy of subgraph mode: what subgraphs promise is tried on the whole model, in few builds.

Assemblies of the whole model are compared first. Then the costs are put right by what was seen in
them, layer by layer, and the cheapest assembly is found anew; where it differs from the best one so
far, groups are flipped, those with the largest expected gain first, all together, and in halves if
that is not faster. At last come flips that the costs advise against, but not by much: one by one,
or, where builds take long, all that could be right together, so that one model tells of them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from qdqtune.config import SUBGRAPH
from qdqtune.records._tuning import Batch
from qdqtune.search._space import State
from qdqtune.search.strategies._strategy import (
    DOUBTS,
    NO_TIME,
    NOTHING,
    SEEDS,
    Effort,
    Score,
    SearchTask,
    SteppedStrategy,
    Stepping,
    Steps,
    speedup_of,
)
from qdqtune.search.subgraphs._assembly import assemble_closed
from qdqtune.search.subgraphs._choices import Choices
from qdqtune.search.subgraphs._costs import Costs, form_in, gain_of, refined
from qdqtune.search.subgraphs._observed_costs import ObservedCosts

SCHEMES = "schemes"
BATCHES = "batches"
WITHOUT_REFUSED = "{} without what has no kernel"
_LAST = "against the best seed"

# What a flip must have, in standard errors, to be tried again, and to be taken.
_PROMISING = 0.5
_PROBABLE = 1.0
# Expected gains below this are not worth a build, and not one that takes long.
_LEAST_GAIN, _LEAST_CLEAR_GAIN = 0.002, 0.005
# Batches, and parts of them, that fail before the rest is left as it is.
_MOST_FAILURES, _MOST_COSTLY_FAILURES = 3, 1
# Rounds of doubts that may bring nothing.
_MOST_FRUITLESS = 2
# Where builds take long: choices that are tried against the costs' advice and may bring nothing,
# and what each may lose by the costs.
_MOST_HOPES, _MOST_LOSS = 3, 0.05
# With a larger part of the time in layers that are compiled as a whole, costs are guesses.
_MOST_DIVIDED = 0.5
# Candidates beside the seeds, as a rule.
_USUAL_STEPS = 6
# How wrong the costs may be about a group, as a part of what it costs: of one that was seen in a
# whole model in both forms, and of others.
_ERROR_SEEN, _ERROR_GUESSED = 0.1, 0.3
# What another way to quantize a group may save of what it costs.
_ERROR_OF_RIVAL = 0.15


@dataclass(frozen=True, kw_only=True)
class SubgraphTask(SearchTask):
    """What a strategy of subgraph mode searches in: assemblies of profiled subgraphs.

    Attributes:
        choices: Which choices of the space make up the units of an assembly.
        costs: What the subgraphs told of the units.
        alike: Units of equal content, which are flipped together, by the numbers of all their
            forms; those that only move values are not among them: they follow their neighbours.
        incremental: Whether anything is tried beside the seeds.
        frugal: Whether candidates are so costly that each has to tell of many groups.
        told: Choices whose own layers the costs were taken from: nothing is predicted of them.
        refused: Names of ops that the engine is known to have no kernel for.
    """

    choices: Choices
    costs: Costs
    alike: Sequence[State]
    incremental: bool = True
    frugal: bool = False
    told: frozenset[State] = frozenset()
    refused: frozenset[str] = frozenset()

    workflow: ClassVar[str] = SUBGRAPH


class AssemblySearch(SteppedStrategy):
    """Tries assemblies on the whole model.

    Attributes:
        predictions: Speedup of each choice that was asked about over its reference (the first of
            the two), by the costs as they were known then.
    """

    workflow: ClassVar[str] = SUBGRAPH

    def __init__(self, task: SubgraphTask) -> None:
        super().__init__(task)
        self._choices = task.choices
        self._costs = task.costs
        self._alike = task.alike
        self._incremental = task.incremental
        self._frugal = task.frugal
        self.predictions: dict[tuple[State, State], float] = {}
        self.refused = task.space.like_ops(task.refused)
        self._sources = frozenset(state - self.refused for state in task.told)
        self._observed: dict[State, ObservedCosts] = {}
        self._fixed: dict[int, bool] = {}
        self._failures = 0

    @property
    def _least_gain(self) -> float:
        """The expected gain that is worth a build."""
        return _LEAST_CLEAR_GAIN if self._frugal else _LEAST_GAIN

    @property
    def _most_failures(self) -> int:
        """How many batches may fail."""
        return _MOST_COSTLY_FAILURES if self._frugal else _MOST_FAILURES

    @property
    def _usual_count(self) -> int:
        return len(self.task.seeds) + (_USUAL_STEPS if self._incremental else 0)

    @property
    def _trial_size(self) -> int:
        return 0

    @property
    def is_opaque(self) -> bool:
        """Whether candidates are costly, and their layers tell next to nothing of their parts."""
        seen = [each for each in self._observed.values() if each.quantized]
        divided = (each.divided_ms > _MOST_DIVIDED * each.total_ms for each in seen)
        return self._frugal and bool(seen) and all(divided)

    def observe(self, state: State, layers: object) -> None:
        """Take in where the time of a candidate goes, before its score is told."""
        assert isinstance(layers, ObservedCosts)
        self._observed.pop(state, None)
        self._observed[state] = layers

    def steps(self) -> Steps:
        """Everything it asks, one trial after the other."""
        yield from self._compare_seeds()
        if not self._incremental or self.is_opaque:
            return
        yield from self._use_schemes()
        yield from self._refine()
        if self._frugal:
            yield from self._hope()
            return
        fruitless = 0
        while self._room > 1 and fruitless < _MOST_FRUITLESS:
            before = self.best
            yield from self._doubt()
            fruitless = fruitless + 1 if self.best == before else 0
            yield from self._refine()
        yield from self._compare_with_best_seed(_LAST)

    def _scores(
        self, reference: State, states: Iterable[State], effort: Effort, stage: str
    ) -> Stepping[dict[State, Score]]:
        """Scores of states that are new, in one trial; one candidate is left for the last stage."""
        new = list(states)
        reserve = 0 if stage in (SEEDS, _LAST) or self._frugal else 1
        wanted = {self.space.key(s) for s in new if self._is_new(reference, s, effort)}
        self.is_cut_short |= len(wanted) > self._room - reserve
        return (yield from self._compare(reference, new, effort, stage, reserve))

    def _ask_once(
        self, reference: State, states: Iterable[State], effort: Effort, stage: str, reserve: int
    ) -> Stepping[dict[State, Score]]:
        """Predict what is asked about before it is timed."""
        asked, costs = list(states), self._now()
        before_ms = self._as_seen(costs, reference).total_ms(self._units(reference))
        for state in asked if not self.is_opaque else ():
            after_ms = self._as_seen(costs, state).total_ms(self._units(state))
            is_known = 0.0 < before_ms < math.inf and 0.0 < after_ms < math.inf
            if state not in self._sources:
                predicted = before_ms / after_ms if is_known else 1.0
                self.predictions.setdefault((reference, state), predicted)
        return (yield from super()._ask_once(reference, asked, effort, stage, reserve))

    def _as_seen(self, costs: Costs, state: State) -> Costs:
        """The costs, with those of units that a choice has in another way as they were seen."""
        real, quantized = self.space.closed(state), list(costs.quantized_ms)
        for number in self._choices.otherwise(real):
            around = self._choices.around[self._choices.unit(number)]
            for seen, model in self._observed.items():
                if self.space.closed(seen) & around == real & around and number < len(quantized):
                    quantized[number] = model.unit_ms.get(number, quantized[number])
        return replace(costs, quantized_ms=tuple(quantized))

    def _units(self, state: State) -> State:
        return self._choices.units(self.space.closed(state))

    def _to(self, units: State) -> State:
        """The incumbent with these units in these forms, and no others."""
        return self._choices.flipped(self.best, self._units(self.best) ^ units)

    def _closed(self, units: State) -> State:
        return self._units(self._to(units))

    def _now(self) -> Costs:
        """The costs as they are known by now, those in the incumbent first."""
        latest = [self._observed[state] for state in reversed(self._observed) if state != self.best]
        return refined(self._costs, latest, self._observed.get(self.best))

    def _compare_seeds(self) -> Steps:
        states: dict[State, str] = {}
        for name, state in self.task.seeds.items():
            rest = state - self.refused
            if self.space.placement(rest):
                told = name if rest == state else WITHOUT_REFUSED.format(name)
                states.setdefault(rest, told)
        scores = yield from self._scores(NOTHING, states, Effort.CONFIRM, SEEDS)
        self._take_best_seed(scores)
        self._fixed.update((number, False) for number in self._choices.units(self.refused))
        for state, score in scores.items():
            name = states.get(state) or WITHOUT_REFUSED.format(states[self.spared[state]])
            self._note(name, NOTHING, state, score, accepted=state == self.best)

    def _use_schemes(self) -> Steps:
        """Quantize what the best seed quantizes otherwise by its scheme, where that costs less."""
        own = self._observed.get(self.best)
        others = [seen for state, seen in self._observed.items() if state != self.best]
        if own is None or not own.otherwise or self._room <= 1:
            return
        costs = refined(self._costs, others)
        saved: dict[int, float] = {}
        for number in own.otherwise:
            usual, seen = costs.form_ms(number), own.unit_ms.get(self._choices.unit(number), 0.0)
            if usual is not None and seen > usual:
                saved[number] = seen - usual
        total = self._now().total_ms(own.quantized)
        if not saved or sum(saved.values()) < self._least_gain * total:
            return
        before, state = self.best, self._choices.with_schemes(self.best, saved)
        self.predictions[before, state] = total / (total - sum(saved.values()))
        scores = yield from self._scores(before, [state], Effort.CONFIRM, SCHEMES)
        for score in scores.values():
            accepted = score.certainty > _PROBABLE
            self._add(SCHEMES, (len(saved), 0), before, state, score, accepted=accepted)
            if accepted:
                self._accept(state, score.gain)

    def _refine(self) -> Steps:
        """Go to the cheapest assembly by the costs as they are known, as long as it is faster."""
        while self._room > 1 and self._failures < self._most_failures:
            flips, gain = self._to_cheapest(self._now())
            if not flips or gain < self._least_gain:
                return
            before = self.best
            yield from self._take_or_halve(flips)
            if self.best == before:
                return

    def _to_cheapest(self, costs: Costs) -> tuple[list[State], float]:
        """Flips that lead to the cheapest assembly, as `_by_gain` has them, and what they gain."""
        now = self._units(self.best)
        target = assemble_closed(costs, self._closed, self._fixed)
        differing = (part & (now ^ target) for part in self._alike)
        flips = self._by_gain(costs, now, [part for part in differing if part])
        # What is outside all units is not in the cut, and may cost more than the last ones save.
        parts = (NOTHING.union(*flips[:count]) for count in range(1, len(flips) + 1))
        gains = [gain_of(costs, now ^ part, now) for part in parts]
        most = max(range(len(gains)), key=gains.__getitem__, default=0)
        return flips[: most + 1], gains[most] if gains else 0.0

    def _by_gain(self, costs: Costs, now: State, flips: Iterable[State]) -> list[State]:
        """Flips with the largest expected gain first."""
        expected = {flip: gain_of(costs, now ^ flip, now) for flip in flips}
        return sorted(expected, key=lambda flip: (-expected[flip], sorted(flip)))

    def _take_or_halve(self, flips: Sequence[State]) -> Steps:
        """Make all the flips; if that is not faster, one half of them, or the other, and so on."""
        waiting = [list(flips)]
        while waiting and self._room > 1 and self._failures < self._most_failures:
            batch = waiting.pop(0)
            costs, now = self._now(), self._units(self.best)
            if gain_of(costs, now ^ NOTHING.union(*batch), now) < self._least_gain:
                self._fix(batch, now)
                continue
            state = self._to(now ^ NOTHING.union(*batch))
            scores = yield from self._scores(self.best, [state], Effort.CONFIRM, BATCHES)
            score = scores.get(state)
            if score is None:  # it is what is there, or was tried as a seed and is not faster
                is_same = self.space.key(state) == self.space.key(self.best)
                if is_same or len(batch) == 1:
                    self._fix(batch, now)
                else:
                    waiting[:0] = self._halves(now, batch)
                continue
            if self._is_taken(BATCHES, state, score):
                return
            self._failures += 1
            if len(batch) == 1:
                self._fix(batch, now)
                continue
            waiting[:0] = self._halves(now, batch)

    def _halves(self, now: State, batch: Sequence[State]) -> list[list[State]]:
        """A batch that failed in two, without the flips that its layers have shown to be wrong."""
        costs = self._now()
        ordered = self._by_gain(costs, now, batch)
        kept = [flip for flip in ordered if gain_of(costs, now ^ flip, now) > 0.0]
        self._fix([flip for flip in ordered if flip not in kept], now)
        if len(kept) < len(ordered):
            return [kept] if kept else []
        middle = (len(kept) + 1) // 2
        return [kept[:middle], kept[middle:]]

    def _fix(self, flips: Iterable[State], now: State) -> None:
        """Leave groups as they are from here on."""
        for number in NOTHING.union(*flips):
            self._fixed[number] = number in now

    def _doubt(self) -> Steps:
        """Try what the costs advise against, as they may be wrong; take what is faster.

        That is flips of groups, and other ways to quantize them.
        """
        costs, now = self._now(), self._units(self.best)
        worth = {**self._hopeful(costs, now), **self._rivals(costs, now)}
        new = [state for state in worth if self._is_new(self.best, state, Effort.SCREEN)]
        ranked = sorted(new, key=lambda state: (-worth[state], sorted(state)))
        hopeful = ranked[: max(0, min(self.limits.at_once, self._room - 1))]
        before = self.best
        scores = yield from self._scores(before, hopeful, Effort.SCREEN, DOUBTS)
        for state, score in scores.items():
            self._note(DOUBTS, before, state, score, accepted=False)
        good = [state for state, score in scores.items() if score.certainty > _PROMISING]
        if good:
            good.sort(key=lambda state: -scores[state].gain)
            yield from self._take_changes(before, good)

    def _take_changes(self, before: State, good: Sequence[State]) -> Steps:
        """Make all changes that looked good; if that is not faster, only the best of them."""
        together, changed = before, NOTHING
        for state in good:
            units = self._choices.touched(before ^ state)
            if changed.isdisjoint(units):  # else they are faster in another form
                together = (together - (before - state)) | (state - before)
                changed |= units
        for candidate in dict.fromkeys((together, good[0])):
            scores = yield from self._scores(before, [candidate], Effort.CONFIRM, DOUBTS)
            score = scores.get(candidate)
            if score is not None and self._is_taken(DOUBTS, candidate, score):
                return

    def _hope(self) -> Steps:
        """Try what would be cheapest if the costs were wrong in its favor.

        Its layers tell of all groups in which it differs whether they were.
        """
        fruitless = 0
        while self._room > 0 and fruitless < _MOST_HOPES:
            before, state = self.best, self._hopeful_state()
            if state is None:
                return
            scores = yield from self._scores(before, [state], Effort.CONFIRM, DOUBTS)
            if state not in scores:
                return
            self._is_taken(DOUBTS, state, scores[state])
            yield from self._refine()
            fruitless = fruitless + 1 if self.best == before else 0

    def _hopeful_state(self) -> State | None:
        """The cheapest choice if its costs were as wrong as they may be, or else the likeliest."""
        costs, now = self._now(), self._units(self.best)
        hoped = self._hoped(costs, now)
        flips, gain = self._to_cheapest(hoped)
        if gain < self._least_gain:
            flips = self._cheap_flips(costs, hoped, now)
        for count in range(len(flips), 0, -1):
            state = self._to(now ^ NOTHING.union(*flips[:count]))
            is_seen = state in self._observed or state in self._sources
            if not is_seen and self._is_new(self.best, state, Effort.CONFIRM):
                return state
        return None

    def _cheap_flips(self, costs: Costs, hoped: Costs, now: State) -> list[State]:
        """Flips that cost little all together, those first that are likeliest to gain."""
        odds: dict[State, float] = {}
        for flip in (flip for part in self._alike for flip in self._flips(part, now)):
            loss, doubt = -gain_of(costs, now ^ flip, now), gain_of(hoped, now ^ flip, now)
            if self._fixed.keys().isdisjoint(flip) and doubt + loss > 0.0:
                odds[flip] = loss / (doubt + loss)
        taken: list[State] = []
        for flip in sorted(odds, key=lambda flip: (odds[flip], sorted(flip))):
            together = NOTHING.union(*taken, flip)
            is_apart = {self._choices.unit(n) for n in flip}.isdisjoint(
                self._choices.unit(n) for other in taken for n in other
            )
            if is_apart and gain_of(costs, now ^ together, now) > -_MOST_LOSS:
                taken.append(flip)
        return taken

    def _hoped(self, costs: Costs, now: State) -> Costs:
        """The costs if they were wrong in favor of whatever is not chosen now.

        The more often a form was seen in whole models, the less its cost can be wrong.
        """
        count = len(costs.float_ms)

        def hoped(unit: int, number: int | None, ms: float | None) -> float | None:
            if ms is None or form_in(now, unit, count) == number:
                return ms
            return ms * (1.0 - self._error(unit, number) / max(1, self._times_seen(unit, number)))

        return replace(
            costs,
            float_ms=tuple(hoped(n, None, ms) or 0.0 for n, ms in enumerate(costs.float_ms)),
            quantized_ms=tuple(hoped(n, n, ms) for n, ms in enumerate(costs.quantized_ms)),
            borderless_ms=tuple(hoped(n, n + count, ms)
                                for n, ms in enumerate(costs.borderless_ms)),
        )  # fmt: skip

    def _hopeful(self, costs: Costs, now: State) -> dict[State, float]:
        """Flips that could gain if the costs were wrong, with what they could."""
        total, count = costs.total_ms(now), len(costs.float_ms)
        worth: dict[State, float] = {}
        for part in self._alike:
            for flip in self._flips(part, now):
                if not self._fixed.keys().isdisjoint(flip):
                    continue
                after = now ^ flip
                expected = gain_of(costs, after, now)
                units = {self._choices.unit(number) for number in flip}
                doubt = sum(costs.float_ms[n] * self._error(n, form_in(after, n, count))
                            for n in units) / total  # fmt: skip
                if expected + doubt > self._least_gain:
                    worth[self._to(after)] = expected + doubt
        return worth

    def _flips(self, part: State, now: State) -> list[State]:
        """What makes units of equal content all float, all quantized or all borderless."""
        count = len(self._costs.float_ms)
        quantized = frozenset(number for number in part if number < count)
        targets = (NOTHING, quantized, part - quantized)
        flips = [frozenset(part & now) ^ target for target in targets]
        return [flip for flip in dict.fromkeys(flips) if flip]

    def _rivals(self, costs: Costs, now: State) -> dict[State, float]:
        """Other ways to quantize what is quantized, with what they could gain."""
        total = costs.total_ms(now)
        worth: dict[State, float] = {}
        for part in self._alike:
            units = [n for n in sorted(part & now) if self._choices.of_rival[n]]
            hope = sum(costs.form_ms(n) or 0.0 for n in units) * _ERROR_OF_RIVAL / total
            for ways in (self._choices.with_schemes, self._choices.with_rivals):
                state = ways(self.best, units)
                if state != self.best and hope > self._least_gain:
                    worth[state] = hope
        return worth

    def _error(self, unit: int, form: int | None) -> float:
        """How wrong the costs may be about a unit in the form that a number stands for."""
        return _ERROR_SEEN if self._times_seen(unit, form) else _ERROR_GUESSED

    def _times_seen(self, unit: int, form: int | None) -> int:
        """In how many whole models a unit was seen in the form that a number stands for."""
        count = len(self._costs.float_ms)
        seen = (form_in(each.quantized, unit, count) for each in self._observed.values())
        return sum(each == form for each in seen)

    def _is_taken(self, stage: str, state: State, score: Score) -> bool:
        """Let a choice be the incumbent, if it is probably better."""
        accepted = score.certainty > _PROBABLE
        self._note(stage, self.best, state, score, accepted=accepted)
        if accepted:
            self._accept(state, score.gain)
        return accepted

    def _note(
        self, stage: str, before: State, after: State, score: Score, *, accepted: bool
    ) -> None:
        old, new = self._units(before), self._units(after)
        had, has = (frozenset(map(self._choices.unit, each)) for each in (old, new))
        changed = len(has - had), len(had - has)
        self._add(stage, changed, before, after, score, accepted=accepted)

    def _add(
        self,
        stage: str,
        changed: tuple[int, int],
        before: State,
        after: State,
        score: Score,
        *,
        accepted: bool,
    ) -> None:
        """Note what was tried: how many groups were quantized and dropped, and what came of it."""
        if score.failure == NO_TIME:
            return
        predicted = self.predictions.get((before, after))
        measured = None if score.failure is not None else speedup_of(score.gain)
        self.batches.append(Batch(stage, *changed, predicted, measured, score.error, accepted))
