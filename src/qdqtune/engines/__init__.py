"""Engines that build and time models, each in its own process.

Public names are imported lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names

if TYPE_CHECKING:
    from qdqtune.engines.engine_entry import DialectChoice, EngineEntry
    from qdqtune.engines.interface import Engine, InputSpec, Session, SessionOptions
    from qdqtune.engines.isolated import Worker, WorkerFailure
    from qdqtune.engines.latency_shares import estimated_shares
    from qdqtune.records.measurement import EngineInfo, LayerTime

__all__ = [
    "DialectChoice",
    "Engine",
    "EngineEntry",
    "EngineInfo",
    "InputSpec",
    "LayerTime",
    "Session",
    "SessionOptions",
    "Worker",
    "WorkerFailure",
    "estimated_shares",
]

_HOMES = {
    "DialectChoice": "qdqtune.engines.engine_entry",
    "Engine": "qdqtune.engines.interface",
    "EngineEntry": "qdqtune.engines.engine_entry",
    "EngineInfo": "qdqtune.records.measurement",
    "InputSpec": "qdqtune.engines.interface",
    "LayerTime": "qdqtune.records.measurement",
    "Session": "qdqtune.engines.interface",
    "SessionOptions": "qdqtune.engines.interface",
    "Worker": "qdqtune.engines.isolated",
    "WorkerFailure": "qdqtune.engines.isolated",
    "estimated_shares": "qdqtune.engines.latency_shares",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
