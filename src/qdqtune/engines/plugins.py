"""Engines from other packages, found by their entry points in the group `qdqtune.engines`."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from qdqtune.engines.engine_entry import EngineEntry
from qdqtune.records.health import BrokenEngine

GROUP = "qdqtune.engines"


@dataclass(frozen=True)
class Plugins:
    """Engines from other packages.

    Attributes:
        entries: Engines by name.
        broken: Those that can't be used.
    """

    entries: Mapping[str, EngineEntry] = field(default_factory=dict)
    broken: tuple[BrokenEngine, ...] = ()


def find_plugins(taken: Collection[str]) -> Plugins:
    """Load every entry point of the group; errors are reported in the result, never raised.

    Args:
        taken: Names that plugins can't use.
    """
    entries: dict[str, EngineEntry] = {}
    broken = []
    for point in importlib.metadata.entry_points(group=GROUP):
        entry, reason = _load(point)
        if point.name in taken:
            reason = "the name belongs to qdqtune"
        elif point.name in entries:
            reason = "another package has an engine of that name"
        if entry is None or reason:
            broken.append(BrokenEngine(point.name, _package(point), reason))
        else:
            entries[point.name] = entry
    return Plugins(entries, tuple(broken))


def _load(point: importlib.metadata.EntryPoint) -> tuple[EngineEntry | None, str]:
    try:
        found = point.load()
    except (Exception, SystemExit) as error:  # anything that a plugin's module does on import
        return None, " ".join(f"{type(error).__name__}: {error}".split())
    if not isinstance(found, EngineEntry):
        return None, f"{point.value} is no EngineEntry, but {type(found).__name__}"
    return found, _fault(found, point.name)


def _fault(entry: EngineEntry, name: str) -> str:
    """Return what is wrong with an entry; empty if nothing is."""
    from qdqtune.qdq.dialects import DIALECTS  # slow to import, and plugins are rare

    if entry.name != name:
        return f"it is announced as '{name}', but its entry is called '{entry.name}'"
    if not (entry.module or entry.program):
        return "its entry names neither a module nor a program"
    for what, path in {
        "worker_class": entry.worker_class,
        "dialect_function": entry.dialect_function,
    }.items():
        if path and len([part for part in path.split(":") if part]) != 2:
            return f"its {what} is '{path}', which is not like 'module:name'"
    unknown = [
        dialect_choice.name
        for dialect_choice in entry.dialects
        if dialect_choice.name not in DIALECTS
    ]
    if unknown:
        return f"there is no dialect '{unknown[0]}'; there are {', '.join(DIALECTS)}"
    return ""


def _package(point: importlib.metadata.EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""
