"""Local search among many choices: from the best seed, by steps, the large ones first.

Whole-model seeds are compared; the best is the incumbent. Then it is cut: networks often gain where
many channels meet few pixels and lose before that, so that only what comes after some depth is
quantized, or only what comes before. Then sets of groups are flipped: all ops of one type, whole
patterns, all like ops, single groups that are worth it, and connected ones together; those with the
largest share of the latency first. A few flips at a time are screened against the incumbent; what
looked better is tried together, and in ever smaller parts of it, of which the best is taken. What
changed makes its neighbours worth another look; when nothing changes any more, the search is over.
At the end, groups that don't pay are dropped, and what came out must still beat the seed that it
began with.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Collection, Iterable, Mapping, Sequence

from qdqtune.search._prior import Gain
from qdqtune.search._space import State
from qdqtune.search.strategies._strategy import (
    DOUBTS,
    FAR,
    NOTHING,
    SEEDS,
    Effort,
    Score,
    SearchTask,
    SteppedStrategy,
    Stepping,
    Steps,
)

# Flips that are screened before the good ones are taken.
_BATCH = 12
# Single groups with a smaller share of the latency are flipped only with others.
_LEAST_SHARE = 0.004
# What a flip must have, in standard errors, to be tried again, and to be taken.
_PROMISING = 0.5
_PROBABLE = 1.0
# Parts of the latency after which a choice is cut to keep what is behind, or what is before; and
# how near to the best cut others are tried.
_CUTS_BEFORE = (0.12, 0.3, 0.5, 0.75)
_CUTS_BEHIND = (0.5, 0.85)
_NEARER = 0.08
_FIRST = "op types"
# Sizes of the connected sets that are flipped when everything smaller was tried.
_NEIGHBOURHOODS = (2, 3, 5, 8)
# Doubts of a cache at most, by patience, and what one may bring at least to be worth a benchmark.
_DOUBTS, _LEAST_HOPE = 16, 0.001
# The last steps, and the candidates that they may need.
_LAST = ("backward", "against the best seed")
_RESERVED = len(_LAST)
# A group that costs less than this, in standard errors, when it is missing does not pay.
_IDLE = -0.5


class LocalSearch(SteppedStrategy):
    """A search for many groups; the seed decides between what is equal."""

    def __init__(self, task: SearchTask) -> None:
        super().__init__(task)
        self._fruitless = 0
        self._random = random.Random(task.seed)
        self._given_up: set[str] = set()

    def steps(self) -> Steps:
        """Everything it asks, one trial after the other."""
        seeds = yield from self._scores(NOTHING, self._seeds, Effort.CONFIRM, SEEDS)
        best_seed = self._take_best_seed(seeds)
        if (yield from self._is_as_expected(seeds)) and (yield from self._is_confirmed()):
            return
        yield from self._cut(best_seed)
        for name, sets in self._stages().items():
            self._fruitless = 0
            before = self.best
            yield from self._try(sets, name)
            while before != self.best and self._fruitless < self.limits.sweeps:
                changed, before = before ^ self.best, self.best
                near = self.space.around(changed) | self.space.rivals(changed)
                yield from self._try(self._singles(near), "neighbours")
        yield from self._drop_what_does_not_pay()
        yield from self._compare_with_best_seed(_LAST[1])
        self.is_cut_short |= not self._room

    def _is_confirmed(self) -> Stepping[bool]:
        """Flip what a cache is least sure of, as long as there is hope.

        Returns:
            Whether that is all: False if the last flips brought so much that there must be more.
        """
        last, tried, seen = self.gain, set[State](), dict[int, Gain]()
        most = min(self.limits.confirming, self.asked + _DOUBTS * self.limits.sweeps)
        while (room := min(most - self.asked, self._room) - _RESERVED) > 0:
            before, last = self.best, self.gain
            doubtful = self._doubtful(tried, seen)[: min(self.limits.at_once, room)]
            if not doubtful:
                break
            flips = [flip for _, flip in doubtful]
            tried.update(flips)
            states = [state for state, _ in doubtful]
            scores = yield from self._scores(before, states, Effort.SCREEN, DOUBTS)
            for state, flip in doubtful:
                score = scores.get(state)
                if len(flip) == 1 and score is not None and score.failure is None:
                    (number,) = flip
                    seen[number] = -score.gain if number in before else score.gain, score.error
            promising = [state for state in scores if scores[state].certainty > _PROBABLE]
            promising.sort(key=lambda state: -scores[state].certainty)
            yield from self._take_best_part([state ^ before for state in promising], DOUBTS)
            near = self.space.around(before ^ self.best)
            tried = {flip for flip in tried if flip.isdisjoint(near)}
        self.is_cut_short = self._room <= _RESERVED
        return self.gain - last < FAR

    def _doubtful(
        self, tried: Collection[State], seen: Mapping[int, Gain]
    ) -> list[tuple[State, State]]:
        """Choices that a cache is not sure of, and their flips, the most promising first.

        Args:
            tried: Flips that need not be tried again.
            seen: Gains of quantizing single groups that were measured here.
        """
        if self.task.prior is None:
            return []
        hopes = self.task.prior.doubts(self.space, self.best, seen)
        flips = sorted((flip for flip in hopes if hopes[flip] > _LEAST_HOPE and flip not in tried),
                       key=lambda flip: (-hopes[flip], sorted(flip)))  # fmt: skip
        found: dict[State, State] = {}
        for flip in flips:
            found.setdefault(self.space.switched(self.best, flip), flip)
        return [
            (state, flip)
            for state, flip in found.items()
            if self._is_new(self.best, state, Effort.SCREEN)
            and self.space.key(state) not in self._given_up
        ]

    def _cut(self, whole: State) -> Steps:
        """Keep what comes after some depth of a choice, then what comes before another."""
        depth = self._depths()
        for is_kept, cuts in ((operator.ge, _CUTS_BEFORE), (operator.lt, _CUTS_BEHIND)):
            states = {
                cut: frozenset(number for number in whole if is_kept(depth[number], cut))
                for near in cuts
                for cut in (near - _NEARER, near, near + _NEARER)
            }
            at_cuts = [states[cut] for cut in cuts]
            scores = yield from self._scores(self.best, at_cuts, Effort.SCREEN, "cuts")
            found = {cut: scores[states[cut]] for cut in cuts if states[cut] in scores}
            best = max(found, key=lambda cut: found[cut].gain, default=None)
            if best is not None and found[best].certainty > _PROMISING:
                near_best = (best - _NEARER, best, best + _NEARER)
                yield from self._take_best([states[cut] for cut in near_best], "cuts")
            whole = self.best or whole

    def _depths(self) -> list[float]:
        """How much of the latency is spent before each group, on the average of its ops."""
        index, before, spent = self.space.planner.index, dict[str, float](), 0.0
        share = {
            name: self.space.potential[number] / len(group.nodes)
            for number, group in enumerate(self.space.groups)
            for name in group.nodes
        }
        for node in index.nodes:
            before[node.name or ""] = spent
            spent += share.get(node.name or "", 0.0)
        total = spent or 1.0
        return [
            sum(before[name] for name in group.nodes) / len(group.nodes) / total
            for group in self.space.groups
        ]

    def _stages(self) -> dict[str, list[State]]:
        """Sets of groups to flip together, from large to small; each set once."""
        stages = {
            _FIRST: self.space.by(lambda group: group.op_type),
            "patterns": self.space.patterns,
            "like ops": self.space.by(lambda group: group.structure or group.nodes[0]),
        }
        seen: set[State] = set()
        found: dict[str, list[State]] = {}
        for name, sets in stages.items():
            new = [one for one in map(frozenset, sets.values()) if one not in seen]
            seen.update(new)
            found[name] = self._by_share(new)
        every = self.space.everything | self.space.other_forms
        singles = [one for one in self._singles(every) if one not in seen]
        return {**found, "single ops": singles, **self._neighbourhoods(seen.union(singles))}

    def _neighbourhoods(self, seen: set[State]) -> dict[str, list[State]]:
        """Connected groups around each one: where conversions cost, none of them pays alone."""
        found: dict[str, list[State]] = {}
        around = {number: frozenset({number}) for number in sorted(self.space.everything)}
        for size in _NEIGHBOURHOODS:
            new: dict[State, None] = {}
            for number, grown in around.items():
                while len(grown) < size and (near := sorted(self.space.around(grown) - grown)):
                    behind = [each for each in near if each > number]
                    grown |= {(behind or near)[0]}
                around[number] = grown
                for one in (grown, self.space.rivals(grown)):
                    if len(grown) == size and len(one) > 1 and one not in seen:
                        new[one] = None
            seen = seen.union(new)
            found[f"{size} neighbours"] = self._by_share(new)
        return found

    def _singles(self, numbers: Iterable[int]) -> list[State]:
        share = self.space.potential
        worth = [frozenset({n}) for n in sorted(numbers) if share[n] >= _LEAST_SHARE]
        self._random.shuffle(worth)
        return self._by_share(worth)

    def _by_share(self, sets: Iterable[State]) -> list[State]:
        """Sets that are worth it, those with the largest share first; the hopeless come last."""
        share, prior = self.space.potential, self.task.prior
        hopes = prior.hopes(self.space, self.best) if prior is not None else [0.0] * len(share)
        worth = {one: sum(share[number] for number in one) for one in sets}
        return sorted(
            (one for one in worth if worth[one] >= _LEAST_SHARE),
            key=lambda one: (all(hopes[number] < 0.0 for number in one), -worth[one]),
        )

    def _try(self, sets: Sequence[State], stage: str) -> Steps:
        """Flip sets of groups, some at a time, and take what is better."""
        # Large sets depend on each other: what one of them brings is taken before the next are.
        size = self.limits.at_once if stage == _FIRST else max(_BATCH, self.limits.at_once)
        for start in range(0, len(sets), size):
            self.is_cut_short = self.is_cut_short or self._room <= _RESERVED
            if self.is_cut_short or self._fruitless >= self.limits.sweeps:
                return
            before = self.best
            candidates: dict[State, State] = {}
            for one in sets[start : start + size]:
                for flip in (one & self.best, one - self.best - self.refused):
                    if flip:
                        candidates.setdefault(self.space.switched(self.best, flip), flip)
            scores = yield from self._scores(self.best, candidates, Effort.SCREEN, stage)
            promising = sorted(
                (state for state, score in scores.items() if score.certainty > _PROMISING),
                key=lambda state: -scores[state].certainty,
            )
            yield from self._take_best_part([candidates[state] for state in promising], stage)
            if self.best != before:
                self._fruitless = 0
            elif stage != _FIRST:
                self._fruitless += 1

    def _take_best_part(self, flips: Sequence[State], stage: str) -> Steps:
        """Make the first so many of the flips, best first: all, half, a quarter, ... or none."""
        parts: list[State] = []
        size = len(flips)
        while size:
            part = self.best
            for flip in reversed(flips[:size]):  # of flips that exclude each other the best stays
                part = self.space.switched(part, flip)
            parts.append(part)
            size //= 2
        yield from self._take_best(parts, stage)

    def _take_best(self, states: Iterable[State], stage: str) -> Steps:
        """Let the best of some choices be the incumbent, if it is probably better.

        What was given up for something better does not come back: noise may say of each of two
        that it is better than the other, and the search would go from one to the other for ever.
        """
        scores = yield from self._scores(self.best, states, Effort.CONFIRM, stage)
        new = [state for state in scores if self.space.key(state) not in self._given_up]
        best = max(new, key=lambda state: scores[state].gain, default=None)
        if best is not None and scores[best].certainty > _PROBABLE:
            self._given_up.add(self.space.key(self.best))
            # The best of several owes something to luck.
            self._accept(best, scores[best].gain - scores[best].error)

    def _drop_what_does_not_pay(self) -> Steps:
        """Take out groups whose absence was not seen to cost anything."""
        idle: dict[int, float] = {}
        for number in sorted(self.best):
            keys = self.space.key(self.best), self.space.key(self.best - {number})
            score = self._known.get((*keys, Effort.SCREEN))
            if score is not None and score.certainty > _IDLE:
                idle[number] = score.gain
        if not idle or not self._room:
            return
        less = self.best - frozenset(idle)
        scores = yield from self._scores(self.best, [less], Effort.CONFIRM, _LAST[0])
        if less in scores and scores[less].gain >= 0.0:
            self._accept(less, scores[less].gain)

    def _scores(
        self, reference: State, states: Iterable[State], effort: Effort, stage: str
    ) -> Stepping[dict[State, Score]]:
        """Scores of states, known or new; what there is no room for has none."""
        asked, own = list(states), self.space.key(reference)
        reserve = 0 if stage in (SEEDS, *_LAST) else _RESERVED
        yield from self._compare(reference, asked, effort, stage, reserve)
        asked += self.spared if stage == SEEDS else ()
        keys = {state: (own, self.space.key(state), effort) for state in asked}
        return {state: self._known[key] for state, key in keys.items() if key in self._known}
