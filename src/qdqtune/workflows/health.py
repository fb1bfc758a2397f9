"""What works on this machine."""

from __future__ import annotations

import platform

from qdqtune.engines import registry
from qdqtune.engines.isa import read_cpu
from qdqtune.engines.isolated import Worker, WorkerFailure
from qdqtune.engines.native import native_dialect
from qdqtune.records.health import EngineHealth, Health

_ANSWER_TIMEOUT_S = 60.0


def examine() -> Health:
    """Ask every engine; those that can measure are started once to see that they answer."""
    cpu = read_cpu()
    engines = tuple(_examine_engine(name) for name in registry.ENGINES)
    return Health(platform.python_version(), cpu.device, cpu.isa, cpu.saturates_u8s8, engines)


def _examine_engine(name: str) -> EngineHealth:
    status = registry.available(name)
    dialect = native_dialect(name).name
    measures = registry.entry(name).measures
    if not status.usable:
        return EngineHealth(name, False, status.version, "", dialect, status.reason, measures)
    try:
        with Worker(name, timeout_s=_ANSWER_TIMEOUT_S) as worker:
            info = worker.info()
    except WorkerFailure as failure:
        reason = f"does not start: {failure}"
        return EngineHealth(name, False, status.version, "", dialect, reason, measures)
    return EngineHealth(name, True, info.version, info.device, dialect, "", measures)
