"""Engines that build and time models, each in its own process.

Public names are imported lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names

if TYPE_CHECKING:
    from qdqtune.engines._entries import DialectChoice as DialectChoice
    from qdqtune.engines._entries import EngineEntry as EngineEntry
    from qdqtune.engines._interface import Engine as Engine
    from qdqtune.engines._interface import InputSpec as InputSpec
    from qdqtune.engines._interface import Session as Session
    from qdqtune.engines._interface import SessionOptions as SessionOptions
    from qdqtune.engines._worker import Worker as Worker
    from qdqtune.engines._worker import WorkerFailure as WorkerFailure
    from qdqtune.engines.layers._latency import estimated_shares as estimated_shares
    from qdqtune.records._measurement import EngineInfo as EngineInfo
    from qdqtune.records._measurement import LayerTime as LayerTime

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "qdqtune.engines._entries": "DialectChoice EngineEntry",
        "qdqtune.engines._interface": "Engine InputSpec Session SessionOptions",
        "qdqtune.engines._worker": "Worker WorkerFailure",
        "qdqtune.engines.layers._latency": "estimated_shares",
        "qdqtune.records._measurement": "EngineInfo LayerTime",
    },
)
