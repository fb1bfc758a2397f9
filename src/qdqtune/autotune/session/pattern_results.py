"""What is known of each pattern of a model: what was tried, and which scheme applies."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping

from qdqtune.autotune.config import Config
from qdqtune.autotune.patterns.pattern_cache import PatternCache
from qdqtune.autotune.patterns.pattern_schemes import PatternSchemes
from qdqtune.autotune.patterns.scheme import InsertionScheme
from qdqtune.autotune.regions.region import Region
from qdqtune.autotune.session.edge_closure import EdgeClosure
from qdqtune.autotune.session.profiling import Profiling
from qdqtune.autotune.session.tuned_pattern import TunedPattern, patterns_of
from qdqtune.graph.index import GraphIndex
from qdqtune.records.placement import Edge

Choice = tuple[TunedPattern, InsertionScheme]


class PatternResults:
    """The patterns of a model's regions, and the schemes that apply to them.

    Args:
        regions: The regions.
        index: The graph.
        closure: What places come to in the dialect.

    Attributes:
        closure: What places come to in the dialect.
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
    ) -> Iterator[Choice]:
        """The scheme of each pattern that has one.

        Args:
            profiled: What was tried, of patterns that are done.
            profiling: The pattern that is being profiled, if one is.
            imported: Where schemes lie that count for patterns of which nothing was tried.
            best: Whether its fastest scheme counts, not the one that was handed out last.
        """
        done = by_signature(profiled)
        for tuned in self.by_signature.values():
            known = done.get(tuned.pattern.signature) or done.get(tuned.plain.signature)
            if profiling is not None and profiling.tuned.pattern == tuned.pattern:
                current = None if best else profiling.current
                scheme = current or profiling.schemes.best_scheme
            elif known is not None:
                scheme = known.best_scheme
            else:
                scheme = imported_scheme(tuned, imported) if imported is not None else None
            if scheme is not None:
                yield tuned, scheme


def imported_scheme(tuned: TunedPattern, cache: PatternCache) -> InsertionScheme | None:
    """The scheme that somebody imported for a pattern: its only one in the cache, not measured."""
    for pattern in (tuned.pattern, tuned.plain):
        known = cache.get_pattern_schemes(pattern.signature)
        if known is not None:
            (*others, last) = known.schemes or [InsertionScheme()]
            is_imported = not others and not last.is_profiled
            return last if is_imported and tuned.fits(last) else None
    return None


def by_signature(profiled: Iterable[PatternSchemes]) -> dict[str, PatternSchemes]:
    """Patterns by signature; the first counts where there are several."""
    return {each.pattern_signature: each for each in reversed(list(profiled))}


def edges_of(choices: Iterable[Choice]) -> frozenset[Edge]:
    """Every edge that sees a quantized value."""
    return frozenset[Edge]().union(*(tuned.edges(scheme) for tuned, scheme in choices))


def seeds_of(
    tuned: TunedPattern,
    imports: Iterable[frozenset[str]],
    cache: PatternCache,
    config: Config,
) -> list[InsertionScheme]:
    """Schemes to try first: what was imported, then the fastest in the cache, a few of them.

    A cache may know more schemes than there will be benchmarks; variations need some, too.

    Args:
        tuned: The pattern.
        imports: Sets of tensors that others quantized.
        cache: It is asked for the structure with shapes, then for the structure alone.
        config: How many schemes of the cache are enough.
    """
    seeds = [scheme for tensors in imports for scheme in tuned.from_tensors(tensors)]
    cached: list[InsertionScheme] = []
    for pattern in (tuned.pattern, tuned.plain):
        known = cache.get_pattern_schemes(pattern.signature)
        if known is not None and not any(each.is_profiled for each in cached):
            cached += known.schemes
    cached.sort(key=lambda each: each.is_profiled)
    seeds += cached[: max(1, config.minimum_schemes_to_mutate)]
    fresh = [copy.deepcopy(each) for each in tuned.fitting(seeds)]
    for each in fresh:
        each.latency_ms, each.error, each.profile_timestamp = math.inf, False, None
    return fresh


def remember(cache: PatternCache, profiling: Profiling) -> None:
    """Let a cache know what was measured, for the structure with and without shapes."""
    sound = [each for each in profiling.schemes.schemes if each.is_profiled and not each.error]
    add_to_cache(cache, profiling.tuned, sound)


def add_to_cache(
    cache: PatternCache, tuned: TunedPattern, schemes: Iterable[InsertionScheme]
) -> None:
    """Put schemes into a cache, for the structure with and without shapes."""
    listed = list(schemes)
    for pattern in (tuned.pattern, tuned.plain):
        cache.add_pattern_schemes(PatternSchemes(pattern, listed))


def is_done(schemes: PatternSchemes, tuned: TunedPattern) -> bool:
    """Whether all that was to be tried was."""
    tried = any(not each.is_empty for each in schemes.schemes) or not tuned.points
    return tried and all(each.is_profiled for each in schemes.schemes)
