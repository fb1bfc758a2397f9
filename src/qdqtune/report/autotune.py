"""The final output of `python -m qdqtune.autotune`."""

from __future__ import annotations

from qdqtune.records.tuning import Summary, TuneResult
from qdqtune.report.tuning import tune_text


def autotune_text(result: TuneResult) -> str:
    """Return the two lines that scripts look for, followed by the output of `tune`."""
    return f"{speedup_text(result.summary)}\n\n{tune_text(result)}"


def speedup_text(summary: Summary) -> str:
    """Format the latency before and after."""
    return (
        f"Baseline: {_milliseconds(summary.baseline_ms)} ms\n"
        f"Final: {_milliseconds(summary.final_ms)} ms ({summary.speedup:.3f}x speedup)"
    )


def _milliseconds(latency_ms: float) -> str:
    """Format with two decimals, or as many as a small model needs."""
    return f"{latency_ms:.2f}" if latency_ms >= 1.0 else f"{latency_ms:.3g}"
