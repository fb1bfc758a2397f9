"""Record of model files timed against each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qdqtune.records.measurement import Comparison, EngineInfo, Measurement
from qdqtune.records.result import Result

SCHEMA = 1


@dataclass(frozen=True)
class BenchmarkEntry:
    """One file of a comparison.

    Attributes:
        path: The file, as the user named it.
        measurement: Its samples, or why there are none.
        against_first: Its speedup over the first file; None for the first, and where one failed.
        sqnr_db: Signal-to-noise ratio of its outputs against the first file's, by output; empty
            where that can't be known.
    """

    path: str
    measurement: Measurement
    against_first: Comparison | None = None
    sqnr_db: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class BenchRecord(Result):
    """All files compared with the first one in a single interleaved run.

    Attributes:
        engine: The engine that ran them.
        entries: The files in the user's order.
        inputs: Their inputs: name to dtype and shape.
        seed: Seed of the inputs.
    """

    engine: EngineInfo
    entries: tuple[BenchmarkEntry, ...]
    inputs: Mapping[str, str]
    seed: int

    @property
    def ok(self) -> bool:
        """Whether every file was timed."""
        return all(entry.measurement.ok for entry in self.entries)

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        return f"{self.engine.name} {self.engine.version}: " + ", ".join(map(_line, self.entries))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "kind": "bench",
            "schema": SCHEMA,
            "engine": self.engine.to_dict(),
            "seed": self.seed,
            "inputs": dict(self.inputs),
            "models": [_entry_fields(entry) for entry in self.entries],
        }


def _entry_fields(entry: BenchmarkEntry) -> dict[str, Any]:
    measurement, comparison = entry.measurement, entry.against_first
    return {
        "path": entry.path,
        "latency_ms": measurement.latency_ms if measurement.ok else None,
        "speedup": comparison.to_dict() if comparison else None,
        "output_sqnr_db": {
            name: db if math.isfinite(db) else None for name, db in entry.sqnr_db.items()
        },
        "measurement": measurement.to_dict(),
    }


def _line(entry: BenchmarkEntry) -> str:
    if not entry.measurement.ok:
        return f"{entry.path} failed"
    speedup = f" ({entry.against_first.ratio:.3f}x)" if entry.against_first is not None else ""
    return f"{entry.path} {entry.measurement.latency_ms:.3f} ms{speedup}"
