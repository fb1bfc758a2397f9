"""Where candidates meet: written, timed against each other, written down."""

from __future__ import annotations

import contextlib
from pathlib import Path

from qdqtune.autotune.space import Space, State
from qdqtune.autotune.trial import Effort, Score, Trial
from qdqtune.engines.contest import compare_files
from qdqtune.engines.isolated import StoredFeeds, Worker
from qdqtune.engines.timing import typical_gain
from qdqtune.qdq.insert import Inserter
from qdqtune.records.errors import EngineError, UsageError
from qdqtune.records.measurement import Measurement
from qdqtune.workflows.tuning.journal import Journal
from qdqtune.workflows.tuning.settings import Preset


class Arena:
    """Answers a search's questions with measurements.

    Args:
        worker: The engine.
        inserter: Writes candidates.
        space: What states mean.
        feeds: What every model is run on.
        preset: How thorough to be.
        journal: What is known, and where measurements go.
        ranges: A digest of the ranges behind the candidates' scales.

    Attributes:
        benchmarks: Candidates built and timed.
        failed: Those that the engine refused.
    """

    def __init__(
        self,
        worker: Worker,
        inserter: Inserter,
        space: Space,
        feeds: StoredFeeds,
        preset: Preset,
        journal: Journal,
        ranges: str = "",
    ) -> None:
        self.benchmarks = 0
        self.failed = 0
        self._worker = worker
        self._inserter = inserter
        self._space = space
        self._feeds = feeds
        self._preset = preset
        self._journal = journal
        self._ranges = ranges
        self._files: dict[str, Path] = {}

    def answer(self, trial: Trial) -> list[Score]:
        """One score per candidate; what the journal knows is not measured again.

        Raises:
            EngineError: If the engine doesn't run the reference any more.
        """
        own, effort = self._space.key(trial.reference), self._effort(trial.effort)
        found: dict[State, Score] = {}
        for state in trial.candidates:
            known = self._journal.known(own, self._space.key(state), effort)
            if known is not None:
                found[state] = known
                self._write_again(state)
        missing = [state for state in trial.candidates if state not in found]
        if missing:
            found.update(self._race(trial.reference, missing, trial.effort))
        return [found[state] for state in trial.candidates]

    def file_of(self, state: State) -> Path:
        """The candidate's file."""
        key = self._space.key(state)
        if key not in self._files:
            name = self._journal.name_of(key)
            if state and self._space.placement(state):
                self._files[key] = self._inserter.write(self._space.placement(state), name)
            else:
                self._files[key] = self._inserter.base.write(self._inserter.base.whole(), name)
        return self._files[key]

    def _effort(self, effort: Effort) -> str:
        """How thoroughly something is measured, as the journal says it."""
        return f"{effort.value}-{self._preset.rounds[effort]}-{self._ranges[:8]}"

    def _write_again(self, state: State) -> None:
        """A candidate that an earlier run measured can be exported after this one, too."""
        with contextlib.suppress(UsageError):
            self.file_of(state)

    def _race(self, reference: State, states: list[State], effort: Effort) -> dict[State, Score]:
        own = self._space.key(reference)
        scores: dict[State, Score] = {}
        files: dict[State, Path] = {}
        for state in states:
            try:
                files[state] = self.file_of(state)
            except UsageError as error:  # a candidate that can't be written is one that failed
                scores[state] = Score.failed(str(error))
                self._record(own, state, effort, scores[state], Measurement(error=str(error)))
        paths = [self.file_of(reference), *files.values()]
        measured, _ = compare_files(
            self._worker,
            paths,
            self._feeds,
            rounds=self._preset.rounds[effort],
            budget_s=self._preset.seconds[effort],
        )
        base = measured[0]
        if not base.ok:
            raise EngineError(
                f"The engine does not run a model that it ran before: {base.error}",
                "Is the machine out of memory or disk? Run the same command again to go on.",
            )
        for state, measurement in zip(files, measured[1:], strict=True):
            if measurement.ok:
                scores[state] = Score(*typical_gain(base.blocks_ms, measurement.blocks_ms))
            else:
                scores[state] = Score.failed(measurement.error or "")
            self._record(own, state, effort, scores[state], measurement, base)
        return scores

    def _record(
        self,
        reference: str,
        state: State,
        effort: Effort,
        score: Score,
        measurement: Measurement,
        base: Measurement | None = None,
    ) -> None:
        self.benchmarks += 1
        self.failed += score.failure is not None
        details = {
            "groups": sorted(state),
            "latency_ms": measurement.latency_ms if measurement.ok else None,
            "reference_ms": base.latency_ms if base is not None else None,
            "rounds": len(measurement.blocks_ms),
            "build_s": measurement.build_s,
            "timing_s": measurement.timing_s,
        }
        self._journal.add(reference, self._space.key(state), self._effort(effort), score, details)
