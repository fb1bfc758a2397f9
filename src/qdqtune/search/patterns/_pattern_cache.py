"""A cache of the best schemes of patterns, kept across runs and models."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from qdqtune.graph._index import GraphIndex
from qdqtune.records._errors import AutotunerError, InvalidSchemeError
from qdqtune.records._untrusted_files import SCHEMAS
from qdqtune.search.patterns._pattern_outcomes import PatternOutcome
from qdqtune.search.patterns._region_pattern import (
    InsertionScheme,
    PatternSchemes,
    RegionPattern,
    scheme_from_tensors,
)
from qdqtune.search.patterns._state_file import YamlFile, read_yaml, write_yaml
from qdqtune.search.regions._canonical import scalable
from qdqtune.search.regions._region import KeyedList, Region

_log = logging.getLogger(__name__)


KIND = "pattern_cache"
SCHEMA = SCHEMAS[KIND]
# More would make a file that takes long to read: the oldest ones are dropped.
_MOST_OUTCOMES = 1000
_MAKE_AGAIN = "Leave it out: a tuning run writes a new one."


class PatternCache:
    """The fastest schemes of each pattern that differ enough from each other, and its outcomes.

    An outcome says what the result of a run quantizes in a pattern, in which form, and what was
    measured of it; also if all of it stays float. A pattern can be stored twice: with types and
    shapes, and as the structure alone, which other models may share. Counts of patterns and schemes
    treat both as one.

    Args:
        pattern_schemes: The initial content.
        minimum_distance: Minimum number of points in which two schemes of a pattern differ.
        max_entries_per_pattern: Maximum number of schemes kept per pattern.

    Raises:
        AutotunerError: If a limit is not a whole number of at least 0 or 1, respectively.
    """

    def __init__(
        self,
        pattern_schemes: Iterable[PatternSchemes] = (),
        minimum_distance: int = 4,
        max_entries_per_pattern: int = 32,
    ) -> None:
        _check_limit("minimum_distance", minimum_distance, 0)
        _check_limit("max_entries_per_pattern", max_entries_per_pattern, 1)
        self.minimum_distance = minimum_distance
        self.max_entries_per_pattern = max_entries_per_pattern
        self._by_signature: dict[str, PatternSchemes] = {}
        self._outcomes: dict[tuple[str, object], PatternOutcome] = {}
        for each in pattern_schemes:
            self.add_pattern_schemes(each)

    @property
    def pattern_schemes(self) -> KeyedList[PatternSchemes]:
        """The schemes of each pattern, as a list, in the order in which patterns were added.

        Assigned schemes are kept unchanged, however slow or similar they are, unless the pattern is
        there already: then the best of both are kept.
        """
        return KeyedList(self._by_signature, self._hold)

    @pattern_schemes.setter
    def pattern_schemes(self, pattern_schemes: Iterable[PatternSchemes]) -> None:
        self._hold(pattern_schemes)

    @property
    def num_patterns(self) -> int:
        """Number of patterns, ignoring shapes."""
        return len({*self._by_structure(), *(each.structure for each in self.outcomes)})

    @property
    def total_schemes(self) -> int:
        """Total number of schemes; those of a pattern are counted once, ignoring shapes."""
        return sum(map(len, self._by_structure().values()))

    def has_pattern(self, pattern_signature: str) -> bool:
        """Whether the cache has schemes of a pattern."""
        return pattern_signature in self._by_signature

    def occurring(self, patterns: Iterable[RegionPattern]) -> int:
        """Count the cached patterns that are among these, ignoring shapes."""
        known = {*self._by_signature, *(each.structure for each in self.outcomes)}
        return len(
            {
                each.structure.signature
                for each in patterns
                if not known.isdisjoint((each.signature, each.structure.signature))
            }
        )

    @property
    def outcomes(self) -> tuple[PatternOutcome, ...]:
        """What runs found out about patterns, the newest last."""
        return tuple(self._outcomes.values())

    def outcomes_of(self, signature: str) -> list[PatternOutcome]:
        """Return the outcomes of a pattern, and of what it is in a model of another width."""
        structure = scalable(signature).structure
        return [each for each in self._outcomes.values() if each.scalable.structure == structure]

    def add_outcome(self, outcome: PatternOutcome) -> None:
        """Add an outcome; it replaces an older one, unless only that run was finished."""
        known = self._outcomes.get(outcome.key)
        if known is not None and known.is_settled and not outcome.is_settled:
            return
        self._outcomes.pop(outcome.key, None)
        self._outcomes[outcome.key] = outcome
        for key in list(self._outcomes)[:-_MOST_OUTCOMES]:
            del self._outcomes[key]

    def keep_outcomes(self, is_kept: Callable[[PatternOutcome], bool]) -> None:
        """Remove all other outcomes."""
        self._outcomes = {key: each for key, each in self._outcomes.items() if is_kept(each)}

    def get_pattern_schemes(self, pattern_signature: str) -> PatternSchemes | None:
        """Return the schemes of a pattern; None if there are none."""
        return self._by_signature.get(pattern_signature)

    def add_pattern_schemes(self, pattern_schemes: PatternSchemes) -> None:
        """Add schemes of a pattern that are valid and differ enough from faster ones.

        The schemes are copied: later changes to them do not affect the cache.
        """
        if pattern_schemes.pattern is None:
            return
        known = self._by_signature.get(pattern_schemes.pattern_signature)
        schemes = [*(known.schemes if known else ()), *pattern_schemes.schemes]
        kept = self._kept(schemes)
        if kept:
            self._by_signature[pattern_schemes.pattern_signature] = PatternSchemes(
                pattern_schemes.pattern, kept
            )

    def add_pattern_from_region(
        self, region: Region, graph: GraphIndex, quantized_tensors: Collection[str]
    ) -> None:
        """Add the scheme that quantizes these tensors in a region, as not measured.

        Args:
            region: The region.
            graph: The graph that it is in.
            quantized_tensors: Names of tensors, as `import_insertion_points` takes them.
        """
        scheme = scheme_from_tensors(region, graph, quantized_tensors)
        if scheme.is_empty:
            return
        for shapes in (True, False):
            pattern = RegionPattern.from_region(region, graph, shapes=shapes)
            self.add_pattern_schemes(PatternSchemes(pattern, [scheme]))

    def merge(self, other: PatternCache, prefer_existing: bool = True) -> None:
        """Add the content of another cache.

        Args:
            other: The other cache.
            prefer_existing: Whether a pattern in both caches keeps only the schemes of this one;
                otherwise the best of both are kept.
        """
        for each in other.pattern_schemes:
            if not (prefer_existing and self.has_pattern(each.pattern_signature)):
                self.add_pattern_schemes(each)
        newest = dict(self._outcomes) if prefer_existing else {}
        for outcome in (*other.outcomes, *newest.values()):
            self.add_outcome(outcome)

    def to_dict(self) -> dict[str, Any]:
        """Return the serialized form."""
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "minimum_distance": self.minimum_distance,
            "max_entries_per_pattern": self.max_entries_per_pattern,
            "pattern_schemes": [each.to_dict() for each in self._by_signature.values()],
            **({"outcomes": [each.to_dict() for each in self.outcomes]} if self._outcomes else {}),
        }

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> PatternCache:
        """Parse the serialized form.

        Raises:
            AutotunerError: If it is invalid, or an entry is damaged.
        """
        cache = cls._empty(body)
        for entry in _entries({"pattern_schemes": [], **body}):
            cache.add_pattern_schemes(PatternSchemes.from_dict(entry))
        for entry in _entries(body, "outcomes"):
            try:
                cache.add_outcome(PatternOutcome.from_dict(entry))
            except (LookupError, TypeError, ValueError) as error:
                raise AutotunerError(f"An outcome is damaged: {error}.", _MAKE_AGAIN) from None
        return cache

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cache atomically.

        Raises:
            OutputError: If it can't be written.
        """
        write_yaml(path, self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PatternCache:
        """Read a cache; single damaged entries are skipped with a warning.

        Raises:
            FileNotFoundError: If there is no such file.
            AutotunerError: If it is not a pattern cache, or was written by a newer version.
        """
        file = read_yaml(path, "a pattern cache", _MAKE_AGAIN)
        file.check_kind(KIND, _MAKE_AGAIN)
        try:
            cache = cls._empty(file.body)
            entries, outcomes = _entries(file.body), _entries(file.body, "outcomes")
        except AutotunerError as error:
            raise AutotunerError(f"{file.path}: {error.what}", _MAKE_AGAIN) from None
        for number, entry in enumerate(entries):
            cache._take(file, number, entry)
        for number, entry in enumerate(outcomes):
            try:
                cache.add_outcome(PatternOutcome.from_dict(entry))
            except (LookupError, TypeError, ValueError) as error:
                where = file.where("outcomes", number)
                _log.warning("%s: a damaged outcome is left out: %s", where, error)
        return cache

    @classmethod
    def _empty(cls, body: Mapping[str, Any]) -> PatternCache:
        limits = ("minimum_distance", "max_entries_per_pattern")
        return cls(**{name: body[name] for name in limits if name in body})

    def _hold(self, pattern_schemes: Iterable[PatternSchemes]) -> None:
        """Replace the content."""
        wanted = list(pattern_schemes)
        self._by_signature.clear()
        for each in wanted:
            if each.pattern_signature in self._by_signature:
                self.add_pattern_schemes(each)
            else:
                self._by_signature[each.pattern_signature] = each

    def _by_structure(self) -> dict[str, set[str]]:
        """Return the hashes of all schemes, by signature without shapes."""
        found: dict[str, set[str]] = {}
        for each in self._by_signature.values():
            structure = each.pattern.structure.signature if each.pattern is not None else ""
            found.setdefault(structure, set()).update(scheme.hash for scheme in each.schemes)
        return found

    def _take(self, file: YamlFile, number: int, entry: Any) -> None:
        """Add the valid entries of one pattern in a file."""

        def skip(scheme: int, error: InvalidSchemeError) -> None:
            where = file.where("pattern_schemes", number, "schemes", scheme)
            _log.warning("%s: a damaged scheme is left out: %s", where, error.what)

        try:
            self.add_pattern_schemes(PatternSchemes.from_dict(entry, skip=skip))
        except InvalidSchemeError as error:
            where = file.where("pattern_schemes", number)
            _log.warning("%s: a damaged entry is left out: %s", where, error.what)

    def _kept(self, schemes: Iterable[InsertionScheme]) -> list[InsertionScheme]:
        """Return the fastest schemes that differ enough, up to the limit."""
        fastest: dict[str, InsertionScheme] = {}
        for scheme in schemes:
            known = fastest.setdefault(scheme.hash, scheme)
            if not scheme.error and (known.error or scheme.latency_ms < known.latency_ms):
                fastest[scheme.hash] = scheme
        sound = [scheme for scheme in fastest.values() if not scheme.error]
        kept: list[InsertionScheme] = []
        for scheme in sorted(sound, key=lambda each: each.latency_ms):
            if all(scheme.distance(each) >= self.minimum_distance for each in kept):
                kept.append(copy.deepcopy(scheme))
            if len(kept) == self.max_entries_per_pattern:
                break
        return kept


def _entries(body: Mapping[str, Any], name: str = "pattern_schemes") -> list[Any]:
    """Return a list in a file; versions without outcomes had no list of them."""
    entries = body.get(name, [] if name == "outcomes" else None)
    if not isinstance(entries, list):
        raise AutotunerError(f"It holds no list of patterns ({name}).", _MAKE_AGAIN)
    return entries


def _check_limit(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise AutotunerError(f"{name} is {value!r}.", f"It is a whole number from {least} on.")
