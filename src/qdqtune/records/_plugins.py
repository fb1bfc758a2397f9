"""Plugins: what other packages announce by entry points, loaded without trusting any of it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from qdqtune.records._health import BrokenPlugin

_T = TypeVar("_T")


@dataclass(frozen=True)
class Plugins(Generic[_T]):
    """The plugins of one group.

    Attributes:
        entries: Those that can be used, by name.
        broken: Those that can't.
    """

    entries: Mapping[str, _T]
    broken: tuple[BrokenPlugin, ...] = ()


def find_plugins(
    group: str, kind: type[_T], taken: Collection[str], fault: Callable[[_T, str], str]
) -> Plugins[_T]:
    """Load every entry point of a group; errors are reported in the result, never raised.

    Args:
        group: The group of entry points.
        kind: What each of them must be an instance of.
        taken: Names that plugins can't use.
        fault: Returns what is wrong with one that is announced under a name; empty if nothing is.
    """
    entries: dict[str, _T] = {}
    broken = []
    for point in importlib.metadata.entry_points(group=group):
        found, reason = _load(point, kind)
        if found is not None:
            reason = fault(found, point.name)
        if point.name in taken:
            reason = "the name belongs to qdqtune"
        elif point.name in entries:
            reason = "another package has one of that name"
        if found is None or reason:
            package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""
            broken.append(BrokenPlugin(point.name, package, reason))
        else:
            entries[point.name] = found
    return Plugins(entries, tuple(broken))


def _load(point: importlib.metadata.EntryPoint, kind: type[_T]) -> tuple[_T | None, str]:
    try:
        found = point.load()
    except (Exception, SystemExit) as error:  # anything that a plugin's module does on import
        return None, " ".join(f"{type(error).__name__}: {error}".split())
    if not isinstance(found, kind):
        return None, f"{point.value} is no {kind.__name__}, but {type(found).__name__}"
    return found, ""
