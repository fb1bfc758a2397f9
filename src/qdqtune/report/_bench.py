"""The output of `bench`, `verify` and `compare`."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Mapping, Sequence

from qdqtune.records._accuracy import ErrorReport, LayerError, OutputError, TensorError
from qdqtune.records._measurement import FLOAT32, BenchmarkEntry, BenchRecord, EngineInfo
from qdqtune.records._printable import message
from qdqtune.records._verification import Outcome, VerifyReport
from qdqtune.report._formatting import Line, Table, counted, page, shortened, some

_MOST_INPUTS = 6
_SQNR = "output SQNR"


def bench_text(record: BenchRecord, *, errors: bool = True) -> str:
    """Format a table of every model against the first.

    Args:
        record: The comparison.
        errors: Whether to show the errors on the inputs that were timed.
    """
    table = bench_table(record, errors=errors)
    comparisons = [one.against_first for one in record.entries if one.against_first]
    lines: list[Line] = [*engine_lines(record.engine), *inputs_lines(record.inputs), "", table]
    if comparisons:
        least = min(each.confidence for each in comparisons)
        lines += ["", f"Speedup is over the first model, with its {100 * least:g} % interval."]
    lines += busy_lines(max((each.contention for each in comparisons), default=0.0))
    if _SQNR in table.header:
        lines.append(
            "Output SQNR is against the first model, on the random inputs that were timed: real "
            "data may give another; `qdqtune compare --data` measures it."
        )
    for one in record.entries:
        if one.measurement.error is not None:
            first, *rest = one.measurement.error.splitlines() or [""]
            lines += [f"{one.path} failed: {first}", *(f"    {line}" for line in rest)]
    return page(lines)


def bench_table(record: BenchRecord, *, errors: bool = True) -> Table:
    """Build the table of every model against the first; see `bench_text`."""
    header = ["model", "median ms", "speedup", "interval", "verdict", _SQNR]
    rows = [_row(entry) for entry in record.entries]
    if record.entries[0].measurement.ok:
        rows[0][4] = "baseline"
    has_errors = errors and any(one.sqnr_db for one in record.entries)
    width = len(header) if has_errors else len(header) - 1
    return Table(header, rows, right=(1, 2, 5)).only(range(width))


def rewritten_lines(biases: int, inputs: int) -> list[str]:
    """Return the lines that biases were corrected, and inputs smoothed, if any were."""
    lines = []
    if biases:
        what = counted(biases, "op")
        lines.append(f"The mean errors of {what} were taken off their biases.")
    if inputs:
        what = counted(inputs, "product")
        lines.append(f"The inputs of {what} are smoothed: their largest channels are divided.")
    return lines


def busy_lines(share: float) -> list[str]:
    """Explain what waiting for a core means for the comparison, and how to avoid it.

    Args:
        share: Share of the time that the engine waited; 0 gives no lines.
    """
    if share <= 0.0:
        return []
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
    warning = "These times are simulated: they say nothing about a real machine."
    return [engine_line(engine), *([warning] if engine.name == "simulated" else [])]


def inputs_lines(inputs: Mapping[str, str]) -> list[str]:
    """Return the shapes that the models were measured at.

    Args:
        inputs: Shape of each input, as text; empty gives no line.
    """
    shown = [f"{name} {shape}" for name, shape in inputs.items()]
    return [f"Inputs: {some(shown, _MOST_INPUTS)}"] if shown else []


def engine_line(engine: EngineInfo) -> str:
    """Return which engine measured, and on which hardware."""
    threads = "its default threads" if engine.threads is None else f"{engine.threads} thread(s)"
    shown = f", {threads}," if engine.takes_threads else ""
    isa = f" ({engine.isa})" if engine.isa else ""
    line = f"{engine.name} {engine.version}{shown} on {engine.device}{isa}"
    if engine.float_type not in ("", FLOAT32):
        line += f"; float32 is computed in {engine.float_type}"
    return line


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
_DOUBTS = {Outcome.UNVERIFIED: "can't be verified: ", Outcome.DIFFERS: "DIFFERS: "}


def verify_text(report: VerifyReport) -> str:
    """Format the comparison, then each part of the claim; the last line is the verdict."""
    # The error that counts is on the inputs of the claim, and has a line of its own.
    table = [bench_text(report.bench, errors=False), ""] if report.bench is not None else []
    lines = [
        f"{check.name.capitalize()}: {_DOUBTS.get(check.outcome, '')}{check.text}."
        for check in report.all_checks
    ]
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


_OUTPUTS = ("output", "SQNR dB", "cosine", "max error", "max value", "equal")
_LAYERS = (
    "own dB", "", "cosine", "max error", "max value", "accumulated dB", "op", "node", "inputs",
)  # fmt: skip
# A bar is full at 0 dB, where noise is as strong as the signal, and empty at this level.
_QUIET_DB = 60.0
_BAR_WIDTH = 12
_STEPS = "▁▂▃▄▅▆▇█"
_LINE_WIDTH = 60
_LONGEST_NAME = 44


def error_text(report: ErrorReport, top: int) -> str:
    """Format the errors of the outputs, then of the layers, worst first.

    Args:
        report: The errors.
        top: The maximum number of layers to show; 0 shows all.
    """
    how = ", every op as it is written"
    if not report.as_written:
        how = "; layers are run op by op, as they are written"
    lines: list[Line] = [
        engine_line(report.engine) + how,
        f"{report.quantized_model} against {report.float_model}, {report.samples}",
        "",
        outputs_table(report) if report.outputs else "The models have no output in common.",
        "",
        *_layer_lines(report, top),
    ]
    return page(lines, report.warning)


def outputs_table(report: ErrorReport) -> Table:
    """Build the table of the outputs that both models have."""
    rows = [_output_row(output) for output in report.outputs]
    width = len(_OUTPUTS) - all(output.error is not None for output in report.outputs)
    return Table(_OUTPUTS, rows, right=(1, 2, 3, 4, 5)).only(range(width))


def layers_table(report: ErrorReport, top: int) -> Table:
    """Build the table of the layers, worst first.

    Args:
        report: The errors.
        top: The maximum number to show; 0 shows all.
    """
    rows = [_layer_row(each) for each in report.worst_first[: top or None]]
    return Table(_LAYERS, rows, right=(0, 2, 3, 4, 5))


def _output_row(output: OutputError) -> list[str]:
    if output.error is None:
        return [output.name, "", "", "", "", f"{100 * output.equal:.4g} %"]
    return [output.name, _db(output.error.sqnr_db), *_differences(output.error), ""]


def _layer_row(layer: LayerError) -> list[str]:
    own, accumulated = layer.own, layer.accumulated
    return [
        _db(own.sqnr_db),
        "█" * round(_noise(own.sqnr_db) * _BAR_WIDTH),
        *_differences(own),
        _db(accumulated.sqnr_db) if accumulated is not None else "",
        own.op_type,
        shortened(own.node, _LONGEST_NAME),
        " x ".join(own.inputs).replace(" per ", "/"),
    ]


def _differences(error: TensorError) -> list[str]:
    return [f"{error.cosine:.5f}", f"{error.max_error:.3g}", f"{error.max_value:.3g}"]


def _layer_lines(report: ErrorReport, top: int) -> list[Line]:
    if report.failure:
        return [f"Layers could not be compared: {report.failure}"]
    lines: list[Line] = []
    if report.layers:
        table = layers_table(report, top)
        more = len(report.layers) - len(table.rows)
        lines = [
            table,
            *([f"and {counted(more, 'more layer')}: --top 0 shows all"] if more else []),
            "",
            "own, with cosine and max error: what the layer's own quantization adds; accumulated: "
            "what it is off in the model",
            f"to leave the worst float: qdqtune quantize {_without(report)}",
            f"own, first layer to last:         {_course([each.own for each in report.layers])}",
        ]
        accumulated = [each.accumulated for each in report.layers if each.accumulated]
        if accumulated:
            lines.append(f"accumulated, first layer to last: {_course(accumulated)}")
    missing = len(report.unpaired)
    if missing:
        what = "quantized op has a result" if missing == 1 else "quantized ops have results"
        lines.append(f"{missing} {what} that the float model does not have, by name")
    return lines + rewritten_lines(report.corrected_biases, report.smoothed_inputs)


def _without(report: ErrorReport) -> str:
    """Return the flag that leaves the worst layer float."""
    name = re.escape(report.worst_first[0].own.node)
    return f"--nodes_to_exclude {shlex.quote(f'^{name}$')}"


def _course(errors: Sequence[TensorError]) -> str:
    """Plot noise as a line of steps; each step is the highest of the levels that it covers."""
    levels = [_noise(error.sqnr_db) for error in errors]
    width = min(len(levels), _LINE_WIDTH)
    bounds = [position * len(levels) // width for position in range(width + 1)]
    peaks = [max(levels[low:high]) for low, high in itertools.pairwise(bounds)]
    return "".join(_STEPS[round(peak * (len(_STEPS) - 1))] for peak in peaks)


def _noise(db: float) -> float:
    """Return the noise from 0 (none) to 1 (as strong as the signal)."""
    return min(1.0, max(0.0, 1.0 - db / _QUIET_DB))


def _db(db: float) -> str:
    return f"{db:.1f}" if math.isfinite(db) else "exact" if db > 0 else "lost"
