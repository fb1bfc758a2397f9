"""What `qdqtune cache` says of a pattern cache, or of a folder that runs share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from qdqtune.records._json_form import Record


@dataclass(frozen=True)
class CacheRow(Record):
    """What was found out under the same conditions.

    Attributes:
        engine: The engine.
        version: Its version.
        device: The device.
        dialect: The dialect of Q/DQ.
        quant_type: The quant type.
        patterns: Number of patterns that runs had an outcome for.
        settled: Those whose run went on until its search was finished.
        kept_float: Those of which nothing is quantized.
        subgraphs: Number of subgraphs that were timed.
    """

    engine: str
    version: str
    device: str
    dialect: str
    quant_type: str
    patterns: int = 0
    settled: int = 0
    kept_float: int = 0
    subgraphs: int = 0


@dataclass(frozen=True)
class CachedPattern(Record):
    """What a run found out about a pattern.

    Attributes:
        signature: The pattern, with types and shapes.
        engine: Where that was found out.
        choices: Number of its ops that can be quantized, each form by itself.
        chosen: Those that are, in the result.
        gain: Log speedup of that model by its most valuable choice; None if it was not measured.
        structure: Its ops and what they read, without attributes and shapes.
        shapes: The shapes in it, each once, in order.
    """

    signature: str
    engine: str
    choices: int
    chosen: int
    gain: float | None = None
    structure: str = ""
    shapes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CacheReport(Record):
    """The content of a cache.

    Attributes:
        path: The file or folder.
        rows: What it knows, by where that was found out.
        patterns: All patterns with outcomes, those with the largest gains first.
        schemes: Number of schemes, of which it is not known where they were measured.
        damaged: Number of lines that can't be used.
        removed: Number of entries that were removed.
    """

    KIND: ClassVar[str] = "cache"

    path: Path
    rows: tuple[CacheRow, ...]
    patterns: tuple[CachedPattern, ...] = ()
    schemes: int = 0
    damaged: int = 0
    removed: int = 0
