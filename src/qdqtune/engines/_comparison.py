"""Compares model files with a baseline in a worker; a failing model does not stop the others."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from qdqtune.engines._timing import FEWEST_ROUNDS, Blocks, Round, plan_turns, take_turns
from qdqtune.engines._worker import FailureKind, StoredFeeds, Worker, WorkerFailure
from qdqtune.records._measurement import Comparison, LayerTime, Measurement

if TYPE_CHECKING:
    from qdqtune.engines._interface import Feeds, Outputs, SessionOptions
    from qdqtune.engines._worker import OpenModel

Progress = Callable[[int, int], None]
"""Called with the rounds done and planned."""
TakeOutputs = Callable[[int, "Outputs"], None]
"""Called with a model's number and its outputs."""
TakeLayers = Callable[[int, "list[LayerTime]"], None]
"""Called with a model's number and its layers; empty if the engine can't list them."""


class MeasurementListener(Protocol):
    """Receives every measurement of a comparison as it is made."""

    def saw_round(self, models: tuple[int, ...], round_: Round) -> None:
        """Called after each round of the baseline and these candidates."""
        ...

    def saw_failure(self, model: int, error: str, *, refused: bool) -> None:
        """Called when a model fails; the others start over without it.

        Args:
            model: Its number.
            error: The reason.
            refused: Whether the engine reported it; otherwise it crashed or timed out.
        """
        ...


_PILOT_RUNS = 4
_LAYER_RUNS = 20
_MOST_DEATHS = 2
_PILOT_DROP = 1
# Longer than any call takes, and shorter than starting a program takes.
_LEAST_OVERHEAD_MS = 25.0
_SHORTEST_LIMIT_S = 30.0
_TIMES_BASELINE = 20.0


class _ModelFailed(Exception):
    """Model number ``index`` failed during the comparison."""

    def __init__(self, index: int, error: str, kind: FailureKind = FailureKind.ERROR) -> None:
        super().__init__(error)
        self.index = index
        self.error = error
        self.kind = kind


@contextlib.contextmanager
def _blaming(index: int) -> Iterator[None]:
    try:
        yield
    except WorkerFailure as failure:
        raise _ModelFailed(index, str(failure), failure.kind) from failure


@dataclass(frozen=True)
class _Length:
    """The length of a comparison, as a time or as a number of runs or rounds."""

    budget_s: float
    runs: int | None
    rounds: int | None
    fewest_rounds: int
    min_time_s: float | None

    def least_runs(self, latencies_ms: Sequence[float]) -> int | None:
        """Return the minimum number of timed runs per model, for the fastest to fill its time."""
        if self.min_time_s is None:
            return self.runs
        return max(self.runs or 1, math.ceil(self.min_time_s * 1000.0 / min(latencies_ms)))


def compare_files(
    worker: Worker,
    paths: Sequence[str | os.PathLike[str]],
    feeds: Feeds | StoredFeeds,
    *,
    budget_s: float = 7.4,
    runs: int | None = None,
    min_time_s: float | None = None,
    rounds: int | None = None,
    fewest_rounds: int = FEWEST_ROUNDS,
    options: SessionOptions | None = None,
    timeout_s: float | None = None,
    progress: Progress | None = None,
    take_outputs: TakeOutputs | None = None,
    take_layers: TakeLayers | None = None,
    layers_from: int = 0,
    listener: MeasurementListener | None = None,
) -> tuple[list[Measurement], list[Comparison | None]]:
    """Times model files against the first of them. A failing model raises nothing.

    Args:
        worker: The worker that runs the models.
        paths: The baseline and its candidates; all take the same inputs.
        feeds: The inputs.
        budget_s: Maximum seconds of timed runs per candidate; clear differences take less.
        runs: Minimum timed runs per model, instead of a budget; all of them are made.
        min_time_s: Minimum seconds of timed runs per model; all of them are made.
        rounds: Blocks of each candidate; fewer if they don't fit into the budget.
        fewest_rounds: Minimum number of rounds, whatever the budget.
        options: How to open the models.
        timeout_s: Limit for opening a model. A candidate's block counts as a hang after thirty
            seconds, or twenty times the baseline's block if that is longer.
        progress: Called after each round with the rounds done and planned.
        take_outputs: Called with the number and the outputs of each model that was timed.
        take_layers: Called with the number and the layers of each model that was timed.
        layers_from: Number of the first model whose layers are needed.
        listener: Called for each round and each failure.

    Returns:
        One measurement per file, and one comparison per candidate: None where the candidate or
        the baseline failed.
    """
    files = [os.fspath(path) for path in paths]
    length = _Length(budget_s, runs, rounds, fewest_rounds, min_time_s)
    with worker.stored(feeds) as stored:
        comparing = _Comparing(worker, files, stored, options, timeout_s, listener)
        while present := [i for i in range(len(files)) if i not in comparing.errors]:
            try:
                blocks, comparisons = comparing.attempt(present, length, progress)
                if take_outputs is not None:
                    for index in present:
                        take_outputs(index, comparing.run(index))
                if take_layers is not None:
                    for index in present:
                        if index >= layers_from:
                            take_layers(index, comparing.layers(index))
            except _ModelFailed as failure:
                comparing.errors[failure.index] = failure.error
                if listener is not None:
                    refused = failure.kind is FailureKind.ERROR
                    listener.saw_failure(failure.index, failure.error, refused=refused)
            else:
                break
            finally:
                comparing.release()
    timed = dict(zip(present, blocks, strict=True)) if present else {}
    compared: dict[int, Comparison] = {}
    if present and present[0] == 0:
        compared = dict(zip(present[1:], comparisons, strict=True))
    measurements = [comparing.measurement(i, timed.get(i, [])) for i in range(len(files))]
    return measurements, [compared.get(i) for i in range(1, len(files))]


def _zeros() -> defaultdict[int, float]:
    return defaultdict(float)


@dataclass
class _Comparing:
    """One comparison; without the models that failed, it is attempted again."""

    worker: Worker
    paths: list[str]
    feeds: StoredFeeds
    options: SessionOptions | None
    timeout_s: float | None
    listener: MeasurementListener | None
    errors: dict[int, str] = field(default_factory=dict, init=False)
    build_s: defaultdict[int, float] = field(default_factory=_zeros, init=False)
    timing_s: defaultdict[int, float] = field(default_factory=_zeros, init=False)
    models: dict[int, OpenModel] = field(default_factory=dict, init=False)
    limit_s: float | None = field(default=None, init=False)

    def attempt(
        self, present: list[int], length: _Length, progress: Progress | None
    ) -> tuple[list[Blocks], list[Comparison]]:
        """Open and time the models that have not failed yet."""
        self.limit_s = self.timeout_s
        for index in present:
            self._open(index)
        before = replace(self.worker.totals)

        def contention() -> float:
            spent_s = self.worker.totals.timing_s - before.timing_s
            waited_s = self.worker.totals.contended_s - before.contended_s
            return waited_s / spent_s if spent_s > 0.0 else 0.0

        end = time.monotonic() + length.budget_s * max(1, len(present) - 1)
        latencies_ms: list[float] = []
        overheads_ms: list[float] = []
        for index in present:
            before_s = self.worker.totals.timing_s
            pilot = self._block(index, _PILOT_RUNS)
            spent_s = self.worker.totals.timing_s - before_s
            overheads_ms.append(spent_s * 1000.0 - sum(pilot))
            latencies_ms.append(statistics.median(pilot[_PILOT_DROP:]))
            if index == present[0]:
                self._limit_blocks(spent_s)
        overhead_ms = min(overheads_ms)
        if overhead_ms <= _LEAST_OVERHEAD_MS:
            overhead_ms = 0.0
        runs = length.least_runs(latencies_ms)
        plan = plan_turns(latencies_ms, end - time.monotonic(), runs, length.rounds, overhead_ms)
        plan = replace(plan, fewest_rounds=length.fewest_rounds)
        self._limit_blocks((plan.shapes[0].block_ms + overhead_ms) / 1000.0)
        on_round = None
        if self.listener is not None:
            on_round = functools.partial(self.listener.saw_round, tuple(present[1:]))
        return take_turns(
            lambda model, count: self._block(present[model], count),
            plan,
            progress,
            # Other processes may leave the engine less time than its own samples show.
            time_is_up=lambda: runs is None and time.monotonic() > end,
            on_round=on_round,
            contention=contention,
        )

    def run(self, index: int) -> Outputs:
        """Return a model's outputs."""
        with _blaming(index):
            return self.worker.run(self.models[index], self.feeds, timeout_s=self.limit_s)

    def layers(self, index: int) -> list[LayerTime]:
        """Return a model's layers; not being able to list them is not a failure of the model.

        An engine that crashed or hung twice on this request is not asked again.
        """
        if self.worker.totals.deaths_by_layers >= _MOST_DEATHS:
            return []
        try:
            return self.worker.layers(self.models[index], _LAYER_RUNS, timeout_s=self.limit_s)
        except WorkerFailure:
            return []

    def release(self) -> None:
        """Close what is open."""
        for model in self.models.values():
            with contextlib.suppress(WorkerFailure):
                self.worker.release(model)
        self.models.clear()

    def measurement(self, index: int, blocks: Blocks) -> Measurement:
        """Return what was found about a model."""
        build_s, timing_s = self.build_s[index], self.timing_s[index]
        return Measurement(tuple(blocks), self.errors.get(index), build_s, timing_s)

    def _open(self, index: int) -> None:
        with _blaming(index):
            model = self.worker.open(self.paths[index], self.options, timeout_s=self.timeout_s)
            self.models[index] = model
            fed_s = self.worker.feed(model, self.feeds, timeout_s=self.timeout_s)
            self.build_s[index] += model.build_s + fed_s

    def _limit_blocks(self, baseline_s: float) -> None:
        self.limit_s = max(_SHORTEST_LIMIT_S, _TIMES_BASELINE * baseline_s)

    def _block(self, index: int, runs: int) -> list[float]:
        before_s = self.worker.totals.timing_s
        try:
            with _blaming(index):
                samples = self.worker.time(self.models[index], runs, timeout_s=self.limit_s)
        finally:
            self.timing_s[index] += self.worker.totals.timing_s - before_s
        if len(samples) != runs:
            raise _ModelFailed(index, f"the engine returned {len(samples)} samples of {runs}")
        checked = Measurement((tuple(samples),))
        if checked.error is not None:
            raise _ModelFailed(index, checked.error)
        return samples
