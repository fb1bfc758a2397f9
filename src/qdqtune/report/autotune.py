"""What `python -m qdqtune.autotune` shows when it is over."""

from __future__ import annotations

from qdqtune.records.tuning import Summary, TuneResult
from qdqtune.report.tuning import tune_text


def autotune_text(result: TuneResult) -> str:
    """The two lines that scripts look for, and what `tune` shows."""
    return f"{speedup_text(result.summary)}\n\n{tune_text(result)}"


def speedup_text(summary: Summary) -> str:
    """Latency before and after."""
    return (
        f"Baseline: {_milliseconds(summary.baseline_ms)} ms\n"
        f"Final: {_milliseconds(summary.final_ms)} ms ({summary.speedup:.3f}x speedup)"
    )


def _milliseconds(latency_ms: float) -> str:
    """Two digits, or as many as a small model needs."""
    return f"{latency_ms:.2f}" if latency_ms >= 1.0 else f"{latency_ms:.3g}"
