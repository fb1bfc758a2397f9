"""Measurements of a model by an engine, and of model files timed against each other."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from qdqtune.records._json_form import UNBOUNDED, Record
from qdqtune.records._results import Result
from qdqtune.records._untrusted_files import object_in

FLOAT32 = "float32"
"""The type in which floats are computed unless an engine reports another."""

LEAST_MS, MOST_MS = 1e-6, 1e9
"""Bounds of a plausible run time: a nanosecond, and eleven days."""


@dataclass(frozen=True)
class Measurement(Record):
    """Latency samples of one model on one engine, or an error; never both.

    A sample that cannot be a latency (NaN, zero, negative, less than a nanosecond, more than eleven
    days) makes the whole measurement a failed one: the other samples of an engine that returns it
    can't be trusted either.

    Attributes:
        blocks_ms: Samples in milliseconds, one tuple per block of runs made back to back.
        error: Why there are no samples; None when there are.
        build_s: Seconds the engine spent opening the model, measured inside the worker.
        timing_s: Seconds the engine spent in timed runs, measured inside the worker.
    """

    blocks_ms: tuple[tuple[float, ...], ...] = ()
    error: str | None = None
    build_s: float = 0.0
    timing_s: float = 0.0

    def __post_init__(self) -> None:
        error = self.error if self.error is not None else _fault_of(self.blocks_ms)
        blocks = () if error is not None else tuple(tuple(map(float, b)) for b in self.blocks_ms)
        object.__setattr__(self, "error", error)
        object.__setattr__(self, "blocks_ms", blocks)

    @property
    def ok(self) -> bool:
        """Whether there are samples."""
        return self.error is None

    @property
    def block_medians_ms(self) -> tuple[float, ...]:
        """The median of each block."""
        return tuple(statistics.median(block) for block in self.blocks_ms)

    @property
    def latency_ms(self) -> float:
        """The median of the block medians; infinite for a failed measurement, so it sorts last."""
        return statistics.median(self.block_medians_ms) if self.ok else math.inf


def _fault_of(blocks_ms: tuple[tuple[float, ...], ...]) -> str | None:
    if not blocks_ms or any(not block for block in blocks_ms):
        return "the engine returned no samples"
    for block in blocks_ms:
        for sample in block:
            if isinstance(sample, bool) or not isinstance(sample, (int, float)):
                return f"the engine returned a latency that is not a number: {sample!r:.40}"
            if not LEAST_MS <= sample <= MOST_MS:  # ints may be too large to become floats
                return f"the engine returned an impossible latency: {sample!r:.40} ms"
    return None


# Two models of which one may be faster by more than this are not called the same.
_MUCH = 0.1


class Verdict(enum.Enum):
    """The conclusion of a comparison about the candidate."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNDECIDED = "undecided"

    @property
    def differs(self) -> bool:
        """Whether one of the two is faster than the other."""
        return self in (Verdict.FASTER, Verdict.SLOWER)


@dataclass(frozen=True)
class Comparison(Record):
    """A candidate against its baseline.

    Attributes:
        ratio: Baseline over candidate latency: the speedup, above 1 when the candidate is faster.
        low: Lower end of the confidence interval of the ratio.
        high: Upper end of the confidence interval of the ratio.
        confidence: Level of the interval, such as 0.98.
        pairs: Number of paired observations the interval rests on.
        margin: Relative difference below which the two count as equal, even when the interval
            excludes 1: two opens of the same file may differ by this much.
        contention: Share of the time that the engine waited for a core, if significant: then the
            ratio is an estimate for undisturbed runs, and the interval is wide.
        openings: Number of fresh processes in which the models were opened and timed.
    """

    JSON: ClassVar[str] = "ratio low high confidence pairs margin contention openings verdict"

    ratio: float
    low: float
    high: float = field(metadata=UNBOUNDED)
    confidence: float
    pairs: int
    margin: float = 0.0
    contention: float = 0.0
    openings: int = 1

    @property
    def verdict(self) -> Verdict:
        """FASTER or SLOWER if the whole interval and more than the margin support it.

        Otherwise UNDECIDED if the interval is so wide that one may be much faster, else SAME.
        """
        if self.low > 1.0 and self.ratio > 1.0 + self.margin:
            return Verdict.FASTER
        if self.high < 1.0 and self.ratio < 1.0 / (1.0 + self.margin):
            return Verdict.SLOWER
        much = 1.0 + max(_MUCH, self.margin)
        return Verdict.SAME if self.low * much >= 1.0 and self.high <= much else Verdict.UNDECIDED


@dataclass(frozen=True)
class LayerTime(Record):
    """Typical time of one node of the graph that the engine actually runs, after its own fusions.

    Attributes:
        name: Name of the node in the engine's graph.
        op_type: Operator the engine runs, for example ``QLinearConv``.
        ms: Typical milliseconds per run of the model, all executions of the node in a run together.
        provider: The part of the engine that runs it, for example ``CPUExecutionProvider``.
        precision: The type it computes in, for example ``int8`` or ``float32``; empty if unknown.
        origins: Names of nodes or tensors of the opened model that the engine says it comes from.
        inputs: Names of the tensors it reads, in the engine's graph.
        outputs: Names of the tensors it writes, in the engine's graph.
    """

    name: str
    op_type: str
    ms: float
    provider: str = ""
    precision: str = ""
    origins: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineInfo(Record):
    """The engine and device of a measurement: part of every record and of every memo key.

    Attributes:
        name: Engine name, for example ``onnxruntime``.
        version: Version of the engine.
        device: Name of the CPU or GPU.
        isa: Instruction set that matters for integer kernels, for example ``avx512_vnni``.
        threads: Threads per run; None is the engine's default.
        options: Engine options besides the threads.
        takes_threads: Whether the number of threads can be set at all.
        float_type: The type in which float32 models are computed: `float32`, or the engine's
            substitute, such as `bfloat16`, `float16` or `tf32`; empty if unknown, as in records of
            versions that did not query it.
    """

    name: str
    version: str
    device: str
    isa: str
    threads: int | None = None
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    takes_threads: bool = True
    float_type: str = FLOAT32

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, as in ``summary.json``."""
        value = {**super().to_dict(), "options": dict(sorted(self.options.items()))}
        # Must match what earlier versions wrote; they had neither of these fields.
        if self.takes_threads:
            del value["takes_threads"]
        if not self.float_type:
            del value["float_type"]
        return value

    @classmethod
    def from_dict(cls, value: object, name: str = "") -> EngineInfo:
        """Read the JSON form; see `Record.from_dict`."""
        return super().from_dict({"float_type": "", **object_in(value, name or "it")}, name)

    @classmethod
    def from_untrusted(cls, value: object, name: str = "engine") -> EngineInfo:
        """Read the JSON form, with everything that identifies an engine; see `Record.from_dict`.

        Raises:
            ValueError: If a field is missing, too.
        """
        for each in ("name", "version", "device", "isa", "threads", "options"):
            if each not in object_in(value, name):
                raise ValueError(f"{name}.{each} is missing")
        return cls.from_dict(value, name)


@dataclass(frozen=True)
class BenchmarkEntry(Record):
    """One file of a comparison.

    Attributes:
        path: The file, as the user named it.
        measurement: Its samples, or why there are none.
        against_first: Its speedup over the first file; None for the first, and where one failed.
        sqnr_db: Signal-to-noise ratio of its outputs against the first file's, by output; empty
            where that can't be known.
    """

    JSON: ClassVar[str] = (
        "path latency_ms=measurement.latency_ms speedup=against_first output_sqnr_db=sqnr_db "
        "measurement"
    )

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

    KIND: ClassVar[str] = "bench"
    JSON: ClassVar[str] = "engine seed inputs models=entries"

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


def _line(entry: BenchmarkEntry) -> str:
    if not entry.measurement.ok:
        return f"{entry.path} failed"
    speedup = f" ({entry.against_first.ratio:.3f}x)" if entry.against_first is not None else ""
    return f"{entry.path} {entry.measurement.latency_ms:.3f} ms{speedup}"
