"""The schemes of each pattern: which are proposed, their latencies, and which one applies."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import chain

from qdqtune.autotune._tuned_pattern import (
    EdgeClosure,
    Schemes,
    TunedPattern,
    edges_of,
    patterns_of,
)
from qdqtune.graph._index import GraphIndex
from qdqtune.records._errors import InvalidSchemeError
from qdqtune.records._placement import Edge
from qdqtune.search._config import Config
from qdqtune.search.patterns._insertion_points import InsertionPoint
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.search.patterns._region_pattern import InsertionScheme, PatternSchemes
from qdqtune.search.regions._region import Region

# Probability, once every point was tested, that the next step changes a single point of the fastest
# scheme.
_SINGLE_STEPS = 0.5


def variations(
    measured: Sequence[InsertionScheme],
    points: Sequence[InsertionPoint],
    config: Config,
    chance: random.Random,
) -> Iterator[InsertionScheme]:
    """Yield schemes that differ from a fast one in a few points; they need not be new.

    First every point is changed once in the fastest scheme: if points are independent, that is
    enough to find the best scheme. Then such steps are randomly mixed with larger ones from any
    fast scheme. Finally, every single point of each of those is tried, so that no neighbour of a
    fast scheme is missed.

    Args:
        measured: Schemes that were measured without an error.
        points: All points.
        config: How many schemes to start from, how many points to change, how often to try.
        chance: The random generator.
    """
    if not points or not measured or not config.maximum_mutations:
        return
    bases = _fastest(measured, config)
    tested = _times_tested(measured, points)
    order = sorted(chance.sample(points, len(points)), key=tested.__getitem__)
    for point in order:
        if not tested[point]:
            yield flipped(bases[0], [point], points)
    for attempt in range(config.maximum_generation_attempts):
        if chance.random() < _SINGLE_STEPS:
            yield flipped(bases[0], [order[attempt % len(order)]], points)
        else:
            count = chance.randint(1, min(config.maximum_mutations, len(points)))
            yield flipped(chance.choice(bases), chance.sample(points, count), points)
    for base in bases:
        for point in order:
            yield flipped(base, [point], points)


def flipped(
    base: InsertionScheme, changed: Sequence[InsertionPoint], points: Sequence[InsertionPoint]
) -> InsertionScheme:
    """Return a scheme with some points added, or removed if it has them.

    Args:
        base: The scheme.
        changed: The points to change.
        points: All points, in the order of the result.
    """
    wanted = set(base.points()) ^ set(changed)
    return InsertionScheme.of(point for point in points if point in wanted)


def _fastest(measured: Sequence[InsertionScheme], config: Config) -> list[InsertionScheme]:
    count = max(
        1,
        int(config.top_percent_to_mutate * len(measured)),
        min(config.minimum_schemes_to_mutate, len(measured)),
    )
    return sorted(measured, key=lambda scheme: scheme.latency_ms)[:count]


def _times_tested(
    measured: Sequence[InsertionScheme], points: Sequence[InsertionPoint]
) -> dict[InsertionPoint, int]:
    """Count how often each point was the only difference between two schemes."""
    known = {frozenset(scheme.points()) for scheme in measured}
    return {point: sum(each ^ {point} in known for each in known) for point in points}


class Profiling:
    """Schemes of one pattern, tried one after the other in the best model so far.

    Two schemes that lead to the same model are one candidate: the second is never generated. Random
    choices depend on the seed, the pattern and the number of schemes, so that a resumed run
    continues as the original would have.

    Args:
        tuned: The pattern.
        schemes: Schemes that were tried or should be tried first; unmeasured ones that lead to the
            same model as an earlier one are left out.
        others: The schemes of other patterns that it is tried with.
        measured: Latencies of all models that were measured, by quantized edges.
        config: How schemes are varied.
        seed: The random seed.

    Attributes:
        tuned: The pattern.
        schemes: All schemes, the fastest first.
        index: Index of the scheme that was generated last; -1 if there is none, or no more.
    """

    def __init__(
        self,
        tuned: TunedPattern,
        schemes: Iterable[InsertionScheme],
        others: Schemes,
        measured: dict[frozenset[Edge], float],
        config: Config,
        seed: int,
    ) -> None:
        self.tuned = tuned
        self.index = -1
        self._others = others
        self._measured = measured
        self._config = config
        self._seed = seed
        self._tried: set[frozenset[Edge]] = set()
        # Schemes of other patterns, where they differ from `others`, by the identity of a scheme.
        self._whole: dict[int, Schemes] = {}
        self.schemes = PatternSchemes(tuned.pattern)
        for scheme in schemes:
            is_new = self._is_new(scheme, others)
            if is_new or scheme.is_profiled or scheme.is_empty:
                self.schemes.schemes.append(scheme)
        self._sort()

    @property
    def current(self) -> InsertionScheme | None:
        """The scheme that was generated last."""
        return self.schemes.schemes[self.index] if self.index >= 0 else None

    def select(self, index: int) -> None:
        """Make another scheme the current one.

        Raises:
            InvalidSchemeError: If there is no such scheme.
        """
        count = self.schemes.num_schemes
        if not -1 <= index < count:
            raise InvalidSchemeError(
                f"There is no scheme {index}.", f"There are {count}; -1 stands for none."
            )
        self.index = index

    def others(self, scheme: InsertionScheme | None) -> Schemes | None:
        """Return other patterns' schemes that a scheme was tried with; None for the best known."""
        return None if scheme is None else self._whole.get(id(scheme))

    def enter_empty(self, latency_ms: float) -> None:
        """Add the scheme without points, which is the best model so far, with its known latency.

        An existing one that was not measured belongs to a best model found as a whole: without this
        pattern's part, that model must be measured, unless it already was.
        """
        empty = next((each for each in self.schemes.schemes if each.is_empty), None)
        if empty is None:
            empty = InsertionScheme()
            self.schemes.schemes.append(empty)
        elif not empty.is_profiled:
            latency_ms = self._measured.get(edges_of(self._others), math.inf)
        if not empty.is_profiled and math.isfinite(latency_ms):
            empty.latency_ms, empty.profile_timestamp = latency_ms, _now()
        self._tried.add(edges_of(self._others))
        self._sort()

    def generate(self, whole: Iterator[Schemes]) -> int:
        """Return the index of the next scheme to measure; -1 if there are no more.

        Args:
            whole: Whole models to try before variations of the scheme.
        """
        schemes = self.schemes.schemes
        waiting = (place for place, each in enumerate(schemes) if not each.is_profiled)
        self.index = next(waiting, -1)
        if self.index < 0 and (new := self._next(whole)) is not None:
            schemes.append(new)
            self.index = len(schemes) - 1
        return self.index

    def _next(self, whole: Iterator[Schemes]) -> InsertionScheme | None:
        for others in whole:
            new = InsertionScheme.of(others[self.tuned].points() if self.tuned in others else ())
            if self._is_new(new, others):
                self._whole[id(new)] = others
                return new
        best = self.others(self.schemes.best_scheme)
        for new in self._proposals():
            if self._is_new(new, best or self._others):
                if best:
                    self._whole[id(new)] = best
                return new
        return None

    @property
    def results(self) -> list[PatternSchemes]:
        """Its schemes, and those of other patterns in the best model, if that was found as a whole.

        Each of the others also has an unmeasured empty scheme, which marks it as unfinished.
        """
        found = [self.schemes]
        best = self.schemes.best_scheme
        for tuned, each in (self.others(best) or {}).items():
            if best is not None and tuned is not self.tuned:
                ms, when = best.latency_ms, best.profile_timestamp
                part = replace(each, latency_ms=ms, profile_timestamp=when)
                found.append(PatternSchemes(tuned.pattern, [part, InsertionScheme()]))
        return found

    def submit(self, latency_ms: float, *, success: bool) -> None:
        """Record the latency of the scheme that was generated last.

        Raises:
            InvalidSchemeError: If there is none.
        """
        scheme = self.current
        if scheme is None:
            raise InvalidSchemeError(
                "There is no scheme that this latency could belong to.", "Call generate() first."
            )
        scheme.error = not success
        scheme.latency_ms = latency_ms if success else math.inf
        scheme.profile_timestamp = _now()
        edges = self._edges(scheme, self.others(scheme) or self._others)
        self._measured[edges] = scheme.latency_ms
        self._sort()

    def _sort(self) -> None:
        """Sort schemes, fastest first; the current scheme stays the same."""
        current, schemes = self.current, self.schemes.schemes
        schemes.sort(key=lambda each: math.inf if each.error else each.latency_ms)
        if current is not None:
            self.index = next(place for place, each in enumerate(schemes) if each is current)

    def _proposals(self) -> Iterator[InsertionScheme]:
        schemes, points = self.schemes.schemes, self.tuned.points
        best = self.others(self.schemes.best_scheme)
        measured = [
            each
            for each in schemes
            if each.is_profiled and not each.error and self.others(each) is best
        ]
        chance = random.Random(f"{self._seed}/{len(schemes)}/{self.schemes.pattern_signature}")
        everything = [InsertionScheme.of(points)]
        return chain(everything, variations(measured, points, self._config, chance))

    def _edges(self, scheme: InsertionScheme, others: Schemes) -> frozenset[Edge]:
        rest = {tuned: each for tuned, each in others.items() if tuned is not self.tuned}
        return self.tuned.edges(scheme) | edges_of(rest)

    def _is_new(self, scheme: InsertionScheme, others: Schemes) -> bool:
        """Whether a scheme leads to a model that was not tried yet; marks it as tried."""
        edges = self._edges(scheme, others)
        is_new = edges not in self._tried and edges not in self._measured
        self._tried.add(edges)
        return is_new


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


class PatternResults:
    """The patterns of a model's regions, and the schemes that apply to them.

    Args:
        regions: The regions.
        index: The graph.
        closure: Expands places to edges in the dialect.

    Attributes:
        closure: As passed.
        of_region: The pattern of each region.
        by_signature: The patterns, by signature with shapes.

    Raises:
        AutotunerError: If a region doesn't fit the graph.
    """

    def __init__(self, regions: Iterable[Region], index: GraphIndex, closure: EdgeClosure) -> None:
        self.closure = closure
        self.of_region = patterns_of(regions, index, closure)
        self.by_signature: Mapping[str, TunedPattern] = {
            tuned.pattern.signature: tuned for tuned in self.of_region.values()
        }

    def choices(
        self,
        profiled: Iterable[PatternSchemes],
        profiling: Profiling | None,
        imported: PatternCache | None,
        *,
        best: bool,
    ) -> Schemes:
        """Return the scheme of each pattern that has one.

        Args:
            profiled: The schemes tried, for each finished pattern.
            profiling: The pattern that is being profiled, if any.
            imported: The cache with imported schemes, which apply to patterns without tried
                schemes.
            best: Whether to use its fastest scheme instead of the one generated last.
        """
        found: dict[TunedPattern, InsertionScheme | None] = {}
        done = by_signature(profiled)
        for tuned in self.by_signature.values():
            known = done.get(tuned.pattern.signature) or done.get(tuned.plain.signature)
            if known is not None:
                found[tuned] = known.best_scheme
            elif imported is not None:
                found[tuned] = imported_scheme(tuned, imported)
        if profiling is not None:
            current = None if best else profiling.current
            scheme = current or profiling.schemes.best_scheme
            found = {**(profiling.others(scheme) or found), profiling.tuned: scheme}
        return {tuned: scheme for tuned, scheme in found.items() if scheme is not None}


def imported_scheme(tuned: TunedPattern, cache: PatternCache) -> InsertionScheme | None:
    """Return the imported scheme of a pattern: its only one in the cache, and not measured."""
    for pattern in (tuned.pattern, tuned.plain):
        known = cache.get_pattern_schemes(pattern.signature)
        if known is not None:
            (*others, last) = known.schemes or [InsertionScheme()]
            is_imported = not others and not last.is_profiled
            return last if is_imported and tuned.fits(last) else None
    return None


def by_signature(profiled: Iterable[PatternSchemes]) -> dict[str, PatternSchemes]:
    """Return patterns by signature; of several with the same one, the first."""
    return {each.pattern_signature: each for each in reversed(list(profiled))}


def seeds_of(
    tuned: TunedPattern,
    imports: Iterable[frozenset[str]],
    cache: PatternCache,
    config: Config,
) -> list[InsertionScheme]:
    """Return schemes to try first: imported ones, then a few of the fastest in the cache.

    A cache may contain more schemes than the benchmark limit; variations need some of it, too.

    Args:
        tuned: The pattern.
        imports: Sets of tensors that other tools quantized.
        cache: Searched for the structure with shapes, then for the structure alone.
        config: Limits the number of schemes from the cache.
    """
    seeds = [scheme for tensors in imports for scheme in tuned.from_tensors(tensors)]
    cached: list[InsertionScheme] = []
    for pattern in (tuned.pattern, tuned.plain):
        known = cache.get_pattern_schemes(pattern.signature)
        if known is not None and not any(each.is_profiled for each in cached):
            cached += known.schemes
    cached.sort(key=lambda each: each.is_profiled)
    seeds += cached[: max(1, config.minimum_schemes_to_mutate)]
    fresh = [copy.deepcopy(each) for each in tuned.fitting(seeds) if not each.is_empty]
    for each in fresh:
        each.latency_ms, each.error, each.profile_timestamp = math.inf, False, None
    return fresh


def remember(cache: PatternCache, profiling: Profiling) -> None:
    """Add measured schemes to a cache, for the structure with and without shapes."""
    sound = [each for each in profiling.schemes.schemes if each.is_profiled and not each.error]
    add_to_cache(cache, profiling.tuned, sound)


def add_to_cache(
    cache: PatternCache, tuned: TunedPattern, schemes: Iterable[InsertionScheme]
) -> None:
    """Add schemes to a cache, for the structure with and without shapes."""
    listed = list(schemes)
    for pattern in (tuned.pattern, tuned.plain):
        cache.add_pattern_schemes(PatternSchemes(pattern, listed))


def is_done(schemes: PatternSchemes, tuned: TunedPattern) -> bool:
    """Whether a scheme with points was tried, if there are any, and all were measured."""
    tried = any(not each.is_empty for each in schemes.schemes) or not tuned.points
    return tried and all(each.is_profiled for each in schemes.schemes)


def is_part(schemes: PatternSchemes) -> bool:
    """Whether these come from `Profiling.results` for another pattern that is still to be tried."""
    measured, *others = schemes.schemes or [InsertionScheme()]
    return measured.is_profiled and others == [InsertionScheme()]
