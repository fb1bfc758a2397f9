"""Write candidates, time them against a reference, and record the scores before they are used."""

from __future__ import annotations

import contextlib
import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from qdqtune.engines import _registry as registry
from qdqtune.engines._comparison import compare_files
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._timing import Round, gain_of
from qdqtune.engines._worker import Worker
from qdqtune.graph._fingerprint import model_digest
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._errors import EngineError, UsageError
from qdqtune.records._measurement import LayerTime, Measurement
from qdqtune.records._placement import Placement
from qdqtune.search._space import State
from qdqtune.search.strategies._strategy import Effort, Score, Trial
from qdqtune.workflows.tuning._journal import Journal
from qdqtune.workflows.tuning._search_problem import SearchProblem
from qdqtune.workflows.tuning._setup import TuningTarget
from qdqtune.workflows.tuning._snapshots import Candidate
from qdqtune.workflows.tuning._time_budget import Preset

NO_TIME = "there was no time for it"
"""Why a candidate has no score."""


@dataclass
class CandidateEvaluator:
    """Answers a search's questions with measurements.

    Attributes:
        worker: The engine.
        target: What is tuned, and on which inputs.
        journal: What is known, and where measurements go.
        inserter: Writes candidates.
        problem: What states mean, and who wants to see where the time of candidates goes.
        benchmarks: Candidates built and timed.
        failed: Those that the engine refused.
    """

    worker: Worker
    target: TuningTarget
    journal: Journal
    inserter: Inserter
    problem: SearchProblem
    benchmarks: int = field(default=0, init=False)
    failed: int = field(default=0, init=False)
    _files: dict[str, Path] = field(default_factory=dict, init=False)
    # Of everything that was tried, in order: its log speedup over the float model, why it
    # failed, or None if it was only compared with something of which neither is known.
    _tried: dict[State, float | str | None] = field(
        default_factory=lambda: {frozenset(): 0.0}, init=False
    )
    _last_failure: str | None = field(default="", init=False)

    @cached_property
    def _ranges(self) -> str:
        return self.inserter.encoder.digest()

    @property
    def planner(self) -> QuantizationPlanner:
        """What each op needs."""
        return self.problem.space.planner

    @property
    def preset(self) -> Preset:
        """How thorough to be."""
        return self.target.request.preset

    @property
    def is_simulated(self) -> bool:
        """Whether the engine makes its times up."""
        return not registry.entry(self.target.request.engine).measures

    @property
    def why_all_failed(self) -> str:
        """Why the last candidate failed, if all did, those known from before included."""
        return self._last_failure or ""

    def missing(self, trial: Trial) -> list[State]:
        """The candidates of a trial that have to be measured."""
        reference, effort = self.key(trial.reference), self.how(trial.effort)
        return [
            s for s in trial.candidates if not self.journal.knows(reference, self.key(s), effort)
        ]

    def answer(self, trial: Trial, most: int | None = None) -> list[Score]:
        """One score per candidate; what the journal knows is not measured again.

        Args:
            trial: What is compared.
            most: How many candidates may be measured; the others fail, which is not written down.

        Raises:
            EngineError: If the engine doesn't run the reference any more.
        """
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
        missing = [state for state in trial.candidates if state not in found]
        if missing[:most]:
            found.update(self._compare(trial.reference, missing[:most], trial.effort))
        base = self._gain(trial.reference)
        for state, score in found.items():
            before = self._tried.setdefault(state, None)
            if score.failure is None:
                self._last_failure = None
                if base is not None:
                    self._tried[state] = base + score.gain
            else:
                if self._last_failure is not None:
                    self._last_failure = score.failure
                if not isinstance(before, float):
                    self._tried[state] = score.failure
        return [found.get(state) or Score.failed(NO_TIME) for state in trial.candidates]

    def _gain(self, state: State) -> float | None:
        found = self._tried.get(state)
        return found if isinstance(found, float) else None

    def file_of(self, state: State) -> Path:
        """The candidate's file."""
        key = self.key(state)
        if key not in self._files:
            name, base = self.journal.name_of(key), self.inserter.base
            if state and self.problem.space.placement(state):
                file = self.inserter.write(self.problem.space.placement(state), name)
            else:
                file = base.write(base.whole(), name)
            self.journal.keep_file(key, model_digest(file, base.store.digest_of))
            self._files[key] = file
        return self._files[key]

    def candidates(self) -> list[Candidate]:
        """The float model, and everything that was tried, in order."""
        known = (state for state, found in self._tried.items() if found is not None)
        return [self.candidate_of(state) for state in known]

    def candidate_of(self, state: State) -> Candidate:
        """What is known of a choice; one that was never measured counts as the float model."""
        found = self._tried.get(state)
        failure = found if isinstance(found, str) else ""
        gain = -math.inf if failure else self._gain(state) or 0.0
        key = self.key(state)
        name = self.journal.names.get(key, "")
        return Candidate(name, key, self.problem.space.placement(state), gain, failure)

    def shipped(self, placement: Placement, gain: float) -> Candidate:
        """What is handed over, with its id if the search had tried it."""
        key = placement.digest()
        return Candidate(self.journal.names.get(key, ""), key, placement, gain)

    def key(self, state: State) -> str:
        """What a candidate is called in the journal."""
        return self.problem.space.key(state)

    def how(self, effort: Effort) -> str:
        """How thoroughly something is measured, as the journal says it."""
        return f"{effort.value}-{self.preset.rounds[effort]}-{self._ranges[:8]}"

    def record(
        self, reference: State, state: State, effort: Effort, score: Score, **details: object
    ) -> None:
        """Write down what came of a candidate."""
        self.benchmarks += 1
        self.failed += score.failure is not None
        complete = {
            "groups": sorted(state),
            "latency_ms": None,
            "reference_ms": None,
            "rounds": 0,
            "build_s": 0.0,
            "timing_s": 0.0,
            **details,
        }
        self.journal.add(self.key(reference), self.key(state), self.how(effort), score, complete)

    def _write_again(self, state: State) -> None:
        """A candidate that an earlier run measured can be exported after this one, too."""
        with contextlib.suppress(UsageError):
            self.file_of(state)

    def _compare(self, reference: State, states: list[State], effort: Effort) -> dict[State, Score]:
        scores: dict[State, Score] = {}
        files: dict[State, Path] = {}
        for state in states:
            try:
                files[state] = self.file_of(state)
            except UsageError as error:  # a candidate that can't be written is one that failed
                scores[state] = Score.failed(str(error))
                self.record(reference, state, effort, scores[state])
        if files:
            scores.update(_TrialRun(self, reference, files, effort).run())
        return scores


class _TrialRun:
    """Candidates against one reference; a round of it is never measured twice."""

    def __init__(
        self,
        evaluator: CandidateEvaluator,
        reference: State,
        files: Mapping[State, Path],
        effort: Effort,
    ) -> None:
        self._evaluator = evaluator
        self._reference = reference
        self._states = list(files)
        self._files = [evaluator.file_of(reference), *files.values()]
        self._effort = effort
        self._scores: dict[State, Score] = {}
        self._rounds: dict[tuple[State, ...], list[Round]] = {}
        self._skip = 0

    def run(self) -> dict[State, Score]:
        """Play the rounds that are missing, and give everyone a score."""
        evaluator, everyone = self._evaluator, tuple(self._states)
        wanted = evaluator.preset.rounds[self._effort]
        known = evaluator.journal.rounds(
            evaluator.key(self._reference), [evaluator.key(state) for state in everyone], self._how
        )
        self._rounds[everyone] = known
        if len(known) >= wanted and not evaluator.problem.wants_layers:
            self._score(everyone, {})
            return self._scores
        # An engine that makes its times up plays from the start: it costs nothing, and only then
        # goes on as if nothing had happened.
        self._skip = len(known) if evaluator.is_simulated else 0
        # A kill may have come between the last round and the layers, which take a round to be told.
        rest = max(wanted - len(known), 0 if evaluator.is_simulated else 1)
        measured, _ = compare_files(
            evaluator.worker,
            self._files,
            evaluator.target.feeds,
            rounds=rest + self._skip,
            # Times of a cost model must not depend on how fast this machine is.
            budget_s=math.inf if evaluator.is_simulated else self._budget_s * rest / wanted,
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
        self._evaluator.problem.saw_layers(self._states[model - 1], layers)

    def saw_round(self, models: tuple[int, ...], round_: Round) -> None:
        """Write a round down before the next one begins."""
        states = tuple(self._states[model - 1] for model in models)
        if self._skip and states == tuple(self._states):
            self._skip -= 1
            return
        self._rounds.setdefault(states, []).append(round_)
        keys = [self._evaluator.key(state) for state in states]
        self._evaluator.journal.add_round(
            self._evaluator.key(self._reference), keys, self._how, round_
        )

    def saw_failure(self, model: int, error: str, *, refused: bool) -> None:
        """Write down at once what failed: the next one must not fail for the same reason."""
        self._skip = 0
        if model == 0:
            return
        state = self._states[model - 1]
        self._scores[state] = Score.failed(error)
        self._evaluator.record(
            self._reference, state, self._effort, self._scores[state], unsure=not refused
        )

    def _score(self, states: Sequence[State], measured: Mapping[State, Measurement]) -> None:
        """Give scores from all rounds that were played among these."""
        rounds = self._rounds.get(tuple(states), [])
        reference_ms = statistics.median(each.baseline_ms for each in rounds) if rounds else None
        for place, state in enumerate(states):
            gain = gain_of([each.log_ratios[place] for each in rounds])
            if not all(map(math.isfinite, gain)):
                raise EngineError("The engine's times make no sense.", "Please report it.")
            self._scores[state] = Score(*gain)
            found = measured.get(state)
            self._evaluator.record(
                self._reference,
                state,
                self._effort,
                self._scores[state],
                latency_ms=statistics.median(each.latencies_ms[place] for each in rounds),
                reference_ms=reference_ms,
                rounds=len(rounds),
                build_s=found.build_s if found is not None else 0.0,
                timing_s=found.timing_s if found is not None else 0.0,
            )

    def _options(self) -> SessionOptions | None:
        """The noise of a cost model follows from what is compared, not from what ran before."""
        if not self._evaluator.is_simulated:
            return None
        options = self._evaluator.worker.options
        keys = [self._evaluator.key(state) for state in (self._reference, *self._states)]
        text = repr((options.engine_options.get("seed", "0"), keys, self._how))
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")
        return replace(options, engine_options={**options.engine_options, "seed": str(seed)})

    @property
    def _budget_s(self) -> float:
        return self._evaluator.preset.seconds[self._effort]

    @property
    def _how(self) -> str:
        return self._evaluator.how(self._effort)
