"""Check which engines work on this machine."""

from __future__ import annotations

import platform
from dataclasses import replace

from qdqtune.engines import _registry as registry
from qdqtune.engines._hardware import find_gpus, inherited_limit, read_cpu, saturates_u8s8
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._worker import Worker, WorkerFailure
from qdqtune.records._errors import QdqtuneError
from qdqtune.records._health import EngineHealth, Health, IsaLimit
from qdqtune.records._measurement import FLOAT32, EngineInfo
from qdqtune.resources import current_limits

_ANSWER_TIMEOUT_S = 60.0


def examine() -> Health:
    """Query every engine; start those that can measure once, to check that they respond."""
    cpu = read_cpu()
    engines = tuple(map(_examine_engine, registry.engines()))
    broken = registry.plugins().broken
    return Health(
        platform.python_version(), cpu.device, cpu.isa, saturates_u8s8(cpu.isa), engines, broken,
        find_gpus(), current_limits().memory_bytes,
    )  # fmt: skip


def _examine_engine(name: str) -> EngineHealth:
    status = registry.available(name)
    health = EngineHealth(
        name, False, status.version, "", "", status.reason, registry.entry(name).measures,
        program=status.program, lists_layers=status.lists_layers and not status.usable,
    )  # fmt: skip
    try:
        health = replace(health, dialect=native_dialect(name).name)
        if not status.usable:
            return health
        with Worker(name, timeout_s=_ANSWER_TIMEOUT_S) as worker:
            info = worker.info()
    except WorkerFailure as failure:
        return replace(health, reason=f"does not start: {failure}")
    except QdqtuneError as error:
        return replace(health, reason=error.what)
    return replace(
        health, usable=True, version=info.version, device=info.device, reason="",
        isa=info.isa, saturates_u8s8=saturates_u8s8(info.isa), limited=_limit(name, info),
        float_type=info.float_type, float32_option=_float32_option(name, info),
    )  # fmt: skip


def _float32_option(name: str, info: EngineInfo) -> str:
    """Return the option that makes an engine compute floats as written."""
    if info.float_type in ("", FLOAT32):
        return ""
    options = registry.entry(name).float32_options.items()
    return next((f"{option}={value}" for option, value in options), "")


def _limit(name: str, info: EngineInfo) -> IsaLimit | None:
    """Return the limit on an engine's instruction set, unless the user set it."""
    entry = registry.entry(name)
    limit = info.options.get(entry.isa_option, "") if entry.isa_option else ""
    if not limit or info.isa == read_cpu().isa:
        return None
    variable, _ = inherited_limit(entry.isa_variables)
    return IsaLimit(limit, variable or next(iter(entry.isa_variables), ""), bool(variable))
