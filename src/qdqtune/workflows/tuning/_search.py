"""The search: a strategy proposes trials, candidates are written and timed, and it gets the scores.

Every score is in the journal before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import statistics
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from qdqtune.config import REGION
from qdqtune.engines import _registry as registry
from qdqtune.engines._comparison import compare_files
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._pool import Job
from qdqtune.engines._timing import Round, gain_of
from qdqtune.engines._worker import Worker
from qdqtune.graph._fingerprint import model_digest
from qdqtune.qdq._insert import Inserter
from qdqtune.records._errors import EngineError, UsageError
from qdqtune.records._measurement import LayerTime, Measurement
from qdqtune.records._placement import Placement
from qdqtune.records._tuning import BY_BUDGET, BY_COUNT, ENGINE_FAILED, FINISHED, INTERRUPTED
from qdqtune.search._space import Space, State
from qdqtune.search.patterns._pattern_outcomes import PatternOutcome
from qdqtune.search.patterns._region_pattern import PatternView
from qdqtune.search.regions._scopes import scope_of, title_of
from qdqtune.search.strategies._strategy import NO_TIME, SEEDS, Effort, Score, Trial, speedup_of
from qdqtune.workflows.tuning._baseline import Baseline, Calibration
from qdqtune.workflows.tuning._effects import GroupEffects, pattern_outcomes
from qdqtune.workflows.tuning._final_round import Objective
from qdqtune.workflows.tuning._finalists import AccuratePart, Finalists
from qdqtune.workflows.tuning._journal import Journal
from qdqtune.workflows.tuning._modes import SearchProblem
from qdqtune.workflows.tuning._run_records import Candidate, TriedScheme, TuningRun
from qdqtune.workflows.tuning._time_budget import TOLD_AHEAD_S

_logger = logging.getLogger(__name__)

_FLOAT: State = frozenset()
_MOST_NAMED = 4
_ACCURATE = "accurate part"
# Once for the best seed, and once for what a search ends with.
_MOST_RESTARTS = 2
# Candidates that are tried because they are more accurate, where that is the objective.
_MORE_ACCURATE = 6
INACCURATE = "it is not accurate enough"
"""Why a candidate has no score."""


@dataclass
class CandidateEvaluator:
    """Evaluates the candidates that a search proposes, by measuring.

    Attributes:
        run: The run, with its target and its journal.
        plain: The float model.
        calibration: Writes candidates.
        problem: The search space, and whether layer times of candidates are needed.
        benchmarks: Candidates built and timed.
        failed: Those that the engine refused.
        last_failure: Why the last candidate failed, if all did, including known ones; None as soon
            as one did not.
        schemes_tried: The patterns with the schemes tried for each, as of the last snapshot.
        lock: Held while something is recorded.
    """

    run: TuningRun
    plain: Path
    calibration: Calibration
    problem: SearchProblem
    benchmarks: int = field(default=0, init=False)
    failed: int = field(default=0, init=False)
    last_failure: str | None = field(default="", init=False)
    schemes_tried: list[tuple[PatternView, list[TriedScheme]]] = field(
        default_factory=list, init=False
    )
    lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    _files: dict[str, Path] = field(default_factory=dict, init=False)
    # Everything that was tried, in order: its log speedup over the float model, why it failed, or
    # None if it was compared only with a candidate whose speedup is unknown.
    _tried: dict[State, float | str | None] = field(
        default_factory=lambda: {frozenset(): 0.0}, init=False
    )

    @cached_property
    def _ranges(self) -> str:
        return self.calibration.inserter.encoder.digest()

    @property
    def journal(self) -> Journal:
        """The journal with known and new measurements."""
        return self.run.journal

    @property
    def is_simulated(self) -> bool:
        """Whether the engine computes its times instead of measuring them."""
        return not registry.entry(self.run.request.engine).measures

    def missing(self, trial: Trial) -> list[State]:
        """Return the candidates of a trial that must be measured."""
        reference, effort = self.key(trial.reference), self.how(trial.effort)
        return [
            s for s in trial.candidates if not self.journal.knows(reference, self.key(s), effort)
        ]

    def answer(self, trials: Sequence[Trial], most: int | None = None) -> list[list[Score]]:
        """Return one score per candidate of each trial; those in the journal are not measured.

        The others are measured side by side, each trial by one worker.

        Args:
            trials: The candidates and their references.
            most: How many candidates of each trial may be measured; the others fail, which is not
                recorded.

        Raises:
            EngineError: If the engine no longer runs a reference.
        """
        known = [self._known(trial) for trial in trials]
        runs: dict[int, _TrialRun] = {}
        for number, trial in enumerate(trials):
            missing = [state for state in trial.candidates if state not in known[number]]
            if missing[:most]:
                self.problem.will_measure(trial)
                runs[number] = run = _TrialRun(self, trial, missing[:most])
                run.write()  # before anything is timed
        jobs = [Job(run.what, run.measure) for run in runs.values()]
        for number, found in zip(runs, self.run.pool.run(jobs), strict=True):
            known[number].update(found)
        return [self._answered(*each) for each in zip(trials, known, strict=True)]

    def _known(self, trial: Trial) -> dict[State, Score]:
        """Return the scores of a trial that are in the journal."""
        found: dict[State, Score] = {}
        for state in trial.candidates:
            known = self.journal.known(
                self.key(trial.reference), self.key(state), self.how(trial.effort)
            )
            if known is not None:
                found[state] = known
                self._write_again(state)
        if found:
            self._write_again(trial.reference)
        return found

    def _answered(self, trial: Trial, found: Mapping[State, Score]) -> list[Score]:
        """Take in the scores of a trial, and return them in the order of its candidates."""
        base = self._gain(trial.reference)
        for state, score in found.items():
            before = self._tried.setdefault(state, None)
            if score.failure is None:
                self.last_failure = None
                if base is not None:
                    self._tried[state] = base + score.gain
            else:
                if self.last_failure is not None:
                    self.last_failure = score.failure
                if not isinstance(before, float):
                    self._tried[state] = score.failure
        return [found.get(state) or Score.failed(NO_TIME) for state in trial.candidates]

    @property
    def tries(self) -> int:
        """How many choices the search asked about so far, whether or not they were known."""
        return len(self._tried) - 1

    def has_tried(self, state: State) -> bool:
        """Whether the search asked about a choice; it knows the float model."""
        return state in self._tried

    def speedups(self) -> dict[State, float]:
        """Return the log speedups of the choices that were measured, without the float model."""
        return {
            state: gain for state, gain in self._tried.items() if state and isinstance(gain, float)
        }

    def fastest_first(self) -> list[State]:
        """Return the choices that were measured, without the float model."""
        known = self.speedups()
        return sorted(known, key=lambda state: -known[state])

    def fastest_without_ranges(self) -> State | None:
        """Return the fastest choice that was tried and does not depend on calibration."""
        space = self.problem.space
        found = [
            (gain, state)
            for state, gain in self.speedups().items()
            if space.placement(state) and not space.needs_ranges(state)
        ]
        return max(found, key=lambda each: each[0], default=(0.0, None))[1]

    def _gain(self, state: State) -> float | None:
        found = self._tried.get(state)
        return found if isinstance(found, float) else None

    def file_of(self, state: State) -> Path:
        """Return the candidate's file."""
        key = self.key(state)
        if key not in self._files:
            placement = self.problem.space.placement(state)
            file = self._written(key, placement, self.calibration.inserter)
            self._files[key] = file if placement else self.plain
        return self._files[key]

    def write_with(self, inserter: Inserter) -> None:
        """Write all candidates with the encodings of the result, in which they are exported.

        Args:
            inserter: What wrote the result; nothing changes if the search used it.
        """
        if inserter is self.calibration.inserter:
            return
        progress, states = self.run.reporter.progress("result"), self.fastest_first()
        for number, state in enumerate(states):
            progress("candidates written with its scales", number, len(states))
            if placement := self.problem.space.placement(state):
                self._written(self.key(state), placement, inserter)

    def _written(self, key: str, placement: Placement, inserter: Inserter) -> Path:
        name, base = self.journal.name_of(key), inserter.base
        file = inserter.write(placement, name) if placement else base.write(base.whole(), name)
        self.journal.keep_file(key, model_digest(file, base.store.digest_of))
        return file

    def take_snapshot(
        self, best: Candidate, baseline_ms: float, outcomes: Sequence[PatternOutcome] = ()
    ) -> None:
        """Write the state and the logs of schemes, as of now.

        Args:
            best: The best candidate.
            baseline_ms: Latency of the float model.
            outcomes: What the run found out about patterns, if it has ended.
        """
        views = [view for view in self.calibration.grouping.views if view.edges]
        planner = self.problem.space.planner
        known = (state for state, found in self._tried.items() if found is not None)
        candidates = [self.candidate_of(state) for state in known]
        tried = self.run.snapshots.write(
            planner, views, candidates, best, baseline_ms, self.journal.kept_lines, outcomes
        )
        self.run.logs.write_schemes(views, tried)
        self.schemes_tried = list(zip(views, tried, strict=True))

    def pattern_outcomes(self, result: Placement, *, is_settled: bool) -> list[PatternOutcome]:
        """Return what the run found out about each pattern.

        Args:
            result: The placement that it returns.
            is_settled: Whether the search went on until it was finished.
        """
        grouping, space = self.calibration.grouping, self.problem.space
        lines: tuple[str, ...] = ()
        if space.groups == grouping.groups:
            lines = tuple(self.journal.kept_lines)
        else:  # units of subgraphs
            space = Space(self.calibration.planner, grouping.groups, {})
        effects = GroupEffects(space, lines, result.digest())
        return pattern_outcomes(
            space, grouping.views, space.nearest(result), effects, self.run.conditions,
            is_settled=is_settled,
        )  # fmt: skip

    def candidate_of(self, state: State) -> Candidate:
        """Return a choice as a candidate; one that was never measured counts as float."""
        found = self._tried.get(state)
        failure = found if isinstance(found, str) else ""
        gain = -math.inf if failure else self._gain(state) or 0.0
        key = self.key(state)
        name = self.journal.names.get(key, "")
        return Candidate(name, key, self.problem.space.placement(state), gain, failure)

    def shipped(self, placement: Placement, gain: float) -> Candidate:
        """Return the result as a candidate, with its id if the search tried it."""
        key = placement.digest()
        return Candidate(self.journal.names.get(key, ""), key, placement, gain)

    def key(self, state: State) -> str:
        """Return a candidate's key in the journal."""
        return self.problem.space.key(state)

    def how(self, effort: Effort) -> str:
        """Return the effort of a measurement, as recorded in the journal."""
        return f"{effort.value}-{self.run.request.preset.rounds[effort]}-{self._ranges[:8]}"

    def _write_again(self, state: State) -> None:
        """Write a candidate that an earlier run measured, so that it can still be exported."""
        with contextlib.suppress(UsageError):
            self.file_of(state)


class _TrialRun:
    """Candidates against one reference; no round is measured twice.

    What it records is under the evaluator's lock, as others may run side by side.
    """

    def __init__(
        self, evaluator: CandidateEvaluator, trial: Trial, candidates: Sequence[State]
    ) -> None:
        self._evaluator = evaluator
        self._trial = trial
        self._candidates = candidates
        self._how = evaluator.how(trial.effort)
        self._states: list[State] = []
        self._files: list[Path] = []
        self._scores: dict[State, Score] = {}
        self._rounds: dict[tuple[State, ...], list[Round]] = {}
        self._skip = 0
        self._worker = ""

    @property
    def what(self) -> str:
        """What it is about, in a few words."""
        return f"{self._trial.stage}, {_candidates(len(self._states))}"

    def write(self) -> None:
        """Write the candidates and the reference."""
        evaluator = self._evaluator
        for state in self._candidates:
            try:
                self._files.append(evaluator.file_of(state))
                self._states.append(state)
            except UsageError as error:  # a candidate that can't be written has failed
                self._keep(state, Score.failed(str(error)))
        if self._files:
            self._files.insert(0, evaluator.file_of(self._trial.reference))

    def measure(self, worker: Worker) -> dict[State, Score]:
        """Run the missing rounds of the candidates, and score all of them."""
        evaluator, effort, files = self._evaluator, self._trial.effort, self._files
        if not files:
            return self._scores
        self._worker = evaluator.run.pool.name_of(worker)
        everyone, preset = tuple(self._states), evaluator.run.request.preset
        wanted, seconds = preset.rounds[effort], preset.seconds[effort]
        with evaluator.lock:
            known = evaluator.journal.rounds(
                self._reference, self._keys(everyone), self._how, self._worker
            )
        self._rounds = {everyone: known}
        if len(known) >= wanted and not evaluator.problem.wants_layers:
            self._score(everyone, {})
            return self._scores
        # An engine with virtual time starts from the first round: that costs nothing, and only then
        # does it continue as if it had not been interrupted.
        self._skip = len(known) if evaluator.is_simulated else 0
        # A kill may have come between the last round and listing the layers, which needs a round.
        rest = max(wanted - len(known), 0 if evaluator.is_simulated else 1)
        measured, _ = compare_files(
            worker,
            files,
            evaluator.run.feeds,
            rounds=rest + self._skip,
            # Times of a cost model must not depend on how fast this machine is.
            budget_s=math.inf if evaluator.is_simulated else seconds * rest / wanted,
            options=self._options(),
            take_layers=self._take_layers if evaluator.problem.wants_layers else None,
            layers_from=1,
            listener=self,
        )
        if not measured[0].ok:
            raise EngineError(
                f"The engine does not run a model that it ran before: {measured[0].error}",
                "Is the machine out of memory or disk? Run the same command again to go on.",
            )
        results = dict(zip(self._states, measured[1:], strict=True))
        self._score(tuple(state for state, each in results.items() if each.ok), results)
        return self._scores

    def _take_layers(self, model: int, layers: list[LayerTime]) -> None:
        with self._evaluator.lock:
            self._evaluator.problem.saw_layers(self._states[model - 1], layers)

    def saw_round(self, models: tuple[int, ...], round_: Round) -> None:
        """Record a round before the next one begins."""
        states = tuple(self._states[model - 1] for model in models)
        if self._skip and states == tuple(self._states):
            self._skip -= 1
            return
        self._rounds.setdefault(states, []).append(round_)
        with self._evaluator.lock:
            journal = self._evaluator.journal
            keys = self._keys(states)
            journal.add_round(self._reference, keys, self._how, round_, self._worker)

    def saw_failure(self, model: int, error: str, *, refused: bool) -> None:
        """Record a failure at once, so that a resumed run does not repeat it."""
        self._skip = 0
        if model > 0:
            evaluator, state = self._evaluator, self._states[model - 1]
            engine, file = evaluator.run.request.engine, evaluator.file_of(state)
            ops = registry.refused_nodes(engine, file, error) if refused else ()
            if ops:
                _logger.warning("%s has no kernel for %s: %s", file.name, _few(ops), error)
            self._keep(state, Score.failed(error, ops), unsure=not refused)

    def _score(self, states: Sequence[State], measured: Mapping[State, Measurement]) -> None:
        """Compute scores from all rounds that these candidates ran in together."""
        rounds = self._rounds.get(tuple(states), [])
        reference_ms = statistics.median(each.baseline_ms for each in rounds) if rounds else None
        for place, state in enumerate(states):
            gain = gain_of([each.log_ratios[place] for each in rounds])
            if not all(map(math.isfinite, gain)):
                raise EngineError(
                    "The engine's times make no sense.", "This is a bug: please report it."
                )
            found = measured.get(state)
            if found is not None:
                self._evaluator.run.budget.saw_build(found.build_s)
            self._keep(
                state,
                Score(*gain),
                latency_ms=statistics.median(each.latencies_ms[place] for each in rounds),
                reference_ms=reference_ms,
                rounds=len(rounds),
                build_s=found.build_s if found is not None else 0.0,
                timing_s=found.timing_s if found is not None else 0.0,
            )

    def _keep(self, state: State, score: Score, **details: object) -> None:
        """Record the outcome for a candidate."""
        evaluator = self._evaluator
        self._scores[state] = score
        complete = {
            "stage": self._trial.stage,
            "groups": sorted(state),
            "latency_ms": None,
            "reference_ms": None,
            "rounds": 0,
            "build_s": 0.0,
            "timing_s": 0.0,
            **details,
            **({"worker": self._worker} if self._worker else {}),
        }
        with evaluator.lock:
            evaluator.benchmarks += 1
            evaluator.failed += score.failure is not None
            key = evaluator.key(state)
            evaluator.journal.add(self._reference, key, self._how, score, complete)

    @property
    def _reference(self) -> str:
        return self._evaluator.key(self._trial.reference)

    def _keys(self, states: Sequence[State]) -> list[str]:
        return [self._evaluator.key(state) for state in states]

    def _options(self) -> SessionOptions | None:
        """Seed the noise of a cost model by what is compared, not by what ran before."""
        if not self._evaluator.is_simulated:
            return None
        options = self._evaluator.run.engine.options
        keys = [self._reference, *self._keys(self._states)]
        text = repr((options.engine_options.get("seed", "0"), keys, self._how))
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")
        return replace(options, engine_options={**options.engine_options, "seed": str(seed)})


@dataclass(frozen=True)
class SearchOutcome:
    """The outcome of a search.

    Attributes:
        state: The best choice.
        stopped: Why it ended, in the summary's terms.
        seeds: Speedups of the whole-model choices that were tried, by name.
        inaccurate: The first best choice that was not accurate enough; empty if every one was, as
            far as it was checked.
    """

    state: State = _FLOAT
    stopped: str = FINISHED
    seeds: Mapping[str, float] = field(default_factory=dict)
    inaccurate: State = _FLOAT

    @property
    def fastest(self) -> State:
        """The best choice if accuracy does not count."""
        return self.inaccurate or self.state


def search(
    baseline: Baseline, evaluator: CandidateEvaluator, finalists: Finalists
) -> SearchOutcome:
    """Run the strategy with measured scores until it ends; what is known by then is always kept.

    Args:
        baseline: The float model.
        evaluator: Measures candidates.
        finalists: Predicts whether the best so far will need an accuracy repair.
    """
    run, strategy = evaluator.run, evaluator.problem.strategy
    stopped, seeds = evaluator.problem.preparation.stopped, dict[str, float]()
    if stopped == INTERRUPTED:
        _logger.warning("interrupted: all measurements are kept; the same command resumes the run")
        return SearchOutcome(strategy.best, stopped)
    run.reporter.search_begins()
    if not run.snapshots.exist:
        evaluator.take_snapshot(evaluator.candidate_of(strategy.best), baseline.latency_ms)
    part, inaccurate, most = None, _FLOAT, strategy.task.limits.benchmarks
    can_restart = run.request.config.workflow == REGION  # an assembly is not begun elsewhere
    try:
        for _ in range(1 + _MOST_RESTARTS):
            stopped, is_short = _follow(baseline, evaluator, finalists, seeds, part)
            best, found = evaluator.problem.strategy.best, None
            if stopped == FINISHED and can_restart and evaluator.tries < most:
                found = finalists.accurate_part(best, with_metric=not is_short)
            if found is None:
                if is_short:  # not with the best ranges and corrected biases: it goes on
                    continue
                break
            part, inaccurate = found, inaccurate or best
            _restart(evaluator, part, most)
        if stopped == FINISHED and Objective.of(run.request.config).prefers_accuracy:
            _try_more_accurate(evaluator, finalists, most)
    except KeyboardInterrupt:
        stopped = INTERRUPTED
        _logger.warning("interrupted: finishing the best model so far; press Ctrl-C again to abort")
    except EngineError as error:
        stopped = ENGINE_FAILED
        _logger.warning("%s Finishing the best model so far.", error)
    strategy = evaluator.problem.strategy
    if stopped == FINISHED:
        stopped = evaluator.problem.preparation.stopped
    if stopped == FINISHED and strategy.is_cut_short:
        stopped = BY_COUNT
    state = strategy.best
    if part is not None and not state and not evaluator.has_tried(part.state):
        state = part.state
    return SearchOutcome(state, stopped, seeds, inaccurate)


def _follow(
    baseline: Baseline,
    evaluator: CandidateEvaluator,
    finalists: Finalists,
    seeds: dict[str, float],
    part: AccuratePart | None,
) -> tuple[str, bool]:
    """Answer the strategy until it ends, or until its best seed turns out not to be accurate.

    Args:
        baseline: The float model.
        evaluator: Measures candidates.
        finalists: Checks the best seed.
        seeds: Receives the speedups of whole-model choices.
        part: Where the search began again; what is less accurate has failed.

    Returns:
        Why it ended, and whether it was for accuracy.
    """
    run, problem = evaluator.run, evaluator.problem
    strategy = problem.strategy
    for trials in strategy.rounds():
        may_restart = run.request.config.workflow == REGION
        if trials[0].stage != SEEDS and (may_restart or run.request.config.budget_s is not None):
            is_short = finalists.falls_short(strategy.best)
            if is_short and may_restart:
                return FINISHED, True
        kept = [
            replace(t, candidates=tuple(s for s in t.candidates if part is None or part.has(s)))
            for t in trials
        ]
        answers, is_all = _answer(evaluator, kept)
        if any(each.candidates for each in kept) and not answers:
            return (FINISHED if is_all else BY_BUDGET), False
        for trial, asked, own in zip(trials, kept, answers, strict=True):
            found = dict(zip(asked.candidates, own, strict=True))
            scores = [found.get(s) or Score.failed(INACCURATE) for s in trial.candidates]
            problem.tell(trial, scores)
            if trial.reference == _FLOAT:
                seeds.update(_seed_speedups(problem, trial, scores))
            if run.snapshots.is_due:
                best = evaluator.candidate_of(strategy.best)
                evaluator.take_snapshot(best, baseline.latency_ms)
            change = _change(evaluator, trial, scores)
            _tell(evaluator, trial, f"{_candidates(len(scores))}, {change}")
        if not is_all:
            return BY_BUDGET, False
    return FINISHED, False


def _restart(evaluator: CandidateEvaluator, part: AccuratePart, most: int) -> None:
    """Let a new search begin with what is accurate enough; what is not is not tried."""
    problem, config = evaluator.problem, evaluator.run.request.config
    seeds = {name: state for name, state in problem.seeds.items() if part.allows(state)}
    if part.state:
        seeds[_ACCURATE] = part.state
    left = max(most - evaluator.tries, 1) + len(seeds)
    evaluator.problem = problem.continued(config.strategy, seeds, part.allows, left)
    evaluator.run.reporter.tell("accuracy", "searching on among what is accurate enough")


def _try_more_accurate(evaluator: CandidateEvaluator, finalists: Finalists, most: int) -> None:
    """Time slower and more accurate models: the search looked for the fastest."""
    best = evaluator.problem.strategy.best
    room = min(_MORE_ACCURATE, most - evaluator.tries)
    if room > 0 and (states := finalists.more_accurate(best, room)):
        trial = Trial(best, tuple(states), Effort.CONFIRM, "front")
        (scores,), _ = _answer(evaluator, [trial])
        _tell(evaluator, trial, f"{_candidates(len(scores))}, {_change(evaluator, trial, scores)}")


def _answer(
    evaluator: CandidateEvaluator, trials: Sequence[Trial]
) -> tuple[list[list[Score]], bool]:
    """Measure the candidates of trials side by side, as far as there is time.

    Known scores take none. Of the whole-model choices that a search starts from, as many as
    possible are tried; later trials are complete or skipped.

    Returns:
        The scores of each trial, empty if there is no time, and whether there was time for all.
    """
    missing = [len(evaluator.missing(trial)) for trial in trials]
    budget, reporter = evaluator.run.budget, evaluator.run.reporter
    most, trial = max(missing), trials[0]
    if not most:
        return evaluator.answer(trials), True
    is_first = trial.stage == SEEDS
    fitting = budget.fitting(most, trial.effort, least=is_first)
    if fitting < most and not (is_first and fitting):
        return [], False
    expected_s = budget.trial_s(fitting, trial.effort)
    if expected_s > TOLD_AHEAD_S:
        what = f"building and timing {_candidates(sum(min(each, fitting) for each in missing))}"
        _tell(evaluator, trial, f"{what}, about {expected_s:.0f} s")
    began_s = reporter.elapsed_s
    scores = evaluator.answer(trials, fitting)
    budget.saw_trial(fitting, trial.effort, reporter.elapsed_s - began_s)
    return scores, fitting == most


def _seed_speedups(
    problem: SearchProblem, trial: Trial, scores: Sequence[Score]
) -> dict[str, float]:
    key = problem.space.key
    gains = dict(zip(map(key, trial.candidates), scores, strict=True))
    return {
        label: speedup_of(gains[key(state)].gain)
        for label, state in problem.seeds.items()
        if key(state) in gains and gains[key(state)].failure is None
    }


def _change(evaluator: CandidateEvaluator, trial: Trial, scores: Sequence[Score]) -> str:
    """Describe the outcome of the best of some candidates, and the modules in which it differs."""
    best = max(range(len(scores)), key=lambda n: scores[n].gain, default=None)
    if best is None or not math.isfinite(scores[best].gain):
        return "all refused"
    space = evaluator.problem.space
    flipped = sorted(trial.candidates[best] ^ trial.reference)
    node_of = space.planner.index.node
    ops = (node_of[name] for number in flipped for name in space.groups[number].nodes)
    title = title_of([scope_of(node) for node in ops])
    before = "float" if trial.reference == _FLOAT else "the best before"
    changed = f"best {100 * math.expm1(scores[best].gain):+.1f} % against {before}"
    return changed + (f" ({title})" if title else "")


def _tell(evaluator: CandidateEvaluator, trial: Trial, message: str) -> None:
    run, strategy = evaluator.run, evaluator.problem.strategy
    run.reporter.tell(
        trial.stage,
        message,
        benchmarks=evaluator.benchmarks,
        known=run.journal.memo_hits,
        planned=strategy.planned,
        speedup=speedup_of(strategy.gain),
        rest_s=run.budget.end_s(),
    )


def _few(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _candidates(count: int) -> str:
    return f"{count} candidate{'s' * (count != 1)}"
