"""What runs found out, kept for others in `--cache_dir`: outcomes of patterns, times of subgraphs.

The file `cache.jsonl` has one of them per line, in the form of a journal's lines. It is replaced as
a whole, under a lock: several runs can add to it, and readers need no lock.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qdqtune.graph._atomic_files import check_folder, replacing
from qdqtune.records._errors import OutputError, QdqtuneError, UsageError
from qdqtune.records._measurement import EngineInfo
from qdqtune.records._tuning import SubgraphTimes
from qdqtune.records._untrusted_files import object_in
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.search.patterns._pattern_outcomes import PatternOutcome
from qdqtune.workflows.tuning._journal_format import checksum, encode, read_journal
from qdqtune.workflows.tuning._run_files import lock_folder

FILE = "cache.jsonl"
OUTCOME, SUBGRAPH = "outcome", "subgraph"
# The oldest entries are dropped beyond this.
_MOST_SUBGRAPHS, _MOST_BYTES = 10_000, 32 << 20
_MOST_WAIT_S, _WAIT_S = 10.0, 0.05
# What the times of a subgraph do not depend on: it has its own shapes.
_OF_MODEL = frozenset({"model", "shapes"})

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredSubgraph:
    """The times of a subgraph.

    Attributes:
        conditions: Everything that they depend on, beside its content.
        times: The times.
    """

    conditions: Mapping[str, Any]
    times: SubgraphTimes

    @property
    def key(self) -> tuple[str, str]:
        """Equal for times of the same subgraph under the same conditions."""
        return checksum(self.conditions), self.times.key

    @property
    def engine(self) -> EngineInfo:
        """The engine that they were measured on."""
        return EngineInfo.from_untrusted(self.conditions.get("engine"))


def subgraph_conditions(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a run's header that times of subgraphs depend on."""
    return {name: value for name, value in header.items() if name not in _OF_MODEL}


@dataclass
class CacheContent:
    """What is in a cache.

    Attributes:
        patterns: Schemes and outcomes of patterns; a folder has no schemes.
        subgraphs: Times of subgraphs, by their keys; a file has none.
        damaged: Number of lines that can't be used.
    """

    patterns: PatternCache = field(default_factory=PatternCache)
    subgraphs: dict[tuple[str, str], StoredSubgraph] = field(default_factory=dict)
    damaged: int = 0

    def times_under(self, conditions: Mapping[str, Any]) -> dict[str, SubgraphTimes]:
        """Return the times that were measured under the same conditions, by subgraph."""
        wanted = checksum(conditions)
        return {key: each.times for (own, key), each in self.subgraphs.items() if own == wanted}

    def add_subgraph(self, stored: StoredSubgraph) -> None:
        """Add times; they replace older ones of the same subgraph."""
        self.subgraphs.pop(stored.key, None)
        self.subgraphs[stored.key] = stored

    def merge(self, other: CacheContent) -> None:
        """Add the content of another cache; what both have stays as it is here."""
        self.patterns.merge(other.patterns)
        self.subgraphs = {**other.subgraphs, **self.subgraphs}

    def lines(self) -> list[str]:
        """Return the lines of a folder's file, the newest last, within its limits."""
        subgraphs = [
            {"kind": SUBGRAPH, "conditions": each.conditions, "times": each.times.to_dict()}
            for each in list(self.subgraphs.values())[-_MOST_SUBGRAPHS:]
        ]
        outcomes = [{"kind": OUTCOME, **each.to_dict()} for each in self.patterns.outcomes]
        lines, size = list[str](), 0
        for line in map(encode, reversed([*subgraphs, *outcomes])):
            size += len(line)
            if size > _MOST_BYTES:
                break
            lines.append(line)
        return lines[::-1]

    def take(self, body: Mapping[str, Any]) -> None:
        """Add the content of a line.

        Raises:
            LookupError: If a field is missing.
            TypeError: If it has an unknown field.
            ValueError: If a field is wrong, or this is another kind of line.
        """
        if body["kind"] == OUTCOME:
            own = {name: body[name] for name in body if name not in ("kind", "schema")}
            self.patterns.add_outcome(PatternOutcome.from_dict(own))
        elif body["kind"] == SUBGRAPH:
            conditions = object_in(body["conditions"], "conditions")
            stored = StoredSubgraph(conditions, SubgraphTimes.from_dict(body["times"]))
            EngineInfo.from_untrusted(conditions.get("engine"))
            self.add_subgraph(stored)
        else:
            raise ValueError("it is not a line of a cache")


def read_folder(folder: Path) -> CacheContent:
    """Read a folder's cache; damaged lines are left out, and counted.

    Raises:
        UsageError: If it can't be read, is too large, or a newer version wrote it.
    """
    found = CacheContent()
    try:
        lines = read_journal(folder / FILE)
    except FileNotFoundError:
        return found
    except OSError as error:
        raise UsageError(
            f"{folder / FILE} can't be read: {error.strerror}.", "Choose another --cache_dir."
        ) from None
    for line in lines:
        try:
            if line.body is None:
                raise ValueError("the line is damaged")
            found.take(line.body)
        except (LookupError, TypeError, ValueError):
            found.damaged += 1
    if found.damaged:
        what = "line is" if found.damaged == 1 else "lines are"
        _logger.warning("%s: %d %s damaged and not used", folder / FILE, found.damaged, what)
    return found


def change_folder(folder: Path, change: Callable[[CacheContent], None]) -> None:
    """Change a folder's cache, which is made if it is missing; others wait.

    Args:
        folder: The folder.
        change: Changes the content.

    Raises:
        OutputError: If it can't be written.
        UsageError: If it can't be read, or is locked for long.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"The folder {folder} can't be made: {error.strerror}.", "Choose another --cache_dir."
        ) from None
    check_folder(folder)
    with _locked(folder):
        content = read_folder(folder)
        before = content.lines()
        change(content)
        lines = content.lines()
        if lines != before or content.damaged:
            with replacing(folder / FILE) as file:
                file.write("".join(lines).encode())


def add_to_folder(folder: Path, change: Callable[[CacheContent], None]) -> None:
    """Like `change_folder`, at the end of a run: an error must not cost its result."""
    try:
        change_folder(folder, change)
    except QdqtuneError as error:
        _logger.warning("%s What this run found out is not kept there.", error.what)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    ends_s = time.monotonic() + _MOST_WAIT_S
    while True:
        try:
            lock = lock_folder(folder)
            break
        except UsageError:
            if time.monotonic() > ends_s:
                raise UsageError(
                    f"{folder} is in use by another run.",
                    "A --cache_dir is a folder of its own, not the --output_dir of a run.",
                ) from None
            time.sleep(_WAIT_S)
    with contextlib.closing(lock):
        yield
