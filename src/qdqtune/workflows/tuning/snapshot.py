"""What was tried, pattern by pattern: `autotuner_state.yaml` and the pattern cache beside it.

Snapshots for people, for `qdqtune.autotune.QDQAutotuner`, and for runs in other folders, which go
on from the measurements in them. In its own folder, a run goes on from the journal.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from qdqtune.autotune.search.trial import speedup_of
from qdqtune.graph.atomic_files import writing
from qdqtune.qdq.quantization_planner import QuantizationPlanner
from qdqtune.records.placement import Edge, Placement
from qdqtune.workflows.tuning.named_state import free_name

_logger = logging.getLogger(__name__)

_EVERY_S = 1.0
# Writing takes at most one part in so many of a run's time.
_TIMES_COST = 50.0


@dataclass(frozen=True)
class Candidate:
    """A whole model that was tried.

    Attributes:
        name: Its id in the journal; empty if it was never a candidate of the search.
        key: Digest of its placement.
        placement: What is quantized in it.
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
    """A scheme of a pattern, and the fastest candidate that has it.

    Attributes:
        scheme: The scheme; an error if every candidate with it failed.
        candidate: The candidate.
    """

    scheme: InsertionScheme
    candidate: Candidate


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
        self._schemes: dict[str, list[tuple[str, InsertionScheme]]] = {}
        self._units: dict[str, frozenset[Edge]] = {}
        self._due_s = 0.0
        self._check()

    @property
    def exist(self) -> bool:
        """Whether there is one, of this run or of an earlier one."""
        return self._path.exists()

    @property
    def is_due(self) -> bool:
        """Whether it is time to write again: often, and at little cost beside what is measured."""
        return time.monotonic() >= self._due_s

    def write(
        self,
        planner: QuantizationPlanner,
        views: tuple[PatternView, ...],
        candidates: Sequence[Candidate],
        best: Candidate,
        baseline_ms: float,
        measurements: Iterable[str] = (),
    ) -> list[list[TriedScheme]]:
        """Write both files.

        A scheme's latency is that of the fastest model with it. What lost against the best is
        never said to be as fast, however lucky its own measurement was. Schemes are in the order in
        which they were first tried, so that their numbers stay.

        Args:
            planner: What each op needs.
            views: The model's patterns.
            candidates: Everything that was tried, in order.
            best: The best of it; if it is none of them, it comes last.
            baseline_ms: Latency of the float model.
            measurements: Lines of the journal, for a run that goes on elsewhere.

        Returns:
            What was tried of each pattern.
        """
        start_s = time.monotonic()
        found: list[dict[str, TriedScheme]] = [{} for _ in views]
        best_ms = baseline_ms / speedup_of(best.gain)
        known = [each for each in candidates if each.key != best.key]
        place = next((n for n, each in enumerate(candidates) if each.key == best.key), len(known))
        known.insert(place, best)
        for each in known:
            latency_ms = best_ms
            if each.key != best.key:
                own_ms = baseline_ms / speedup_of(each.gain)
                latency_ms = max(own_ms, math.nextafter(best_ms, math.inf))
            schemes = self._schemes_of(planner, views, each)
            for tried, (digest, scheme) in zip(found, schemes, strict=True):
                _note(tried, digest, scheme, each, latency_ms)
        tried_of = [list(tried.values()) for tried in found]
        patterns = [
            PatternSchemes(view.pattern, [each.scheme for each in tried])
            for view, tried in zip(views, tried_of, strict=True)
            if view.edges
        ]
        write_state(
            self._path,
            baseline_latency_ms=baseline_ms,
            config=self._config,
            patterns=patterns,
            header=self._header,
            measurements=measurements,
        )
        self._cache(views, patterns).save(pattern_cache_path(self._path))
        end_s = time.monotonic()
        self._due_s = end_s + max(_EVERY_S, _TIMES_COST * (end_s - start_s))
        return tried_of

    def _schemes_of(
        self, planner: QuantizationPlanner, views: tuple[PatternView, ...], candidate: Candidate
    ) -> list[tuple[str, InsertionScheme]]:
        """What a candidate comes to in each pattern, with the hash of it."""
        if candidate.key not in self._schemes:
            index, units = planner.index, planner.units
            if not self._units:
                self._units = {name: index.effective(unit) for name, unit in units.items()}
            edges = index.effective(candidate.placement)
            kernels = {name for name, unit in self._units.items() if unit <= edges}
            schemes = [view.scheme_in(edges, kernels) for view in views]
            self._schemes[candidate.key] = [(scheme.hash, scheme) for scheme in schemes]
        return self._schemes[candidate.key]

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
                moved = free_name(path, "damaged")
                _logger.warning("%s. It was moved to %s.", error.what.rstrip("."), moved.name)
                with writing(moved):
                    os.replace(path, moved)


def given_cache(path: Path | None) -> PatternCache | None:
    """A pattern cache that the user names; one that can't be read is done without.

    Args:
        path: The file, if any.

    Raises:
        NewerVersionError: If a newer version wrote it.
    """
    if path is None:
        return None
    try:
        return PatternCache.load(path)
    except NewerVersionError:
        raise
    except FileNotFoundError:
        _logger.warning("there is no pattern cache %s: the search begins without it", path)
    except AutotunerError as error:
        _logger.warning("%s The search begins without it.", error.what)
    return None


def _note(
    tried: dict[str, TriedScheme],
    digest: str,
    scheme: InsertionScheme,
    candidate: Candidate,
    latency_ms: float,
) -> None:
    """Note a candidate for its scheme if it is the first, or faster than the one that is noted."""
    kept = tried.get(digest)
    if kept is None:
        own = InsertionScheme(scheme.node_inputs, scheme.child_region_inputs, scheme.region_outputs)
        own.error = bool(candidate.failure)
        kept = tried[digest] = TriedScheme(own, candidate)
    if candidate.failure:
        return
    if kept.scheme.error or latency_ms < kept.scheme.latency_ms:
        kept.candidate = candidate
    kept.scheme.error = False
    kept.scheme.latency_ms = min(kept.scheme.latency_ms, latency_ms)
