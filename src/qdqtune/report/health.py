"""What `doctor` shows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from qdqtune.records.health import Health
from qdqtune.report.tables import text_table


def health_record(health: Health) -> dict[str, Any]:
    """The JSON form."""
    return asdict(health)


def health_text(health: Health) -> str:
    """The text form."""
    arithmetic = (
        "u8*s8 kernels saturate at int16 here, so weights get 7 bits"
        if health.saturates_u8s8
        else "u8*s8 kernels are exact here, so weights get 8 bits"
    )
    rows = [
        [
            engine.name,
            "yes" if engine.usable else "no",
            engine.version or "-",
            engine.dialect,
            engine.device if engine.usable else engine.reason,
        ]
        for engine in health.engines
    ]
    table = text_table(["engine", "usable", "version", "dialect", "device, or why not"], rows)
    machine = f"Python {health.python}; CPU {health.cpu}, {health.isa}: {arithmetic}."
    return f"{machine}\n\n{table}"
