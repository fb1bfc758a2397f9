"""Checks whether an installed engine works, by querying it once in its own process."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from qdqtune.engines.isolated import Worker, WorkerFailure
from qdqtune.records.measurement import EngineInfo

# The first start of CUDA on a machine may take many seconds.
_PROBE_LIMIT_S = 120.0


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe.

    Attributes:
        info: The version and device; None if the engine doesn't answer.
        reason: Why it doesn't, in one line; empty if it does.
    """

    info: EngineInfo | None
    reason: str = ""


@functools.cache
def probe_engine(engine: str) -> ProbeResult:
    """Query an engine without options.

    Raises:
        EngineError: If it is not installed.
    """
    with Worker(engine, timeout_s=_PROBE_LIMIT_S) as worker:
        try:
            return ProbeResult(worker.info())
        except WorkerFailure as failure:
            return ProbeResult(None, failure.what.splitlines()[0])
