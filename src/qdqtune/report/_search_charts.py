"""The candidates of a search in a report: speed against error, and how the search went."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from shlex import quote

from markupsafe import Markup

from qdqtune.records._report import RunView, TrialView
from qdqtune.records._tuning import Summary
from qdqtune.report._charts import Axes, Mark, join, span

_MINUTES = 180.0
# With fewer moments at which anything was measured, a chart over time shows nothing.
_FEWEST_MOMENTS = 5
# Moments that are nearer than this part of the whole time are one.
_MOMENT = 0.02
# Pixels for the labels of lines, as large as they are on a phone.
_LABELS = 100.0
# How much more accurate another candidate must be to be recommended.
_MORE_DB = 1.0


@dataclass(frozen=True)
class Candidate:
    """A candidate as it is listed.

    Attributes:
        id: Its id.
        names: The whole-model placements that it is.
        speedup: Over the float model, as far as the search measured it; None if it failed.
        error: Standard error of the speedup's logarithm.
        sqnr_db: SQNR of its worst output; None if unknown.
        failure: Why it failed; empty if it did not.
        command: Writes it as a model.
        is_below_limit: Whether it is known to be not accurate enough.
    """

    id: str
    names: tuple[str, ...]
    speedup: float | None
    error: float
    sqnr_db: float | None
    failure: str
    command: str
    is_below_limit: bool = False


class Candidates:
    """The candidates of a run, with charts of them.

    Args:
        run: The run.
        prefix: Begins the ids of rows.
    """

    def __init__(self, run: RunView, prefix: str) -> None:
        self._run = run
        self._prefix = prefix
        details = run.details
        self._sqnr_db = dict(details.sqnr_db) if details is not None else {}
        self._names = dict(details.candidates) if details is not None else {}
        result = run.result
        if isinstance(result, Summary) and result.output_sqnr_db is not None:
            # Its ranges may be others than those of the candidate that was timed.
            self._sqnr_db[self._names.get("tuned", "")] = result.output_sqnr_db

    @cached_property
    def rows(self) -> list[Candidate]:
        """All candidates, fastest first, those that failed last."""
        last: dict[str, TrialView] = {}
        for trial in self._run.trials:
            before = last.get(trial.candidate)
            if before is None or before.failure or trial.confirms >= before.confirms:
                last[trial.candidate] = trial
        labels: dict[str, list[str]] = {}
        for label, each in self._names.items():
            labels.setdefault(each, []).append(label)
        limit_db = -math.inf if self._limit_db is None else self._limit_db
        rows = [
            Candidate(
                name,
                tuple(labels.get(name, ())),
                math.exp(trial.gain) if trial.gain is not None else None,
                trial.error,
                self._sqnr_db.get(name),
                trial.failure,
                f"qdqtune export {quote(self._run.folder)} --candidate {quote(name)} "
                f"-o {quote(name)}.onnx",
                self._sqnr_db.get(name, math.inf) < limit_db,
            )
            for name, trial in last.items()
            if name
        ]
        return sorted(rows, key=lambda row: -(row.speedup or 0.0))

    @cached_property
    def front(self) -> list[Candidate]:
        """Candidates that neither float nor another beats in speed and accuracy, fastest first."""
        found: list[Candidate] = []
        for row in self.rows:
            best_db = found[-1].sqnr_db if found else None
            if row.sqnr_db is None or row.speedup is None or row.speedup <= 1.0:
                continue
            if best_db is None or row.sqnr_db > best_db:
                found.append(row)
        return found

    @cached_property
    def others(self) -> list[Candidate]:
        """All that are not on the front."""
        return [row for row in self.rows if row.id not in self._front_ids]

    @cached_property
    def _front_ids(self) -> set[str]:
        return {row.id for row in self.front}

    @property
    def more_accurate(self) -> tuple[str, str]:
        """How to get a more accurate model: what it is, and the command; empty if unknown."""
        summary = self._run.result
        if not isinstance(summary, Summary) or summary.kept_float or summary.output_sqnr_db is None:
            return "", ""
        has_db = summary.output_sqnr_db
        for number, point in enumerate(summary.front, 1):
            if (point.sqnr_db or 0.0) >= has_db + _MORE_DB:
                what = f"point {number} of the front: {point.speedup:.2f}×, {point.sqnr_db:.1f} dB"
                folder = quote(self._run.folder)
                return what, f"qdqtune export {folder} --pareto {number} -o point{number}.onnx"
        for row in self.front:
            if (row.sqnr_db or 0.0) >= has_db + _MORE_DB:
                return f"{row.id}: {row.speedup:.2f}×, {row.sqnr_db:.1f} dB", row.command
        limit = math.ceil(has_db + 3.0)
        if summary.command.startswith("qdqtune tune"):
            what = f"the same search with at least {limit} dB"
            return what, f"{summary.command} --min_sqnr {limit}"
        return "", ""

    @cached_property
    def scatter(self) -> Markup | None:
        """Speed against error; None if the error of no candidate is known."""
        known = [row for row in self.rows if row.sqnr_db is not None and row.speedup is not None]
        if not known:
            return None
        speeds = [row.speedup for row in self.rows if row.speedup is not None]
        decibels = [row.sqnr_db for row in known if row.sqnr_db is not None]
        limit = [self._limit_db] if self._limit_db is not None else []
        axes = Axes(
            span(speeds, 1.0),
            span([*decibels, *limit]),
            ("speedup over float", "output SQNR, dB"),
            suffix="",
        )
        marks = [
            Mark(
                row.speedup or 1.0, row.sqnr_db or 0.0, row.sqnr_db or 0.0, row.sqnr_db or 0.0,
                f"{row.id}: {row.speedup:.3f}×, {row.sqnr_db:.1f} dB",
                f"{self._prefix}{row.id}",
                self._kind(row),
            )
            for row in known
        ]  # fmt: skip
        line = [(row.speedup or 1.0, row.sqnr_db or 0.0) for row in self.front]
        unknown = [row.speedup for row in self.rows if row.speedup and row.sqnr_db is None]
        content = [axes.line(line, "front"), axes.rug(unknown, "rug"), axes.marks(marks)]
        for each in limit:
            content += [axes.level(each), axes.above_left(each, f"limit {round(each, 1):g} dB")]
        content += [self._label(axes, row) for row in known if "tuned" in row.names]
        return axes.svg("Speed against error of the candidates", join(content))

    @property
    def why_limit(self) -> str:
        """Why the limit is not the one that was requested; empty if it is."""
        summary, limit_db = self._run.result, self._limit_db
        if not isinstance(summary, Summary) or limit_db is None or summary.float_sqnr_db is None:
            return ""
        return (
            f"The limit is {limit_db:.1f} dB instead of --min_sqnr {summary.min_sqnr_db:g}: the "
            f"engine computes the float model in {summary.engine.float_type or 'another type'}, "
            f"with an SQNR of {summary.float_sqnr_db:.1f} dB itself, and that error is allowed on "
            "top."
        )

    @property
    def _limit_db(self) -> float | None:
        summary = self._run.result
        return summary.allowed_sqnr_db if isinstance(summary, Summary) else None

    def _kind(self, row: Candidate) -> str:
        if "tuned" in row.names:
            return "result"
        return "on-front" if row.id in self._front_ids else ""

    def _label(self, axes: Axes, row: Candidate) -> Markup:
        x, y = axes.x(row.speedup or 1.0), axes.y(row.sqnr_db or 0.0)
        return Markup('<text class="direct end" x="{:.1f}" y="{:.1f}">tuned</text>').format(
            x - 4,
            y + 18,  # the line of the front comes from above
        )

    @property
    def over_benchmarks(self) -> Markup | None:
        """The best so far over benchmarks; None if nothing was measured."""
        return self._trace([float(n) for n in range(1, len(self._run.trials) + 1)], "benchmarks")

    @property
    def over_time(self) -> Markup | None:
        """The best so far over time; None if all was measured at a few moments."""
        times = [trial.at_s for trial in self._run.trials]
        resolution_s = _MOMENT * max(times, default=0.0) or 1.0
        if len({int(at_s / resolution_s) for at_s in times}) < _FEWEST_MOMENTS:
            return None  # all subgraphs come before the first whole model, or there are few
        is_long = max(times, default=0.0) > _MINUTES
        unit = 60.0 if is_long else 1.0
        return self._trace([each / unit for each in times], "minutes" if is_long else "seconds")

    def _trace(self, places: list[float], name: str) -> Markup | None:
        trials = self._run.trials
        marks = [
            Mark.measured(
                x, trial.gain, trial.error, self._about(trial), f"{self._prefix}{trial.candidate}",
                "confirmed" if trial.confirms else "",
            )
            for x, trial in zip(places, trials, strict=True)
            if trial.gain is not None
        ]  # fmt: skip
        failed = [
            Mark(x, 0.0, 0.0, 0.0, self._about(trial))
            for x, trial in zip(places, trials, strict=True)
            if trial.failure
        ]
        if not marks:
            return None
        accurate = [
            (x, math.exp(trial.gain))
            for x, trial in zip(places, trials, strict=True)
            if trial.gain is not None and trial.candidate not in self._inaccurate
        ]
        best = list(itertools.accumulate((y for _, y in accurate), max))
        steps = [(x, y) for (x, _), y in zip(accurate, best, strict=True)]
        low, high = span([v for mark in marks for v in (mark.y, mark.low, mark.high)], 1.0)
        names, ends = (name, "speedup over float"), (0.0, max(places))
        axes = Axes(
            ends, (max(low, 0.0), high), names, least=float(name == "benchmarks"), room=_LABELS
        )
        labels = [(1.0, "float", "muted"), *((y, f"best {y:.2f}×", "") for y in best[-1:])]
        content = join(
            [
                axes.level(1.0), axes.marks(marks), axes.crosses(failed),
                axes.steps(steps, "best"), axes.behind(labels),
            ]
        )  # fmt: skip
        return axes.svg(f"Candidates over {name}", content)

    @cached_property
    def _inaccurate(self) -> set[str]:
        """The ids of candidates that are known to be not accurate enough."""
        result = self._run.result
        rejected = result.rejected if isinstance(result, Summary) else ()
        known = {row.id for row in self.rows if row.is_below_limit}
        return known | {self._names[each.name] for each in rejected if each.name in self._names}

    def _about(self, trial: TrialView) -> str:
        outcome = f"{math.exp(trial.gain):.3f}×" if trial.gain is not None else trial.failure
        if trial.candidate in self._inaccurate:
            outcome += ", not accurate enough"
        stage = f" ({trial.stage})" if trial.stage else ""
        return f"{trial.candidate}{stage}: {outcome}"
