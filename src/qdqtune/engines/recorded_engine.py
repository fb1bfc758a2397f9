"""What of a recorded engine is used again: a record may be a stranger's file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from qdqtune.engines import registry
from qdqtune.records.measurement import EngineInfo


@dataclass(frozen=True)
class RecordedEngine:
    """An engine as a record names it, as far as that may be followed.

    Attributes:
        name: The engine, if it is one of qdqtune's own; others have to be named by the user.
        options: Options that are plain choices.
    """

    name: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def recorded_engine(info: EngineInfo) -> RecordedEngine:
    """Says what of a record is followed: nothing that is run, loaded, opened or takes resources.

    The number of threads is never taken from a record, nor is a path, a library, an argument for a
    program, or an engine that another package brings.
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
