"""The parts of a recorded engine that may be reused: a record may be an untrusted file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from qdqtune.engines import registry
from qdqtune.records.measurement import EngineInfo


@dataclass(frozen=True)
class RecordedEngine:
    """The parts of a record's engine that may be followed.

    Attributes:
        name: The engine, if it is built in; others must be named by the user.
        options: Options that are plain choices.
    """

    name: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def recorded_engine(info: EngineInfo) -> RecordedEngine:
    """Return what may be followed: nothing that is run, loaded, opened or takes resources.

    The number of threads is never taken from a record, nor a path, a library, a program argument,
    or an engine from another package.
    """
    entry = registry.ENGINES.get(info.name)
    if entry is None:
        return RecordedEngine()
    allowed = {
        name: value
        for name, value in info.options.items()
        if name in entry.recorded_options and re.fullmatch(entry.recorded_options[name], value)
    }
    return RecordedEngine(entry.name, allowed)
