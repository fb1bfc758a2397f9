"""Records of a run: journal, `autotuner_state.yaml`, pattern cache, a log per scheme."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qdqtune.engines._worker_environment import BuildLog
from qdqtune.graph._atomic_files import replacing, writing
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._errors import (
    AutotunerError,
    NewerVersionError,
    OutputError,
)
from qdqtune.records._measurement import EngineInfo
from qdqtune.records._placement import Edge, Placement
from qdqtune.records._tuning import Summary
from qdqtune.search._config import Config
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.search.patterns._pattern_outcomes import PatternOutcome
from qdqtune.search.patterns._region_pattern import InsertionScheme, PatternSchemes, PatternView
from qdqtune.search.patterns._state_file import pattern_cache_path, read_state, write_state
from qdqtune.search.strategies._strategy import speedup_of
from qdqtune.workflows.tuning._final_check import PreviousResult, previous_result
from qdqtune.workflows.tuning._folder import (
    BASELINE,
    CANDIDATES,
    ENGINE_LOG,
    FINAL,
    FLOAT_CANDIDATE,
    JOURNAL,
    LOGS,
    STATE,
)
from qdqtune.workflows.tuning._journal import Journal
from qdqtune.workflows.tuning._journal_format import check_state
from qdqtune.workflows.tuning._setup import TuningTarget

_logger = logging.getLogger(__name__)

_EVERY_S = 1.0
# Writing takes at most one part in this many of a run's time.
_TIMES_COST = 50.0
_SCHEMES = "region_{}_scheme_{}.log"


@dataclass(frozen=True)
class Candidate:
    """A whole model that was tried.

    Attributes:
        name: Its id in the journal; empty if it was never a candidate of the search.
        key: Digest of its placement.
        placement: Its placement.
        gain: Its log speedup over the float model; minus infinity if it failed.
        failure: Why it failed; empty if it did not.
    """

    name: str
    key: str
    placement: Placement
    gain: float
    failure: str = ""


@dataclass
class TriedScheme:
    """A scheme of a pattern, and the fastest candidate with it.

    Attributes:
        scheme: The scheme; an error if every candidate with it failed.
        candidate: The candidate.
    """

    scheme: InsertionScheme
    candidate: Candidate


@dataclass
class Snapshots:
    """Writes what is known about each pattern.

    Attributes:
        path: The state file; the pattern cache is next to it.
        header: Everything that the measurements depend on.
        config: The search settings in the state file.
        given: The pattern cache from other runs, which is passed on.

    Raises:
        NewerVersionError: If a newer version wrote the existing files.
        OutputError: If existing files are damaged and can't be moved.
    """

    path: Path
    header: Mapping[str, Any]
    config: Config
    given: PatternCache | None = None
    _schemes: dict[str, list[tuple[str, InsertionScheme]]] = field(default_factory=dict, init=False)
    _units: dict[str, frozenset[Edge]] = field(default_factory=dict, init=False)
    _due_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Check existing files: damaged ones are moved away, newer ones refused."""
        for path, read in (
            (self.path, read_state),
            (pattern_cache_path(self.path), PatternCache.load),
        ):
            try:
                read(path)
            except FileNotFoundError:
                continue
            except NewerVersionError:
                raise
            except AutotunerError as error:
                moved = _set_aside(path, "damaged")
                _logger.warning("%s. It was moved to %s.", error.what.rstrip("."), moved.name)

    @property
    def exist(self) -> bool:
        """Whether there is one, from this run or an earlier one."""
        return self.path.exists()

    @property
    def is_due(self) -> bool:
        """Whether to write again: often, but at little cost compared with the measurements."""
        return time.monotonic() >= self._due_s

    def write(
        self,
        planner: QuantizationPlanner,
        views: Sequence[PatternView],
        candidates: Sequence[Candidate],
        best: Candidate,
        baseline_ms: float,
        measurements: Iterable[str] = (),
        outcomes: Iterable[PatternOutcome] = (),
    ) -> list[list[TriedScheme]]:
        """Write both files.

        A scheme's latency is that of the fastest model with it. A scheme that lost against the best
        is never recorded as equally fast, however lucky its measurement was. Schemes are in the
        order in which they were first tried, so that their numbers don't change.

        Args:
            planner: Knows what each op needs to be quantized.
            views: The model's patterns that have insertion points.
            candidates: All candidates, in order.
            best: The best candidate; if it is not among them, it comes last.
            baseline_ms: Latency of the float model.
            measurements: Lines of the journal, for a run that continues elsewhere.
            outcomes: What the run found out about patterns, if it has ended.

        Returns:
            The schemes tried for each pattern.
        """
        start_s = time.monotonic()
        best_ms = baseline_ms / speedup_of(best.gain)
        known = [best if each.key == best.key else each for each in candidates]
        known += [best] if best not in known else []
        found: list[dict[str, TriedScheme]] = [{} for _ in views]
        for each in known:
            latency_ms = math.inf if each.failure else baseline_ms / speedup_of(each.gain)
            if each.key != best.key:
                latency_ms = max(latency_ms, math.nextafter(best_ms, math.inf))
            schemes = self._schemes_of(planner, views, each)
            for tried, (digest, scheme) in zip(found, schemes, strict=True):
                if digest not in tried or latency_ms < tried[digest].scheme.latency_ms:
                    own = replace(scheme, latency_ms=latency_ms, error=bool(each.failure))
                    tried[digest] = TriedScheme(own, each)
        tried_of = [list(tried.values()) for tried in found]
        patterns = [
            (view, PatternSchemes(view.pattern, [each.scheme for each in tried]))
            for view, tried in zip(views, tried_of, strict=True)
        ]
        write_state(
            self.path,
            baseline_latency_ms=baseline_ms,
            config=self.config,
            patterns=[tried for _, tried in patterns],
            header=self.header,
            measurements=measurements,
        )
        cache = self._cache(patterns)
        for outcome in outcomes:
            cache.add_outcome(outcome)
        cache.save(pattern_cache_path(self.path))
        end_s = time.monotonic()
        self._due_s = end_s + max(_EVERY_S, _TIMES_COST * (end_s - start_s))
        return tried_of

    def _schemes_of(
        self, planner: QuantizationPlanner, views: Sequence[PatternView], candidate: Candidate
    ) -> list[tuple[str, InsertionScheme]]:
        """Return a candidate's scheme in each pattern, with its hash."""
        if candidate.key not in self._schemes:
            if not self._units:
                self._units = effective_units(planner)
            edges = planner.index.effective(candidate.placement)
            kernels = {name for name, unit in self._units.items() if unit <= edges}
            schemes = [view.scheme_in(edges, kernels) for view in views]
            self._schemes[candidate.key] = [(scheme.hash, scheme) for scheme in schemes]
        return self._schemes[candidate.key]

    def _cache(self, patterns: Sequence[tuple[PatternView, PatternSchemes]]) -> PatternCache:
        """Return the best schemes of each pattern, and of each structure, most regions first."""
        cache = PatternCache()
        for _, tried in patterns:
            cache.add_pattern_schemes(tried)
        for view, tried in sorted(patterns, key=lambda each: -each[0].regions):
            cache.add_pattern_schemes(PatternSchemes(view.structure, tried.schemes))
        if self.given is not None:
            cache.merge(self.given)
        return cache


def effective_units(planner: QuantizationPlanner) -> dict[str, frozenset[Edge]]:
    """Return what must be quantized so that each op becomes an integer kernel, by name."""
    return {name: planner.index.effective(unit) for name, unit in planner.units.items()}


def set_state_aside(path: Path) -> None:
    """Rename the user's state file and its pattern cache, to keep them."""
    for file in (path, pattern_cache_path(path)):
        if file.exists():
            _set_aside(file, "earlier")


def _set_aside(path: Path, what: str) -> Path:
    """Rename a file to a name that no other file has."""
    names = (path.with_name(f"{path.stem}.{what}-{n}{path.suffix}") for n in itertools.count(1))
    moved = next(name for name in names if not name.exists())
    with writing(moved):
        os.replace(path, moved)
    return moved


class SchemeLogs:
    """Writes `baseline.log`, `final.log` and `region_<n>_scheme_<m>.log` into a run's logs.

    `n` is the region's number in `region_inspect` of the tuned float model and in `region_models`,
    `m` the scheme's in the state file. Regions of one pattern share its schemes, which use the
    number of the first one. A log that can't be written only causes a warning.

    Args:
        folder: The folder of logs.
        info: The engine that measures.
    """

    def __init__(self, folder: Path, info: EngineInfo) -> None:
        self._folder = folder
        self._info = info
        self._built = BuildLog(folder / ENGINE_LOG)
        self._written: dict[str, str] = {}
        self._is_broken = False

    def write_baseline(self, latency_ms: float) -> None:
        """Write the log of the original model."""
        self._write({"baseline.log": [f"baseline: {latency_ms:.6g} ms", *self._about(BASELINE)]})

    def write_final(self, summary: Summary) -> None:
        """Write the log of the result."""
        lines = [f"final: {summary.final_ms:.6g} ms ({summary.speedup:.3f}x speedup)"]
        if summary.kept_float:
            lines.append(f"the model as given is kept: {summary.reason}")
        self._write({"final.log": [*lines, *self._about(FINAL)]})

    def write_schemes(
        self, views: Sequence[PatternView], tried: Sequence[Sequence[TriedScheme]]
    ) -> None:
        """Write the logs of schemes that have changed, and remove those of schemes that are gone.

        Args:
            views: The model's patterns that have insertion points.
            tried: The schemes tried for each.
        """
        texts = {
            _SCHEMES.format(view.first.id, number): self._scheme(view, each)
            for view, schemes in zip(views, tried, strict=True)
            for number, each in enumerate(schemes)
        }
        self._write(texts)
        for file in self._folder.glob(_SCHEMES.format("*", "*")):
            if file.name not in texts:
                file.unlink(missing_ok=True)

    def _scheme(self, view: PatternView, tried: TriedScheme) -> list[str]:
        scheme, candidate = tried.scheme, tried.candidate
        points = [str(point) for point in scheme.points()] or ["none: left float"]
        model = FINAL if candidate.placement else BASELINE
        if candidate.name:
            model = f"{CANDIDATES}/{candidate.name}.onnx"
        lines = [
            f"region: {view.first.id} (level {view.first.level}) of "
            f"{CANDIDATES}/{FLOAT_CANDIDATE}.onnx, the first of {view.regions} with the pattern",
            f"pattern: {view.pattern.signature}",
            f"scheme: {scheme.hash}",
            *(f"point: {point}" for point in points),
            f"measured in: {model}",
        ]
        if scheme.error:
            lines += ["latency of the whole model: failed", candidate.failure]
        else:
            lines.append(f"latency of the whole model: {scheme.latency_ms:.6g} ms")
        return [*lines, *self._about(Path(model).name)]

    def _about(self, model: str) -> list[str]:
        """Return the engine's output while it built a model, or where to find it."""
        info = self._info
        lines = [f"engine: {info.name} {info.version} on {info.device} ({info.isa})"]
        own = self._folder / info.name / f"{Path(model).stem}.log"
        if own.exists():
            return [*lines, f"build log: {info.name}/{own.name}"]
        said = self._built.about(model) or ["nothing"]
        return [*lines, f"build log of {model}:", *(f"  {line}" for line in said)]

    def _write(self, texts: dict[str, list[str]]) -> None:
        try:
            for name, lines in texts.items():
                text = "\n".join(lines) + "\n"
                if self._written.get(name) != text:
                    with replacing(self._folder / name, durable=False) as file:
                        file.write(text.encode())
                    self._written[name] = text
        except OutputError as error:
            if not self._is_broken:
                _logger.warning("the logs of the schemes can't be written: %s", error.what)
            self._is_broken = True


@dataclass(frozen=True)
class TuningRun(TuningTarget):
    """The context of every stage: the target, with the files written along the way.

    Attributes:
        journal: All measurements.
        snapshots: The state and the pattern cache.
        logs: One log per scheme.
        earlier: The result of an earlier run, if any.
    """

    journal: Journal
    snapshots: Snapshots
    logs: SchemeLogs
    earlier: PreviousResult | None


@contextlib.contextmanager
def open_records(target: TuningTarget) -> Iterator[TuningRun]:
    """Resume an earlier run in the folder, or begin a new one.

    Raises:
        UsageError: If it, or a state file, was measured under other conditions.
        OutputError: If a file can't be read or written.
    """
    request, folder, reporter = target.request, target.folder, target.reporter
    config, header = request.config, target.header
    lines = _lines_of_state(target)
    model, path = str(request.model), folder / JOURNAL
    journal = Journal(path, header, lambda: reporter.elapsed_s, model)
    with contextlib.closing(journal):
        if adopted := journal.adopt(lines):
            known = f"{adopted} measurements known"
            reporter.tell("resume", f"resuming from {request.state_file}: {known}")
        if journal.session > 1:
            known = f"{journal.earlier_benchmarks} measurements known"
            reporter.tell("resume", f"resuming an earlier run: {known}")
        threshold = max(config.performance_threshold, 1e-9)
        settings = Config(default_quant_type=config.quant_type, performance_threshold=threshold)
        state = request.state_file or folder / STATE
        yield TuningRun(
            **vars(target),
            journal=journal,
            snapshots=Snapshots(state, header, settings, target.pattern_cache),
            logs=SchemeLogs(folder / LOGS, target.info),
            earlier=previous_result(folder),
        )


def _lines_of_state(target: TuningTarget) -> tuple[str, ...]:
    """Return the journal lines in the user's state file, which may come from another folder.

    Raises:
        UsageError: If it was measured under other conditions.
    """
    path = target.request.state_file
    if path is None or not path.exists():
        return ()
    if target.folder.begins_anew:
        set_state_aside(path)
        return ()
    state = read_state(path)
    check_state(path, state.header, target.header)
    return state.measurements
