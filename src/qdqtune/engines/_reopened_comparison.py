"""Compares files in several fresh processes, so that a lucky opening is not taken for a gain.

Two openings of one file differ for as long as they are open: by their memory addresses, or by the
kernels that a builder happened to choose. One process can't show that, however long it runs. So
every process contributes one log ratio, and the interval follows from their spread, by Student's t
distribution; noise within a process also adds to that spread, so the interval includes it.

For equal models on simulated machines whose openings differ by 2 % (one deviation), 22 of 100
comparisons in one process found a gain of 2 % or more; with five processes, fewer than one did.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from qdqtune.engines._comparison import compare_files
from qdqtune.engines._intervals import least_half_width
from qdqtune.engines._timing import FEWEST_ROUNDS
from qdqtune.engines._worker import Worker
from qdqtune.records._measurement import Comparison

if TYPE_CHECKING:
    from qdqtune.engines._interface import Feeds

FEWEST_OPENINGS = 3
"""Below this number of openings, their variation can't be estimated."""
MOST_OPENINGS = 5

_CONFIDENCE = 0.99
# The quantiles of Student's distribution for that level, by degrees of freedom.
_STUDENT = {2: 9.925, 3: 5.841, 4: 4.604}
# Openings that agree this well are not repeated: more of them would not change the result.
_AGREEING = 0.0002
# Minimum change of the ratio when the files are opened again, as a log ratio.
_LEAST_HALF_WIDTH = 0.003
# Assumed variation of openings where there is no time to measure it: the deviation of a log ratio,
# and its weight in degrees of freedom beside the measured variation of the baseline.
_ASSUMED, _WORTH = 0.0085, 2
# Enough for the median of one opening out of several.
_FEWEST_ROUNDS_AGAIN = 4
# More than a real engine can play, whose blocks take eight milliseconds or more: the interval is to
# be as narrow as time allows.
_MOST_ROUNDS_PER_S = 60


@dataclass(frozen=True)
class Allowance:
    """The time limits of a comparison in several processes.

    Attributes:
        timing_s: Seconds of timed runs per candidate, in all processes together.
        reopening_s: Additional seconds for opening the files again.
        left_s: Returns the seconds left until everything must be finished.
        baseline_ratio: Latency ratio of two openings of the baseline, used where there is no time
            to open the files again.
        is_real: Whether runs take the time that the engine reports; if not, all rounds are made.
    """

    timing_s: float
    reopening_s: float = 30.0
    left_s: Callable[[], float] = lambda: math.inf
    baseline_ratio: float = 1.0
    is_real: bool = True


@dataclass(frozen=True)
class Reopened:
    """A file compared with the first one in several processes.

    Attributes:
        latency_ms: Its typical latency.
        error: Why it could not be timed; None if it could.
        comparison: Over the first file; None for that one itself, and if it could not be timed.
        log_ratios: The log ratio from each process.
    """

    latency_ms: float
    error: str | None = None
    comparison: Comparison | None = None
    log_ratios: tuple[float, ...] = ()


def compare_reopened(
    new_worker: Callable[[int], Worker],
    paths: Sequence[str | os.PathLike[str]],
    feeds: Feeds,
    allowance: Allowance,
) -> list[Reopened]:
    """Time files against the first of them, interleaved, in one fresh process after another.

    A candidate that fails in one of the processes has failed. If the baseline fails, although it
    ran before, that process is repeated once.

    Args:
        new_worker: Creates the worker of a process by its number, from 0 on; it is closed here.
        paths: The baseline and its candidates.
        feeds: The inputs.
        allowance: The time limits.
    """
    openings = _Openings(new_worker, paths, feeds, allowance)
    openings.play()
    return [openings.outcome(index) for index in range(len(paths))]


@dataclass
class _Openings:
    new_worker: Callable[[int], Worker]
    paths: Sequence[str | os.PathLike[str]]
    feeds: Feeds
    allowance: Allowance
    errors: dict[int, str] = field(default_factory=dict, init=False)
    latencies_ms: list[dict[int, float]] = field(default_factory=list, init=False)
    compared: list[dict[int, Comparison]] = field(default_factory=list, init=False)
    processes: int = field(default=0, init=False)

    def play(self) -> None:
        """Open and time the files as often as needed, within the time limits."""
        wanted, is_repeated = MOST_OPENINGS, False
        while len(self.compared) < wanted and len(self.errors) < len(self.paths) - 1:
            began = time.monotonic()
            failure = self._open_once()
            took_s = time.monotonic() - began
            if failure is not None:
                if is_repeated:
                    self.errors[0] = failure
                    return
                is_repeated = True
                continue
            if len(self.compared) == 1:
                wanted = self._affordable(took_s)
            if self._agree() or self.allowance.left_s() < took_s:
                return

    def outcome(self, index: int) -> Reopened:
        """Return the combined result of all processes for a file."""
        if 0 in self.errors or index in self.errors:
            return Reopened(math.inf, self.errors.get(index, self.errors.get(0)))
        latency_ms = statistics.median(each[index] for each in self.latencies_ms)
        if index == 0:
            return Reopened(latency_ms)
        found = [each[index] for each in self.compared]
        comparison = combine(found, self.allowance.baseline_ratio)
        return Reopened(latency_ms, None, comparison, tuple(math.log(each.ratio) for each in found))

    def _open_once(self) -> str | None:
        """Run one process; returns why the baseline failed in it, if it did."""
        present = [index for index in range(len(self.paths)) if index not in self.errors]
        timing_s = self.allowance.timing_s / MOST_OPENINGS
        fewest = _FEWEST_ROUNDS_AGAIN if self.compared else FEWEST_ROUNDS
        number, self.processes = self.processes, self.processes + 1
        with contextlib.closing(self.new_worker(number)) as worker:
            measured, compared = compare_files(
                worker,
                [self.paths[index] for index in present],
                self.feeds,
                rounds=max(fewest, math.ceil(_MOST_ROUNDS_PER_S * timing_s)),
                fewest_rounds=fewest,
                budget_s=timing_s if self.allowance.is_real else math.inf,
            )
        if not measured[0].ok:
            return measured[0].error
        found = dict(zip(present, measured, strict=True))
        self.errors.update((i, each.error) for i, each in found.items() if each.error is not None)
        self.latencies_ms.append({i: each.latency_ms for i, each in found.items() if each.ok})
        candidates = zip(present[1:], compared, strict=True)
        self.compared.append({i: each for i, each in candidates if each is not None})
        return None

    def _affordable(self, took_s: float) -> int:
        """Return how many openings fit in the time, from the overhead of the first one."""
        allowance = self.allowance
        timing_s = allowance.timing_s / MOST_OPENINGS * (len(self.paths) - 1)
        more_s = max(took_s - timing_s, 1e-3)
        room_s = min(allowance.reopening_s, allowance.left_s())
        wanted = min(MOST_OPENINGS, 1 + math.floor(room_s / more_s))
        return wanted if wanted >= FEWEST_OPENINGS else 1

    def _agree(self) -> bool:
        if len(self.compared) < FEWEST_OPENINGS:
            return False
        return all(
            statistics.stdev(math.log(each[index].ratio) for each in self.compared) <= _AGREEING
            for index in range(1, len(self.paths))
            if index not in self.errors
        )


def combine(found: Sequence[Comparison], baseline_ratio: float = 1.0) -> Comparison:
    """Combine comparisons of the same files from several processes.

    Args:
        found: One comparison per process.
        baseline_ratio: Latency ratio of two openings of one file, used where there are too few
            processes.
    """
    log_ratios = [math.log(each.ratio) for each in found]
    contention = statistics.fmean(each.contention for each in found)
    middle = statistics.fmean(log_ratios)
    half_width = _half_width(log_ratios)
    if len(found) < FEWEST_OPENINGS:
        half_width = math.hypot(_inside(found), _assumed(baseline_ratio))
    elif contention:
        # What a busy machine does to all of them alike does not show in their differences.
        half_width = math.hypot(half_width, least_half_width(contention))
    return replace(
        found[0],
        ratio=math.exp(middle),
        low=math.exp(middle - half_width),
        high=math.exp(middle + half_width) if math.isfinite(half_width) else math.inf,
        confidence=_CONFIDENCE,
        pairs=sum(each.pairs for each in found),
        contention=contention,
        openings=len(found),
    )


def is_faster(log_ratios: Sequence[float], other: Sequence[float]) -> bool:
    """Whether one of two files interleaved in the same processes is significantly faster.

    Args:
        log_ratios: Its log ratio over the baseline from each process.
        other: Those of the other file.
    """
    differences = [one - two for one, two in zip(log_ratios, other, strict=True)]
    if len(differences) < FEWEST_OPENINGS:
        return False
    return statistics.fmean(differences) > _half_width(differences)


def _half_width(log_ratios: Sequence[float]) -> float:
    """Return half of the interval that follows from the differences between processes."""
    count = len(log_ratios)
    if count < FEWEST_OPENINGS:
        return math.inf
    error = statistics.stdev(log_ratios) / math.sqrt(count)
    return max(_LEAST_HALF_WIDTH, _STUDENT[min(count - 1, max(_STUDENT))] * error)


def _inside(found: Sequence[Comparison]) -> float:
    """Return half of the widest interval within one process."""
    return max(
        math.log(each.high / each.low) / 2.0 if each.low > 0.0 and math.isfinite(each.high)
        else math.inf
        for each in found
    )  # fmt: skip


def _assumed(baseline_ratio: float) -> float:
    """Return how far an unknown opening may move a ratio, by convention and by observation."""
    freedom = _WORTH + 1
    variance = (_WORTH * _ASSUMED**2 + math.log(baseline_ratio) ** 2) / freedom
    return _STUDENT[freedom] * math.sqrt(variance)
