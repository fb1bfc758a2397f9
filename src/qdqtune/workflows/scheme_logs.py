"""What a run measured, as one small text per scheme: the logs that the autotuning guides show."""

from __future__ import annotations

import logging
from pathlib import Path

from qdqtune.autotune.errors import AutotunerError
from qdqtune.autotune.patterns.pattern_schemes import PatternSchemes
from qdqtune.autotune.patterns.scheme import InsertionScheme
from qdqtune.autotune.patterns.state_file import read_state
from qdqtune.records.tuning import Summary, TuneResult
from qdqtune.workflows.tuning.folder import LOGS, STATE

_logger = logging.getLogger(__name__)


def write_scheme_logs(result: TuneResult, state_file: Path | None = None) -> list[Path]:
    """Write `baseline.log`, `final.log` and `region_<n>_scheme_<m>.log` into a run's logs.

    The numbers are those of the pattern and of the scheme in the state file. A log that can't be
    written spoils no run: it is warned of.

    Args:
        result: The run.
        state_file: Its state file, if that is not in its folder.

    Returns:
        What was written.
    """
    folder = result.output_dir / LOGS
    summary = result.summary
    state = state_file or result.output_dir / STATE
    texts = {
        "baseline.log": _model_text(summary, "baseline", summary.baseline_ms),
        "final.log": _model_text(summary, "final", summary.final_ms),
    }
    try:
        # There is no state if nothing of the model can be quantized.
        patterns = read_state(state).patterns if state.is_file() else ()
        for number, pattern in enumerate(patterns):
            for place, scheme in enumerate(pattern.schemes):
                texts[f"region_{number}_scheme_{place}.log"] = _scheme_text(pattern, scheme)
        for earlier in folder.glob("region_*_scheme_*.log"):
            earlier.unlink()
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except (OSError, AutotunerError) as error:
        _logger.warning("the logs of the schemes can't be written: %s", error)
        return []
    return [folder / name for name in texts]


def _scheme_text(pattern: PatternSchemes, scheme: InsertionScheme) -> str:
    points = [str(point) for point in scheme.points()] or ["none: left float"]
    measured = "failed" if scheme.error else f"{scheme.latency_ms:.6g} ms"
    lines = [
        f"pattern: {pattern.pattern_signature}",
        f"scheme: {scheme.hash}",
        *(f"point: {point}" for point in points),
        f"latency of the whole model: {measured}",
    ]
    return "\n".join(lines) + "\n"


def _model_text(summary: Summary, name: str, latency_ms: float) -> str:
    engine = summary.engine
    return (
        f"{name}: {latency_ms:.6g} ms\n"
        f"engine: {engine.name} {engine.version} on {engine.device} ({engine.isa})\n"
    )
