"""The output of `bench` and `verify`."""

from __future__ import annotations

from collections.abc import Mapping

from qdqtune.records._measurement import FLOAT32, BenchmarkEntry, BenchRecord, EngineInfo
from qdqtune.records._printable import message, printable
from qdqtune.records._verification import Check, Outcome, VerifyReport
from qdqtune.report._formatting import Table, text_table

_MOST_INPUTS = 6
_SQNR = "output SQNR"


def bench_text(record: BenchRecord) -> str:
    """Format a table of every model against the first."""
    table = bench_table(record)
    failed = [
        f"{printable(one.path)} failed: {_lines(one.measurement.error or '')}"
        for one in record.entries
        if not one.measurement.ok
    ]
    comparisons = [one.against_first for one in record.entries if one.against_first]
    levels = {each.confidence for each in comparisons}
    lines = [*engine_lines(record.engine), *inputs_lines(record.inputs), "", text_table(*table)]
    if levels:
        least = min(levels)
        lines += ["", f"Speedup is over the first model, with its {100 * least:g} % interval."]
    waiting = max((each.contention for each in comparisons), default=0.0)
    if waiting > 0.0:
        lines += busy_lines(waiting)
    if _SQNR in table.header:
        lines.append("Output SQNR is against the first model, on the inputs it was timed with.")
    return "\n".join([*lines, *failed])


def bench_table(record: BenchRecord) -> Table:
    """Build the table of every model against the first."""
    header = ["model", "median ms", "speedup", "interval", "verdict", _SQNR]
    rows = [_row(entry) for entry in record.entries]
    if record.entries[0].measurement.ok:
        rows[0][4] = "baseline"
    width = len(header) if any(one.sqnr_db for one in record.entries) else len(header) - 1
    return Table(header, rows, right=(1, 2, 5)).only(range(width))


def busy_lines(share: float) -> list[str]:
    """Explain what waiting for a core means for the comparison, and how to avoid it."""
    waited = f"the engine waited for a core {100 * share:.0f} % of the time"
    if share >= 1.0:
        waited = "all in all, the engine's threads waited longer for cores than the runs took"
    return [
        f"The machine is busy: {waited}. The speedup is that",
        "of undisturbed runs, estimated from the fastest ones, with a wider interval. Stop other "
        "work, or keep",
        "cores free for the engine (taskset) and use fewer --threads.",
    ]


def engine_lines(engine: EngineInfo) -> list[str]:
    """Return which engine measured, with a warning if its times are simulated."""
    if engine.name != "simulated":
        return [engine_line(engine)]
    warning = "These times are simulated: they say nothing about a real machine."
    return [engine_line(engine), warning]


def inputs_lines(inputs: Mapping[str, str]) -> list[str]:
    """Return the shapes that the models were measured at.

    Args:
        inputs: Shape of each input, as text; empty gives no line.
    """
    shown = [f"{name} {shape}" for name, shape in inputs.items()]
    more = len(shown) - _MOST_INPUTS
    if more > 0:
        shown = [*shown[:_MOST_INPUTS], f"and {more} more"]
    return [printable(f"Inputs: {', '.join(shown)}")] if shown else []


def engine_line(engine: EngineInfo) -> str:
    """Return which engine measured, and on which hardware."""
    threads = "its default threads" if engine.threads is None else f"{engine.threads} thread(s)"
    shown = f", {threads}," if engine.takes_threads else ""
    isa = f" ({engine.isa})" if engine.isa else ""
    line = f"{engine.name} {engine.version}{shown} on {engine.device}{isa}"
    if engine.float_type not in ("", FLOAT32):
        line += f"; float32 is computed in {engine.float_type}"
    return printable(line)


def _lines(text: str) -> str:
    return "\n    ".join(printable(line) for line in text.splitlines())


def _row(entry: BenchmarkEntry) -> list[str]:
    measurement, comparison = entry.measurement, entry.against_first
    latency = f"{measurement.latency_ms:.3f}" if measurement.ok else "failed"
    if comparison is None:
        return [entry.path, latency, "", "", "", ""]
    interval = f"{comparison.low:.3f} to {comparison.high:.3f}"
    speedup = f"{comparison.ratio:.3f}x"
    worst = f"{min(entry.sqnr_db.values()):.1f} dB" if entry.sqnr_db else ""
    return [entry.path, latency, speedup, interval, comparison.verdict.value, worst]


_VERDICTS = {
    None: "No run claims anything about it: this is a comparison of two files, not a verification.",
    Outcome.CONFIRMED: "It is what it was said to be.",
    Outcome.DIFFERS: "It is NOT what it was said to be.",
    Outcome.UNVERIFIED: "It can't be verified.",
}


def verify_text(report: VerifyReport) -> str:
    """The comparison, then each part of the claim; the last line is the verdict."""
    table = [bench_text(report.bench), ""] if report.bench is not None else []
    lines = [_check_line(check) for check in report.all_checks]
    if report.ignored:
        lines.append(
            f"Ignored, because a run's folder must not decide it: {', '.join(report.ignored)}."
        )
    if report.repeat_with:
        lines.append(
            "To check it under the conditions of the claim, repeat what you trust of them: "
            f"{report.repeat_with}"
        )
    lines.append(_VERDICTS[report.outcome])
    return "\n".join([*table, *map(message, lines)])


def _check_line(check: Check) -> str:
    doubt = "can't be verified: " if check.outcome is Outcome.UNVERIFIED else ""
    differs = "DIFFERS: " if check.outcome is Outcome.DIFFERS else ""
    return f"{check.name.capitalize()}: {doubt}{differs}{check.text}."
