"""The final output of `tune` and of `python -m qdqtune.autotune`, and that of a dry run."""

from __future__ import annotations

from qdqtune.records._inputs import shape_text
from qdqtune.records._measurement import FLOAT32
from qdqtune.records._printable import printable
from qdqtune.records._ranges import CalibrationSource
from qdqtune.records._tuning import AS_GIVEN as UNCHANGED
from qdqtune.records._tuning import Summary, TunePlan, TuneResult
from qdqtune.report._bench import busy_lines, engine_lines, inputs_lines
from qdqtune.report._formatting import Table, cell, duration, text_table
from qdqtune.report._inspection import in_float32_line
from qdqtune.report._quantization import float_error_line, near_limit_line
from qdqtune.report._subgraphs import AS_GIVEN, MODE, batches_lines, plan_lines, subgraph_lines

_STOPPED = {
    "budget": "The time was up before the search was over; the same command resumes it.",
    "max_benchmarks": "No more benchmarks were allowed; with a larger number the search goes on.",
    "interrupted": "The search was interrupted; the same command resumes it.",
}
_COLUMNS = ("model", "median ms", "speedup", "interval", "output SQNR", "metric")
_NUMBERS = (1, 2, 4, 5)
# With fewer processes, the spread between them can't be estimated.
_FEWEST_OPENINGS = 3
_ALWAYS = 4  # columns that are shown even without values


def tune_text(result: TuneResult) -> str:
    """Format as text; the last line warns if the scales can't be trusted."""
    summary = result.summary
    shapes = {name: shape_text(shape) for name, shape in summary.shapes.items()}
    lines = [
        *engine_lines(summary.engine),
        *inputs_lines(shapes),
        "",
        text_table(*summary_table(summary)),
        "",
    ]
    if summary.batches:
        lines += [*batches_lines(summary), ""]
    lines += [printable(line) for line in _verdict(summary)]
    if summary.contention > 0.0:
        lines += busy_lines(summary.contention)
    lines += [printable(line) for line in _accuracy(summary)]
    lines += [printable(line) for line in _effort(summary)]
    lines += [printable(line) for line in _files(result)]
    return "\n".join([*lines, *filter(None, [result.warning])])


def summary_table(summary: Summary) -> Table:
    """Build the table of the original model, the best blanket placement and the result."""
    metric = summary.metric or {}
    baseline = AS_GIVEN if AS_GIVEN in summary.seeds else _float_name(summary)
    rows = [_row(baseline, summary.baseline_ms, metric=metric.get("float"))]
    blanket = summary.blanket
    if blanket is not None:
        name = f"best blanket ({blanket.name})"
        rows.append(
            [name, "", "", "identical to tuned", "", ""]
            if blanket.identical
            else _row(
                name, blanket.latency_ms, blanket.speedup, blanket.speedup_interval,
                blanket.sqnr_db, blanket.metric,
            )
        )  # fmt: skip
    rows.append(
        ["tuned", "", "", f"{baseline} is kept", "", ""]
        if summary.kept_float
        else _row(
            "tuned", summary.final_ms, summary.speedup, summary.speedup_interval,
            summary.output_sqnr_db, metric.get("final"),
        )
    )  # fmt: skip
    shown = [n for n in range(len(_COLUMNS)) if n < _ALWAYS or any(row[n] for row in rows)]
    return Table(_COLUMNS, rows, _NUMBERS).only(shown)


def _row(
    name: str,
    latency_ms: float,
    speedup: float | None = None,
    interval: tuple[float, float] = (1.0, 1.0),
    sqnr_db: float | None = None,
    metric: float | None = None,
) -> list[str]:
    low, high = interval
    return [
        name,
        f"{latency_ms:.3f}",
        cell(speedup, ".3f", "x"),
        "" if speedup is None else f"{low:.3f} to {high:.3f}",
        cell(sqnr_db, ".1f", " dB"),
        cell(metric, ".6g"),
    ]


def _verdict(summary: Summary) -> list[str]:
    if summary.kept_float:
        reason = summary.reason.rstrip(".") or "nothing that was tried is faster"
        if summary.precision != UNCHANGED:
            kept = f"{summary.precision} model is kept"
        elif AS_GIVEN in summary.seeds:
            kept = "model is kept as given, byte for byte"
        else:
            kept = "float model is kept, byte for byte"
        return [f"The {kept}: {reason}.", *_scale(summary), *_converted(summary)]
    return [
        *_scale(summary),
        *_converted(summary),
        f"{summary.qdq_pairs} tensors are {summary.quant_type}, in the {summary.dialect} dialect.",
    ]


def _scale(summary: Summary) -> list[str]:
    """Say what speedups are relative to, and what to know about the blanket placement."""
    blanket = summary.blanket
    if summary.kept_float and blanket is None:
        return []
    over = "as given" if summary.precision == UNCHANGED else f"in {summary.precision}"
    lines = [
        f"Speedups are over the model {over}, with {100 * summary.confidence:g} % intervals, all "
        f"timed in turns at the end{_in_processes(summary.openings)}."
    ]
    if 0 < summary.openings < _FEWEST_OPENINGS:
        lines.append(
            "There was no time to open the files again in other processes, which may move a "
            "speedup: the intervals allow for it, and are wide."
        )
    if blanket is not None and blanket.identical:
        lines.append(f"The result is identical to a blanket: {blanket.name}.")
    if blanket is not None and blanket.shortfall:
        lines.append(f"The blanket is not accurate enough: {blanket.shortfall}.")
    return lines


def _in_processes(openings: int) -> str:
    return f", in {openings} processes one after the other" if openings > 1 else ""


def _float_name(summary: Summary) -> str:
    if summary.converted_from:
        return f"as given ({summary.converted_from})"
    if summary.precision != UNCHANGED:
        return summary.precision
    computed_in = summary.engine.float_type
    return "float" if computed_in in ("", FLOAT32) else f"float ({computed_in})"


def _compared_with(summary: Summary) -> str:
    return "float" if summary.precision == UNCHANGED else "the model as given"


def _converted(summary: Summary) -> list[str]:
    """Say how the model was converted before tuning."""
    if summary.converted_from:
        return [
            f"The model is {summary.converted_from}, for which {summary.dialect} has no integer "
            "kernels: it was tuned in float32. Inputs and outputs keep their types."
        ]
    if summary.precision == UNCHANGED:
        why = summary.precision_reason
        return [f"The model was tuned as given: {why}."] if why else []
    error = summary.precision_sqnr_db
    far = f", {error:.1f} dB from the model as given" if error is not None else ""
    gain = summary.precision_speedup
    fast = f", {gain:.2f}x as fast as that" if gain is not None else ""
    return [
        f"The model was converted to {summary.precision} first{far}{fast}: the engine takes types "
        "as they are written. --precision float32 leaves it as it is."
    ]


def _accuracy(summary: Summary) -> list[str]:
    lines = []
    if summary.output_sqnr_db is not None and not summary.kept_float:
        lines.append(
            f"Output SQNR {summary.output_sqnr_db:.1f} dB against {_compared_with(summary)}."
        )
        if summary.float_sqnr_db is not None:
            lines.append(float_error_line(summary.engine.float_type, summary.float_sqnr_db))
        if summary.near_min_sqnr and summary.allowed_sqnr_db is not None:
            lines.append(near_limit_line(summary.output_sqnr_db, summary.allowed_sqnr_db))
    elif summary.qdq_pairs and not summary.kept_float:
        lines.append("Output SQNR unknown: its outputs could not be compared with float.")
    if summary.lost_to_accuracy and not summary.kept_float:
        lines.append(f"The fastest model was not accurate enough: {summary.lost_to_accuracy}.")
    if summary.metric is not None:
        values = ", ".join(f"{name} {value:.6g}" for name, value in summary.metric.items())
        lines.append(f"Your metric: {values}.")
    if summary.calibration == CalibrationSource.DATA.value:
        method = summary.calibration_method
        lines.append(f"Calibrated on {summary.calibrated_on}, {method} ranges.")
    return lines


def _effort(summary: Summary) -> list[str]:
    seconds = summary.seconds
    details = [f"{summary.failed} failed"] if summary.failed else []
    details += [f"{summary.memo_hits} known from before"] if summary.memo_hits else []
    also = f" ({', '.join(details)})" if details else ""
    if summary.mode == MODE:
        what = "whole models"
        subgraphs = subgraph_lines(summary)
    else:
        what = (
            f"{summary.groups} choices in {summary.regions} regions ({summary.patterns} patterns)"
        )
        subgraphs = []
    this_run = "This run: " if summary.runs > 1 else ""
    lines = [
        *subgraphs,
        f"{this_run}{summary.benchmarks} benchmarks{also} of {what}, {duration(seconds.total)}: "
        f"building {duration(seconds.building)}, timing {duration(seconds.timing)}, "
        f"own {duration(seconds.own)}.",
    ]
    if _is_begun(summary):
        lines.append(
            f"Noise: the model against itself {summary.noise.ratio:.3f}x; "
            f"{summary.noise.text.removesuffix('.')}."
        )
    if summary.runs > 1:
        lines.append(
            f"All {summary.runs} runs in this folder: {summary.total_benchmarks} benchmarks, "
            f"{duration(summary.total_seconds)}."
        )
    if 0 < summary.result_run < summary.runs:
        lines.append(
            f"Nothing better was found in this run: the result is that of run {summary.result_run}."
            " Its figures are from summary.json; `qdqtune verify` measures them again."
        )
    if summary.stopped in _STOPPED and _is_begun(summary):
        lines.append(_STOPPED[summary.stopped])
    return lines


def _is_begun(summary: Summary) -> bool:
    """Whether there was time for more than the float model."""
    return summary.stopped != "budget" or summary.total_benchmarks + summary.memo_hits > 0


def _files(result: TuneResult) -> list[str]:
    others = [name for name in result.summary.files.values() if name != result.model.name]
    build = result.summary.build_with
    return [
        f"Written: {result.model}",
        f"Beside it: {', '.join([*others, 'summary.json'])}",
        *([f"Build it with: {build}"] if build else []),
    ]


def plan_text(plan: TunePlan) -> str:
    """Describe what a run would do."""
    lines = [
        f"{plan.model}: {plan.nodes} ops, {plan.quantizable} can be {plan.quant_type} in the "
        f"{plan.dialect} dialect",
        *([in_float32_line(plan.converted_from, plan.dialect)] if plan.converted_from else []),
        *(
            f"left float: {count} ops, {reason}"
            for reason, count in sorted(plan.left_float.items(), key=lambda item: -item[1])
        ),
    ]
    if plan.mode == MODE:
        lines += plan_lines(plan)
    else:
        seeds = (f"{name} ({count} tensors)" for name, count in plan.seeds.items())
        lines += [
            f"{plan.regions} regions, {plan.patterns} patterns, {plan.groups} choices",
            f"first tried: {', '.join(seeds) or 'nothing'}",
            f"at most {plan.benchmarks} benchmarks on {plan.engine}; nothing was measured or "
            "written",
        ]
    return "\n".join(printable(line) for line in lines)


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
