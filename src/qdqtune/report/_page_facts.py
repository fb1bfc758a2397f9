"""What a report says about a run: headline, facts, notes, and the models on one scale."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote

from qdqtune.records._inputs import shape_text
from qdqtune.records._quantization import QuantizeReport
from qdqtune.records._ranges import RANDOM_WARNING, CalibrationSource
from qdqtune.records._report import RunView
from qdqtune.records._tuning import QUIETER, Summary
from qdqtune.report._contenders import Contender, contenders_of
from qdqtune.report._formatting import duration
from qdqtune.report._tuning import STOPPED

_FEWEST_OPENINGS = 3
_LOUD = 0.1
_FEW_SAMPLES = 100


@dataclass(frozen=True)
class PageFacts:
    """The head of a run's report.

    Attributes:
        title: The model's file name.
        verdict: The most important number or word.
        change: The two latencies.
        explanation: The interval, or why float was kept.
        facts: Names and values, for a line below.
        notes: Warnings and open questions.
        baseline_ms: Latency of the model as given; None if it was not timed.
        contenders: The models on one scale, the model as given first.
        reproduce: Names and values that identify the run.
        commands: What to run next: purpose and command.
    """

    title: str
    verdict: str
    change: str
    explanation: str
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    baseline_ms: float | None
    contenders: tuple[Contender, ...]
    reproduce: tuple[tuple[str, str], ...]
    commands: tuple[tuple[str, str], ...]


def facts_of(run: RunView) -> PageFacts:
    """Return the head of a run's report."""
    result = run.result
    return _of_tune(run, result) if isinstance(result, Summary) else _of_quantize(run, result)


def _of_tune(run: RunView, summary: Summary) -> PageFacts:
    low, high = summary.speedup_interval
    kept = summary.kept_float
    interval = _interval(low, high, summary.confidence)
    reason = summary.reason.rstrip(".…") or "nothing that was tried is faster"
    reason += "…" if summary.reason.endswith("…") else "."
    return PageFacts(
        title=_name(summary.model),
        verdict="Kept as given" if kept else f"{summary.speedup:.2f}× as fast",
        change=f"{_ms(summary.baseline_ms)}" + ("" if kept else f" → {_ms(summary.final_ms)}"),
        explanation=f"{reason[:1].upper()}{reason[1:]}" if kept else interval,
        facts=_facts(summary),
        notes=tuple(_notes(run, summary)),
        baseline_ms=summary.baseline_ms,
        contenders=contenders_of(run),
        reproduce=tuple(_reproduce(run, summary)),
        commands=tuple(_commands(run, summary)),
    )


def _facts(summary: Summary) -> tuple[tuple[str, str], ...]:
    engine, metric = summary.engine, summary.metric or {}
    accuracy = "exact: nothing was changed"
    if not summary.kept_float:
        decibels = summary.output_sqnr_db
        accuracy = _accuracy(decibels)
        if decibels is not None:
            accuracy += _measured_on(summary)
        if metric.get("final") is not None:
            accuracy += f", metric {metric['final']:.6g} (float {metric['float']:.6g})"
    threads = "" if engine.threads is None else f", {engine.threads} thread"
    threads += "s" * (engine.threads is not None and engine.threads != 1)
    tried = f"{summary.total_benchmarks or summary.benchmarks} benchmarks"
    if summary.subgraph_benchmarks:
        tried += f", {summary.subgraph_benchmarks} of subgraphs"
    tried += f", {summary.failed} failed" if summary.failed else ""
    spent = duration(summary.total_seconds or summary.seconds.total)
    spent += f" in {summary.runs} runs" if summary.runs > 1 else ""
    return (
        ("accuracy", accuracy),
        ("engine", f"{engine.name} {engine.version}{threads}"),
        ("device", f"{engine.device} ({engine.isa})" if engine.isa else engine.device),
        ("time", f"{spent}, {tried}"),
        ("quantized", "nothing" if summary.kept_float else summary.contents),
    )


def _notes(run: RunView, summary: Summary) -> list[str]:
    """Return what a reader must know before trusting the figures, worst first."""
    notes = []
    if summary.calibration == CalibrationSource.RANDOM.value and not summary.kept_float:
        notes.append(RANDOM_WARNING)
    elif not summary.kept_float:
        notes += _about_samples(summary)
    if summary.contention:
        notes.append(_busy(summary.contention))
    elif summary.noise.detectable > _LOUD:
        noise = summary.noise.text
        notes.append(f"{noise[:1].upper()}{noise[1:]}")
    if 0 < summary.openings < _FEWEST_OPENINGS:
        notes.append(
            "There was no time to open the files in several processes, which may move a speedup: "
            "the interval allows for it."
        )
    if summary.near_min_sqnr:
        notes.append("The result meets the accuracy limit by less than 1 dB.")
    if summary.latency_warning:
        notes.append(summary.latency_warning)
    if summary.lost_to_accuracy and not summary.kept_float:
        notes.append(f"The fastest model was not accurate enough: {summary.lost_to_accuracy}.")
    if not summary.kept_float and summary.output_sqnr_db is None and summary.qdq_pairs:
        notes.append("The accuracy of the result is unknown: outputs could not be compared.")
    if summary.stopped in STOPPED:
        notes.append(STOPPED[summary.stopped])
    if 0 < summary.result_run < summary.runs:
        notes.append(
            f"Nothing better was found in this run: the result is run {summary.result_run}'s."
        )
    if run.details is None:
        notes.append(
            "No graph, layers or errors: the run was made with --no_report, or by an older version."
        )
    else:
        notes += run.details.missing
    return notes


def _measured_on(summary: Summary) -> str:
    """Say on which inputs the accuracy was measured; empty if an old summary doesn't tell."""
    count, source = summary.error_inputs.get("samples"), summary.error_inputs.get("source")
    if source == CalibrationSource.DATA.value:
        known = summary.calibration_samples
        if not count or not known:
            return ", on calibration samples"
        return f", on {f'{count} of ' if count != known else ''}the {known} calibration samples"
    return f", on {f'{count} ' if count else ''}random inputs" if source else ""


def _about_samples(summary: Summary) -> list[str]:
    """Return what the number and the source of the inputs mean for the accuracy."""
    notes, count = [], summary.calibration_samples
    is_calibrated = summary.calibration == CalibrationSource.DATA.value
    if is_calibrated and 0 < count < _FEW_SAMPLES:
        notes.append(
            f"Only {count} calibration sample{'s' * (count != 1)}: a few hundred are advised, and "
            "the accuracy should be confirmed on data that was not calibrated on."
        )
    is_random = summary.error_inputs.get("source") == CalibrationSource.RANDOM.value
    if is_random and summary.output_sqnr_db is not None:
        notes.append(
            "The accuracy was measured on random inputs; on real data it is unknown. Calibration "
            "data (--calibration_data) makes it known."
        )
    return notes


def _reproduce(run: RunView, summary: Summary) -> list[tuple[str, str]]:
    engine = summary.engine
    options = " ".join(f"{name}={value}" for name, value in sorted(engine.options.items()))
    shapes = ", ".join(f"{name} {shape_text(shape)}" for name, shape in summary.shapes.items())
    fingerprint = run.details.model if run.details is not None else ""
    rows = [
        ("command", summary.command),
        ("model", summary.model),
        ("fingerprint", fingerprint),
        ("qdqtune", summary.version),
        ("engine", " ".join(filter(None, (engine.name, engine.version, options)))),
        ("device", f"{engine.device} ({engine.isa})"),
        ("inputs", shapes),
        ("calibration", f"{summary.calibrated_on}, {summary.calibration_method} ranges"),
        ("seed, preset", f"{summary.seed}, {summary.preset}"),
        ("written", summary.date),
        ("SHA-256 of the result", summary.final_sha256),
    ]
    return [(name, value) for name, value in rows if value]


def _commands(run: RunView, summary: Summary) -> list[tuple[str, str]]:
    threads = "" if summary.engine.threads is None else f" --threads {summary.engine.threads}"
    file, engine = quote(f"{run.folder}/optimized_final.onnx"), quote(summary.engine.name)
    data = "".join(f" {flag} {quote(value)}" for flag, value in summary.data_flags.items())
    bench = f"qdqtune bench {file} --engine {engine}{threads}"
    return [
        ("Check the result against this report", f"qdqtune verify {file}{threads}{data}"),
        ("List all candidates", f"qdqtune export {quote(run.folder)} --list"),
        ("Build or load the result as it was measured", summary.build_with or bench),
    ]


def _of_quantize(run: RunView, report: QuantizeReport) -> PageFacts:
    kept, timed = report.kept_float, report.comparison
    verdict = "Kept as given" if kept else "Quantized"
    explanation = report.reason if kept else report.not_timed
    change = ""
    if timed is not None and report.baseline_ms is not None:
        change = _ms(report.baseline_ms)
        if not kept:
            verdict = f"{timed.ratio:.2f}× as fast"
            change += f" → {_ms(report.final_ms or 0.0)}"
            explanation = _interval(timed.low, timed.high, timed.confidence)
    worst = report.worst_db
    notes = [report.warning] if report.warning else []
    if timed is not None and timed.contention:
        notes.append(_busy(timed.contention))
    notes += ["The result meets the accuracy limit by less than 1 dB."] * report.near_min_sqnr
    return PageFacts(
        title=_name(run.folder),
        verdict=verdict,
        change=change,
        explanation=f"{explanation[:1].upper()}{explanation[1:]}",
        facts=(
            ("accuracy", _accuracy(worst)),
            ("engine", report.engine),
            ("dialect", f"{report.dialect}, {report.quant_type}"),
            ("quantized", f"{report.qdq_pairs} tensors, {report.dynamic_ops} dynamic ops"),
            ("time", duration(report.seconds.get("total", 0.0))),
        ),
        notes=tuple(notes),
        baseline_ms=report.baseline_ms,
        contenders=contenders_of(run),
        reproduce=(
            *run.origin,
            ("calibration", f"{report.calibrated_on}, {report.method} ranges"),
        ),
        commands=(("Search for a faster placement", f"qdqtune tune {quote(run.folder)}"),),
    )


def _name(path: str) -> str:
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2] or path


def _interval(low: float, high: float, confidence: float) -> str:
    return f"{low:.3f} to {high:.3f} at {100 * confidence:g} % confidence"


def _busy(share: float) -> str:
    return (
        f"The machine was busy: the engine waited for a core {100 * share:.0f} % of the last "
        "comparison. The speedup is that of undisturbed runs, estimated from the fastest ones, "
        f"with a wide interval; latencies are medians of all. {QUIETER}"
    )


def _accuracy(decibels: float | None) -> str:
    if decibels is None:
        return "unknown"
    percent = 100.0 * 10.0 ** (-decibels / 20.0)
    error = f"{percent:.0f}" if percent >= 10.0 else f"{percent:.2g}"
    return f"{decibels:.1f} dB output SQNR (error {error}\N{NO-BREAK SPACE}%)"


def _ms(latency_ms: float) -> str:
    return f"{latency_ms:.2f} ms" if latency_ms >= 1.0 else f"{latency_ms:.3g} ms"
