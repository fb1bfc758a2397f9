"""What a run has come to so far, and the summary that is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from qdqtune._version import __version__
from qdqtune.autotune.search.grouping import Grouping
from qdqtune.graph.external_data import model_bytes
from qdqtune.records.accuracy import Rejected
from qdqtune.records.measurement import Comparison, EngineInfo
from qdqtune.records.placement import Placement
from qdqtune.records.ranges import RangeMethod
from qdqtune.records.subgraphs import Batch
from qdqtune.records.tuning import AS_GIVEN, Blanket, Noise, Seconds, Summary
from qdqtune.workflows.sample_provider import SampleProvider
from qdqtune.workflows.tuning.request import TuneRequest

FINISHED = "finished"
BY_BUDGET = "budget"
BY_COUNT = "max_benchmarks"
INTERRUPTED = "interrupted"
ENGINE_FAILED = "engine failed"


def utc_now() -> str:
    """The time as records have it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass
class Story:
    """What a run has come to so far; see `Summary` for what the fields mean."""

    grouping: Grouping = field(default_factory=Grouping)
    noise: Noise = field(default_factory=lambda: Noise(1.0, 0.0))
    baseline_ms: float = 0.0
    build_s: float = 0.0
    final_ms: float = 0.0
    comparison: Comparison | None = None
    stopped: str = FINISHED
    reason: str = ""
    method: RangeMethod = RangeMethod.MAX
    sqnr_db: float | None = None
    float_sqnr_db: float | None = None
    is_shipped: bool = False
    metric: dict[str, float] | None = None
    calibration: str = "random"
    placement: Placement = field(default_factory=Placement)
    seeds: dict[str, float] = field(default_factory=dict)
    benchmarks: int = 0
    failed: int = 0
    why_all_failed: str = ""
    why_nothing: str = ""
    lost_to_accuracy: str = ""
    memo_hits: int = 0
    runs: int = 1
    earlier_benchmarks: int = 0
    earlier_s: float = 0.0
    final_sha256: str = ""
    baseline_sha256: str = ""
    error_inputs: dict[str, Any] = field(default_factory=dict)
    subgraphs: dict[str, int] = field(default_factory=dict)
    subgraph_benchmarks: int = 0
    subgraph_failed: int = 0
    batches: list[Batch] = field(default_factory=list)
    conditions: dict[str, Any] = field(default_factory=dict)
    precision: str = AS_GIVEN
    precision_sqnr_db: float | None = None
    precision_reason: str = ""
    converted_from: str = ""
    precision_speedup: float | None = None
    build_with: str = ""
    layer_files: dict[str, str] = field(default_factory=dict)
    bytes_after: int = 0
    calibration_samples: int = 0
    blanket: Blanket | None = None
    rejected: tuple[Rejected, ...] = ()

    def summary(
        self,
        request: TuneRequest,
        info: EngineInfo,
        provider: SampleProvider,
        seconds: Seconds,
        files: dict[str, str],
    ) -> Summary:
        """The run in numbers.

        Args:
            request: What was asked for.
            info: What measured.
            provider: What the model was run on.
            seconds: Where the time went.
            files: What was written.
        """
        found = self.comparison if self.is_shipped else None
        return Summary(
            model=str(request.model),
            engine=info,
            dialect=request.dialect.name,
            quant_type=request.config.quant_type,
            calibration=self.calibration,
            calibrated_on=provider.describe(),
            calibration_method=self.method.value,
            seed=request.config.seed,
            preset=request.config.preset,
            stopped=self.stopped,
            baseline_ms=self.baseline_ms,
            final_ms=self.final_ms,
            speedup=found.ratio if found is not None else 1.0,
            speedup_interval=(found.low, found.high) if found is not None else (1.0, 1.0),
            confidence=self.comparison.confidence if self.comparison is not None else 1.0,
            contention=self.comparison.contention if self.comparison is not None else 0.0,
            openings=self.comparison.openings if self.comparison is not None else 0,
            kept_float=not self.is_shipped,
            reason=self.reason,
            output_sqnr_db=self.sqnr_db if found is not None else None,
            float_sqnr_db=self.float_sqnr_db,
            lost_to_accuracy=self.lost_to_accuracy,
            metric=self.metric,
            noise=self.noise,
            seeds=self.seeds,
            benchmarks=self.benchmarks,
            memo_hits=self.memo_hits,
            failed=self.failed,
            regions=self.grouping.regions,
            patterns=self.grouping.patterns,
            groups=len(self.grouping.groups),
            qdq_pairs=len(self.placement.tensors),
            seconds=seconds,
            files={**files, **self.layer_files},
            runs=self.runs,
            total_benchmarks=self.earlier_benchmarks + self.benchmarks,
            total_seconds=self.earlier_s + seconds.total,
            final_sha256=self.final_sha256,
            baseline_sha256=self.baseline_sha256,
            error_inputs=self.error_inputs,
            converted_from=self.converted_from,
            conditions=self.conditions,
            mode=request.config.workflow,
            subgraph_benchmarks=self.subgraph_benchmarks,
            subgraph_failed=self.subgraph_failed,
            subgraphs=self.subgraphs,
            batches=tuple(self.batches),
            precision=self.precision,
            precision_sqnr_db=self.precision_sqnr_db,
            precision_reason=self.precision_reason,
            precision_speedup=self.precision_speedup,
            build_with=self.build_with,
            shapes=provider.shapes,
            version=__version__,
            command=request.config.command,
            date=utc_now(),
            bytes_before=model_bytes(request.model),
            bytes_after=self.bytes_after,
            calibration_samples=self.calibration_samples,
            result_run=self.runs,
            blanket=self.blanket,
            rejected=self.rejected,
        )
