"""Whether an engine that is installed answers, too: it is asked once, in a process of its own."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from qdqtune.engines.isolated import Worker, WorkerFailure
from qdqtune.records.measurement import EngineInfo

# The first start of CUDA on a machine may take many seconds.
_ANSWER_LIMIT_S = 120.0


@dataclass(frozen=True)
class Answer:
    """What an engine says of itself.

    Attributes:
        info: Which version answers, on what; None if it doesn't.
        reason: Why not, in one line; empty if it does.
    """

    info: EngineInfo | None
    reason: str = ""


@functools.cache
def answer_of(engine: str) -> Answer:
    """What an engine says of itself, without options.

    Raises:
        EngineError: If it is not installed.
    """
    with Worker(engine, timeout_s=_ANSWER_LIMIT_S) as worker:
        try:
            return Answer(worker.info())
        except WorkerFailure as failure:
            return Answer(None, failure.what.splitlines()[0])
