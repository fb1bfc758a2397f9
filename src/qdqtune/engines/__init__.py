"""Engines that build and time models, each in its own process.

Public names are imported lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names

if TYPE_CHECKING:
    from qdqtune.engines._entries import DialectChoice, EngineEntry
    from qdqtune.engines._interface import Engine, InputSpec, Session, SessionOptions
    from qdqtune.engines._worker import Worker, WorkerFailure
    from qdqtune.engines.layers._latency import estimated_shares
    from qdqtune.records._measurement import EngineInfo, LayerTime

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
    "DialectChoice": "qdqtune.engines._entries",
    "Engine": "qdqtune.engines._interface",
    "EngineEntry": "qdqtune.engines._entries",
    "EngineInfo": "qdqtune.records._measurement",
    "InputSpec": "qdqtune.engines._interface",
    "LayerTime": "qdqtune.records._measurement",
    "Session": "qdqtune.engines._interface",
    "SessionOptions": "qdqtune.engines._interface",
    "Worker": "qdqtune.engines._worker",
    "WorkerFailure": "qdqtune.engines._worker",
    "estimated_shares": "qdqtune.engines.layers._latency",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
