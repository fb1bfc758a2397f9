"""What was tried, pattern by pattern: `autotuner_state.yaml` and the pattern cache beside it.

Snapshots for people, and for `qdqtune.autotune.QDQAutotuner`; what a run goes on from is the
journal.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqtune.autotune.config import Config
from qdqtune.autotune.errors import AutotunerError, NewerVersionError
from qdqtune.autotune.patterns.pattern_cache import PatternCache
from qdqtune.autotune.patterns.pattern_schemes import PatternSchemes
from qdqtune.autotune.patterns.pattern_views import PatternView
from qdqtune.autotune.patterns.region_pattern import RegionPattern
from qdqtune.autotune.patterns.scheme import InsertionScheme
from qdqtune.autotune.patterns.state_file import pattern_cache_path, read_state, write_state
from qdqtune.autotune.search.space import Space, State
from qdqtune.graph.files import check_writable
from qdqtune.graph.whole_files import writing
from qdqtune.records.errors import UsageError
from qdqtune.records.placement import Edge
from qdqtune.records.tuning import AS_GIVEN

_logger = logging.getLogger(__name__)


class Snapshots:
    """Writes what is known of each pattern.

    Args:
        path: The state file; the pattern cache lies beside it.
        header: What the measurements depend on.
        quant_type: To what is quantized.
        threshold: The speedup that a final model must have.
        given: What the search was given from other runs, which is passed on.

    Raises:
        NewerVersionError: If a newer version wrote what lies there.
        OutputError: If what lies there is damaged and can't be moved.
    """

    def __init__(
        self,
        path: Path,
        header: Mapping[str, Any],
        quant_type: str,
        threshold: float,
        given: PatternCache | None = None,
    ) -> None:
        self._path = path
        self._header = dict(header)
        self._config = Config(
            default_quant_type=quant_type, performance_threshold=max(threshold, 1e-9)
        )
        self._given = given
        self._schemes: dict[State, list[InsertionScheme]] = {}
        self._units: dict[str, frozenset[Edge]] = {}
        self._check()

    def write(
        self,
        space: Space,
        views: tuple[PatternView, ...],
        gains: Mapping[State, float],
        best: State,
        baseline_ms: float,
    ) -> None:
        """Write both files.

        A scheme's latency is that of the fastest model with it. What lost against the best is
        never said to be faster than it, however lucky its own measurement was.

        Args:
            space: What states mean.
            views: The model's patterns.
            gains: Log speedup of everything that was tried.
            best: The best of it.
            baseline_ms: Latency of the float model.
        """
        best_ms = baseline_ms * math.exp(-gains.get(best, 0.0))
        found: list[dict[str, InsertionScheme]] = [{} for _ in views]
        for state in (best, *gains):
            latency_ms = baseline_ms * math.exp(-gains.get(state, 0.0))
            latency_ms = best_ms if state == best else max(latency_ms, best_ms)
            for known, scheme in zip(found, self._schemes_of(space, views, state), strict=True):
                kept = known.setdefault(scheme.hash, _copy(scheme))
                kept.latency_ms = min(kept.latency_ms, latency_ms)
        patterns = [
            PatternSchemes(view.pattern, list(known.values()))
            for view, known in zip(views, found, strict=True)
            if view.edges
        ]
        write_state(
            self._path,
            baseline_latency_ms=baseline_ms,
            config=self._config,
            patterns=patterns,
            header=self._header,
        )
        self._cache(views, patterns).save(pattern_cache_path(self._path))

    def _schemes_of(
        self, space: Space, views: tuple[PatternView, ...], state: State
    ) -> list[InsertionScheme]:
        if state not in self._schemes:
            index, units = space.completion.index, space.completion.units
            if not self._units:
                self._units = {name: index.effective(unit) for name, unit in units.items()}
            edges = index.effective(space.placement(state))
            kernels = {name for name, unit in self._units.items() if unit <= edges}
            self._schemes[state] = [view.scheme_in(edges, kernels) for view in views]
        return self._schemes[state]

    def _cache(
        self, views: tuple[PatternView, ...], patterns: list[PatternSchemes]
    ) -> PatternCache:
        """The best of each pattern, and of each structure: there, what more regions have first."""
        cache = PatternCache()
        structures = {view.pattern: view.structure for view in views}
        regions = {view.pattern: view.regions for view in views}
        of_pattern: dict[RegionPattern, PatternSchemes] = {}
        for each in patterns:
            assert each.pattern is not None
            cache.add_pattern_schemes(each)
            of_pattern[each.pattern] = each
        for pattern in sorted(of_pattern, key=lambda each: -regions[each]):
            schemes = of_pattern[pattern].schemes
            cache.add_pattern_schemes(PatternSchemes(structures[pattern], schemes))
        if self._given is not None:
            cache.merge(self._given)
        return cache

    def _check(self) -> None:
        """Look at what lies there: what is damaged is moved away, what is newer refused."""
        for path, read in (
            (self._path, read_state),
            (pattern_cache_path(self._path), PatternCache.load),
        ):
            try:
                read(path)
            except FileNotFoundError:
                continue
            except NewerVersionError:
                raise
            except AutotunerError as error:
                moved = _free_name(path)
                _logger.warning("%s. It was moved to %s.", error.what.rstrip("."), moved.name)
                with writing(moved):
                    os.replace(path, moved)


def check_state_file(path: Path, model: str, quant_type: str, precision: str | None = None) -> None:
    """Make sure that a state file that the user names may be written to.

    Args:
        path: The file; there may be none.
        model: Fingerprint of the model.
        quant_type: To what is quantized.
        precision: The float type that the model was converted to; None if that is not known yet.
            Then the state of a converted model is not looked at closely.

    Raises:
        UsageError: If it is the state of another model, quant type or float type.
        AutotunerError: If it is no state file.
        OutputError: If it can't be written there.
    """
    check_writable(path, force=True)
    try:
        header = read_state(path).header
    except FileNotFoundError:
        return
    written = header.get("precision", AS_GIVEN)
    if precision is None:
        precision, model = written, model if written == AS_GIVEN else header.get("model", model)
    wanted = {"precision": precision, "model": model, "quant_type": quant_type}
    for field, value in wanted.items():
        there = header.get(field, written if field == "precision" else value)
        if there != value:
            # A fingerprint tells models apart, but it tells people nothing.
            values = "" if field == "model" else f": {there!r}, not {value!r}"
            raise UsageError(
                f"{path} is the state of a run with another {field}{values}.",
                "Name another state file.",
            )


def _free_name(path: Path) -> Path:
    """A name for a damaged file that no other one has."""
    number = 1
    while True:
        moved = path.with_name(f"{path.stem}.damaged-{number}{path.suffix}")
        if not moved.exists():
            return moved
        number += 1


def given_cache(path: Path | None) -> PatternCache | None:
    """A pattern cache that the user names; one that can't be read is done without.

    Args:
        path: The file, if any.
    """
    if path is None:
        return None
    try:
        return PatternCache.load(path)
    except FileNotFoundError:
        _logger.warning("there is no pattern cache %s: the search begins without it", path)
    except AutotunerError as error:
        _logger.warning("%s The search begins without it.", error.what)
    return None


def _copy(scheme: InsertionScheme) -> InsertionScheme:
    return InsertionScheme(scheme.node_inputs, scheme.child_region_inputs, scheme.region_outputs)
