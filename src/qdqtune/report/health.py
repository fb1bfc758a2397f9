"""What `doctor` shows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from qdqtune.records.health import EngineHealth, Health
from qdqtune.report.tables import printable, text_table


def health_record(health: Health) -> dict[str, Any]:
    """The JSON form."""
    return asdict(health)


def health_text(health: Health) -> str:
    """The text form."""
    rows = [
        [
            engine.name,
            "yes" if engine.usable else "no",
            engine.version or "-",
            engine.dialect or "-",
            engine.isa or "-",
            engine.device if engine.usable else engine.reason,
        ]
        for engine in health.engines
    ]
    columns = ["engine", "usable", "version", "dialect", "isa", "device, or why not"]
    arithmetic = _arithmetic(health.saturates_u8s8)
    machine = f"Python {health.python}; CPU {health.cpu}, {health.isa}: {arithmetic}."
    notes = [_limited(engine, health) for engine in health.engines if engine.limited is not None]
    notes += [
        f"warning: the engine {broken.name} of {broken.package or 'some package'} can't be used: "
        f"{broken.reason}"
        for broken in health.broken
    ]
    parts = [machine, text_table(columns, rows), *map(printable, notes)]
    return "\n\n".join(parts)


def _arithmetic(saturates: bool) -> str:
    if saturates:
        return "u8*s8 kernels saturate at int16 here, so weights get 7 bits"
    return "u8*s8 kernels are exact here, so weights get 8 bits"


def _limited(engine: EngineHealth, health: Health) -> str:
    assert engine.limited is not None
    setting = f"{engine.limited.variable}={engine.limited.limit}"
    why = (
        f"because {setting} is set"
        if engine.limited.is_inherited
        else f"because its newer kernels crash on this machine: qdqtune sets {setting} for it"
    )
    return (
        f"{engine.name} uses {engine.isa} instead of {health.isa}, {why}; "
        f"{_arithmetic(engine.saturates_u8s8)}. "
        f"Whatever runs tuned models here with {engine.name} needs {setting} in its environment, "
        "too."
    )
