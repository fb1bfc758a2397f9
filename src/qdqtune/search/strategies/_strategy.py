"""The interface of search strategies, and what passes through it: tasks, trials and scores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, TypeVar

from qdqtune.config import REGION
from qdqtune.records._tuning import Batch
from qdqtune.search._prior import Prior
from qdqtune.search._space import Space, State

SEEDS = "seeds"
"""The stage of the first trials: whole-model choices against the float model."""

DOUBTS = "doubts"
"""The stage in which flips are tried that a cache, or the costs of subgraphs, are not sure of."""

NOTHING: State = frozenset()
"""The float model."""

NO_TIME = "there was no time for it"
"""Why a candidate failed that was not tried at all."""

FAR = 0.05
"""A log speedup over what a cache suggests that says that it does not know the model after all."""

_LARGEST_GAIN = 100.0
# Candidates for each of several workers, which all time the reference, too.
_FEW = 2

# What a seed must be better by, in standard errors, than what a cache suggests.
_PROBABLE = 1.0
# Causes for which the seeds are refused, one behind the other, until what is left is given up.
_MOST_CAUSES = 3


class Effort(Enum):
    """How long a comparison may take: a few rounds sort out, more decide."""

    SCREEN = "screen"
    CONFIRM = "confirm"


@dataclass(frozen=True)
class Trial:
    """Candidates to be timed against a reference, in one interleaved run.

    Attributes:
        reference: What they are compared with.
        candidates: What is in question.
        effort: How well it has to be known.
        stage: What the search is at, for people.
    """

    reference: State
    candidates: tuple[State, ...]
    effort: Effort = Effort.CONFIRM
    stage: str = "search"


@dataclass(frozen=True)
class Score:
    """How much faster than the reference a candidate is.

    Attributes:
        gain: Logarithm of reference over candidate latency: above 0 where the candidate is faster.
        error: Standard error of it.
        failure: Why the candidate could not be timed; None when it was.
        refused: Names of the ops that the engine has no kernel for, if it names any.
    """

    gain: float
    error: float
    failure: str | None = None
    refused: tuple[str, ...] = ()

    @classmethod
    def failed(cls, why: str, refused: Sequence[str] = ()) -> Score:
        """The score of a candidate that the engine would not take.

        Args:
            why: What it said.
            refused: The ops that this is about, if it names any.
        """
        return cls(-math.inf, 0.0, why, tuple(refused))

    @property
    def certainty(self) -> float:
        """The gain in standard errors."""
        if self.failure is not None:
            return -math.inf
        if self.error > 0.0:
            return self.gain / self.error
        return math.copysign(math.inf, self.gain) if self.gain else 0.0


def speedup_of(gain: float) -> float:
    """What a gain comes to as a ratio of latencies.

    Args:
        gain: The logarithm of it; a sum of many that make no sense has no larger speedup than
            numbers can tell.
    """
    return math.exp(min(max(gain, -_LARGEST_GAIN), _LARGEST_GAIN))


@dataclass(frozen=True)
class Limits:
    """How much a search may do.

    Attributes:
        sweeps: Patience: among many groups, batches in a row that may bring nothing before the next
            kind of step is tried; among few, a measure of the candidates in a row that may.
        benchmarks: Candidates built and timed, at most.
        together: Candidates compared in one trial.
        least_gain: Expected relative gain below which a candidate is not worth a benchmark.
        workers: Independent trials that can be answered side by side.
        confirming: Candidates until what a cache knows is confirmed, those of the seeds included.
    """

    sweeps: int = 2
    benchmarks: int = 200
    together: int = 4
    least_gain: float = 0.0002
    workers: int = 1
    confirming: int = 50

    @property
    def at_once(self) -> int:
        """Candidates to choose at a time: each worker should have a few to compare."""
        return self.together if self.workers == 1 else max(self.together, _FEW * self.workers)


def _anything(_: State) -> bool:
    return True


@dataclass(frozen=True)
class SearchTask:
    """What a strategy searches in.

    Attributes:
        space: What can be chosen.
        seeds: Whole-model choices to begin with, by name; the float model is always one.
        limits: How much it may do.
        seed: Decides what chance decides.
        allows: Whether a choice is worth a benchmark: it may be accurate enough.
        prior: What a pattern cache knows of the choices, if there is one.
    """

    space: Space
    seeds: Mapping[str, State] = field(default_factory=dict)
    limits: Limits = Limits()
    seed: int = 0
    allows: Callable[[State], bool] = _anything
    prior: Prior | None = None

    workflow: ClassVar[str] = REGION
    """The workflow that such a task is part of."""


class SearchStrategy(ABC):
    """Decides what to measure next: `ask` returns trials, `tell` takes their scores.

    A strategy sees no engine, no file and no clock. With the same task and the same scores it must
    ask for the same trials: a run is resumed by searching again with the scores that are recorded.

    Args:
        task: What to search in; that of subgraph mode is a `SubgraphTask`.

    Attributes:
        workflow: The workflow that it is for: `region` or `subgraph`.
        task: What it searches in.
        best: The best choice so far.
        gain: Its estimated log speedup over the float model.
        is_cut_short: Whether it would have gone on if it had been allowed more candidates.
        batches: What was tried in batches, for the report of subgraph mode.
    """

    workflow: ClassVar[str] = REGION

    def __init__(self, task: SearchTask) -> None:
        self.task = task
        self.best = NOTHING
        self.gain = 0.0
        self.is_cut_short = False
        self.batches: list[Batch] = []

    @property
    def planned(self) -> int:
        """About how many candidates will have been asked about at the end."""
        return self.task.limits.benchmarks

    @abstractmethod
    def ask(self) -> Sequence[Trial]:
        """The trials that wait for an answer; none at the end of the search.

        They are independent of each other: they may be answered in any order.
        """

    @abstractmethod
    def tell(self, trial: Trial, scores: Sequence[Score]) -> None:
        """Answer one of the trials, with one score per candidate, in order.

        Raises:
            ValueError: If the trial was not asked for, or the number of scores is wrong.
        """

    def observe(self, state: State, layers: object) -> None:  # noqa: B027 (not every one wants it)
        """Take in the costs of a candidate's layers, before its score is told; see subgraph mode.

        Args:
            state: The candidate.
            layers: Its `ObservedCosts`.
        """

    def rounds(self) -> Iterator[list[Trial]]:
        """All trials of the search, up to one per worker at a time.

        Those of a round must be told before the next one. They end before the trial that would
        exceed the number of candidates allowed.
        """
        left, workers = self.task.limits.benchmarks, self.task.limits.workers
        while trials := self.ask():
            for start in range(0, len(trials), workers):
                fitting: list[Trial] = []
                for trial in trials[start : start + workers]:
                    left -= len(trial.candidates)
                    if left >= 0:
                        fitting.append(trial)
                if fitting:
                    yield fitting
                if left < 0:
                    self.is_cut_short = True
                    return

    def trials(self) -> Iterator[Trial]:
        """All trials of the search, one after the other; each must be told before the next."""
        for trials in self.rounds():
            yield from trials


T = TypeVar("T")
Stepping = Generator[Sequence[Trial], Sequence[Sequence[Score]], T]
"""Independent trials, answered with the scores of each, and what comes of them."""
Steps = Stepping[None]


class SteppedStrategy(SearchStrategy):
    """A strategy written as a generator of trials.

    Attributes:
        asked: Candidates that were asked about.
        refused: Groups that stay float, as the engine has no kernel for them.
        spared: Seeds that were tried again without such groups, by what was left of them.
    """

    def __init__(self, task: SearchTask) -> None:
        super().__init__(task)
        self.asked = 0
        self.refused: State = NOTHING
        self.spared: dict[State, State] = {}
        self._seeds = list(dict.fromkeys(map(task.space.closed, task.seeds.values())))
        self._best_seed: tuple[State, float] = (NOTHING, 0.0)
        self._known: dict[tuple[str, str, Effort], Score] = {}
        prior = task.prior
        # A known choice that was left out of the seeds is not accurate enough.
        known = None if prior is None else task.space.closed(prior.state(task.space))
        is_sure = prior is not None and prior.is_sure(task.space)
        self._expected = known if is_sure and known in (NOTHING, *self._seeds) else None
        self._steps: Steps | None = None
        self._trials: Sequence[Trial] = ()
        self._told: dict[Trial, Sequence[Score]] = {}

    @property
    def space(self) -> Space:
        """What can be chosen."""
        return self.task.space

    @property
    def limits(self) -> Limits:
        """How much it may do."""
        return self.task.limits

    @abstractmethod
    def steps(self) -> Steps:
        """Everything it asks, a few trials at a time."""

    @property
    def planned(self) -> int:
        """About how many candidates will have been asked about at the end."""
        return max(self.asked, min(self.limits.benchmarks, self._usual_count))

    @property
    def _usual_count(self) -> int:
        """Candidates that such a search usually needs."""
        return 12 + len(self.space.groups)

    def ask(self) -> Sequence[Trial]:
        """The trials that wait for an answer; none at the end of the search."""
        if self._steps is None:
            self._steps = self.steps()
            self._advance(self._steps, None)
        return [trial for trial in self._trials if trial not in self._told]

    def tell(self, trial: Trial, scores: Sequence[Score]) -> None:
        """Answer one of the trials.

        Raises:
            ValueError: If the trial was not asked for, or the number of scores is wrong.
        """
        if trial not in self.ask() or len(scores) != len(trial.candidates):
            raise ValueError("these are not the scores that were asked for")
        self._told[trial] = scores
        if len(self._told) == len(self._trials) and self._steps is not None:
            answers = [self._told[each] for each in self._trials]
            self._told = {}
            self._advance(self._steps, answers)

    def _advance(self, steps: Steps, answers: Sequence[Sequence[Score]] | None) -> None:
        """Go on to the next trials; a step without any needs no answer."""
        try:
            self._trials = steps.send(answers)  # type: ignore[arg-type]  # None begins
            while not self._trials:
                self._trials = steps.send([])
        except StopIteration:
            self._trials = ()

    @property
    def _room(self) -> int:
        """Candidates that may still be asked about."""
        return max(0, self.limits.benchmarks - self.asked)

    def _is_new(self, reference: State, state: State, effort: Effort) -> bool:
        """Whether a comparison would tell anything that is not known, and matters."""
        own, key = self.space.key(reference), self.space.key(state)
        is_known = key == own or (own, key, effort) in self._known
        return not is_known and self.refused.isdisjoint(state) and self.task.allows(state)

    def _compare(
        self,
        reference: State,
        states: Iterable[State],
        effort: Effort,
        stage: str,
        reserve: int = 0,
    ) -> Stepping[dict[State, Score]]:
        """Scores of states of which none is known, each placement once, a few to a trial.

        Args:
            reference: What they are compared with.
            states: What is in question; what there is no room for has no score.
            effort: How well it has to be known.
            stage: What the search is at.
            reserve: Candidates that are left for later.

        Returns:
            Scores by state; where seeds were refused, also those of what was left of them.
        """
        found = yield from self._ask_once(reference, states, effort, stage, reserve)
        if stage == SEEDS:
            waiting = found
            for _ in range(_MOST_CAUSES):
                again = self._spare(waiting, found)
                waiting = yield from self._ask_once(reference, again, effort, stage, reserve)
                found = {**found, **waiting}
        return found

    def _ask_once(
        self, reference: State, states: Iterable[State], effort: Effort, stage: str, reserve: int
    ) -> Stepping[dict[State, Score]]:
        wanted: dict[str, State] = {}
        for state in states:
            if self._is_new(reference, state, effort):
                wanted.setdefault(self.space.key(state), state)
        asked = list(wanted.values())[: max(0, self._room - reserve)]
        if not asked:
            return {}
        self.asked += len(asked)
        size = self._size_of_trials(len(asked))
        parts = (tuple(asked[start : start + size]) for start in range(0, len(asked), size))
        trials = [Trial(reference, part, effort, stage) for part in parts]
        answers = yield trials
        found: dict[State, Score] = {}
        for trial, scores in zip(trials, answers, strict=True):
            self._learn(trial, scores)
            found.update(zip(trial.candidates, scores, strict=True))
        own = self.space.key(reference)
        for state, score in found.items():
            self._known[own, self.space.key(state), effort] = score
        return found

    def _spare(self, new: Mapping[State, Score], found: Mapping[State, Score]) -> list[State]:
        """What is left of refused choices without the groups that the engine has no kernel for.

        Of the groups in a layer without a kernel, those are to blame that are in no choice that was
        built: a layer may be most of a model.

        Args:
            new: Scores of which no failure was looked at yet.
            found: All scores.
        """
        built = NOTHING.union(*(state for state in found if found[state].failure is None))
        failed = [state for state, score in new.items() if score.refused]
        for state in failed:
            blamed = (self.space.like_ops(new[state].refused) & state) - built
            if blamed != state:
                self.refused |= blamed
        left = {state - self.refused: state for state in failed if not self.refused >= state}
        new_seeds = {rest: state for rest, state in left.items() if rest != state}
        self.spared.update((rest, self.spared.get(s, s)) for rest, s in new_seeds.items())
        return list(new_seeds)

    def _scores(
        self, reference: State, states: Iterable[State], effort: Effort, stage: str
    ) -> Stepping[dict[State, Score]]:
        """Scores of states; what there is no room for has none."""
        return (yield from self._compare(reference, states, effort, stage))

    def _take_best_seed(self, scores: Mapping[State, Score]) -> State:
        """Begin with the best seed, if it is faster; returns the best of those that quantize."""
        best = max(scores, key=lambda state: scores[state].gain, default=NOTHING)
        if best in scores and scores[best].gain > 0.0:
            self._accept(best, scores[best].gain)
        self._best_seed = (self.best, self.gain)
        return best

    def _is_as_expected(self, scores: Mapping[State, Score]) -> Stepping[bool]:
        """Begin with what a cache suggests, if it knows the model, or with a seed near it.

        A seed that seems better is compared with it directly: the best of several owes something to
        luck. If it is much better, the cache is of another kind of model.

        Args:
            scores: Those of the seeds.
        """
        expected, best = self._expected, self.best
        if expected is None:
            return False
        own, rival = scores.get(expected, Score(0.0, 0.0)), scores.get(best, Score(0.0, 0.0))
        if own.failure is not None:
            return False
        if rival.gain - own.gain > max(own.error, rival.error):
            found = yield from self._compare(expected, [best], Effort.CONFIRM, DOUBTS)
            if best not in found or found[best].gain > FAR:
                return False
            if found[best].certainty > _PROBABLE:
                return True
        self.best, self.gain = expected, own.gain
        return True

    def _accept(self, state: State, gain: float) -> None:
        """Let a choice be the incumbent."""
        self.best = state
        self.gain += gain

    def _compare_with_best_seed(self, stage: str) -> Steps:
        """Steps were decided on noise: what they led to must still beat what they began with."""
        seed, gain = self._best_seed
        if self.best in (seed, NOTHING) or not self._room:
            return
        scores = yield from self._scores(seed, [self.best], Effort.CONFIRM, stage)
        if self.best in scores and scores[self.best].gain < 0.0:
            self.best, self.gain = seed, gain

    @property
    def _trial_size(self) -> int:
        """Candidates of one trial at most; 0 for all that are compared at once."""
        return self.limits.together

    def _size_of_trials(self, candidates: int) -> int:
        """The size of trials into which candidates are divided, so that no worker waits."""
        most, workers = self._trial_size or candidates, self.limits.workers
        if workers == 1:
            return most
        rounds = math.ceil(candidates / (workers * most))
        return math.ceil(candidates / (workers * rounds))

    def _learn(self, trial: Trial, scores: Sequence[Score]) -> None:
        """Take in the outcome of a trial; those asked together come in the order of asking."""
