"""The output of `tune` and of `python -m qdqtune.autotune`, of a dry run, and of `export`."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from typing import Any

from qdqtune.records._front import FrontPoint
from qdqtune.records._inputs import shape_text
from qdqtune.records._measurement import FLOAT32
from qdqtune.records._printable import message
from qdqtune.records._ranges import CalibrationSource
from qdqtune.records._results import Candidate
from qdqtune.records._tuning import AS_GIVEN as UNCHANGED
from qdqtune.records._tuning import (
    BY_BUDGET,
    BY_COUNT,
    INTERRUPTED,
    Batch,
    Summary,
    TunePlan,
    TuneResult,
)
from qdqtune.report._bench import busy_lines, engine_lines, inputs_lines, rewritten_lines
from qdqtune.report._formatting import Line, Table, cell, duration, page, shortened
from qdqtune.report._inspection import in_float32_line
from qdqtune.report._quantization import float_error_line, near_limit_line

_SUBGRAPH = "subgraph"
_AS_GIVEN = "as given"  # the seed with the placement of a model that was already quantized
STOPPED = {
    BY_BUDGET: "The time was up before the search was over; the same command resumes it.",
    BY_COUNT: "The search ended at --max_benchmarks: too few candidates were left for its next "
    "comparison and a last one of the best. With a larger limit, the same command goes on.",
    INTERRUPTED: "The search was interrupted; the same command resumes it.",
}
"""Why a search ended before it was finished."""
_COLUMNS = ("model", "median ms", "speedup", "interval", "output SQNR", "metric")
_ALWAYS = 4  # columns that are shown even without values
_FRONT = "The front: of these, none is both faster and more accurate than another."
# With fewer processes, the spread between them can't be estimated.
_FEWEST_OPENINGS = 3
# What took less is not listed where the time went.
_SHORTEST_S = 0.05


def tune_text(result: TuneResult) -> str:
    """Format as text; the last line warns if the scales can't be trusted."""
    summary = result.summary
    shapes = {name: shape_text(shape) for name, shape in summary.shapes.items()}
    lines: list[Line] = [
        *engine_lines(summary.engine),
        *inputs_lines(shapes),
        "",
        summary_table(summary),
        "",
    ]
    if len(summary.front) > 1:
        command = f"qdqtune export {result.output_dir} --pareto N -o OUT.onnx"
        lines += [front_table(summary.front), *_as_good(summary)]
        lines += [f"{_FRONT} Write one of them: {command}", ""]
    if summary.batches:
        lines += [*_batches(summary), ""]
    lines += [
        *_verdict(summary),
        *busy_lines(summary.contention),
        *_accuracy(summary),
        *_effort(summary),
        *_workers(summary),
        *_files(result),
        *([summary.latency_warning] if summary.latency_warning else []),
    ]
    return page(lines, result.warning)


def summary_table(summary: Summary) -> Table:
    """Build the table of the original model, the best blanket placement and the result."""
    metric = summary.metric or {}
    baseline = _AS_GIVEN if _AS_GIVEN in summary.seeds else _float_name(summary)
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
    return Table(_COLUMNS, rows, right=(1, 2, 4, 5)).only(shown)


def front_table(points: Sequence[FrontPoint]) -> Table:
    """Build the table of models of which none is both faster and more accurate than another."""
    rows = [
        _row(
            f"{number} {'tuned' if point.chosen else point.name}", point.latency_ms,
            point.speedup, point.speedup_interval, point.sqnr_db, point.metric,
        )
        for number, point in enumerate(points, 1)
    ]  # fmt: skip
    shown = [n for n in range(len(_COLUMNS)) if n < _ALWAYS or any(row[n] for row in rows)]
    return Table(("the front", *_COLUMNS[1:]), rows, right=(1, 2, 4, 5)).only(shown)


def _as_good(summary: Summary) -> list[str]:
    """Say why a model that beats the result in both speed and accuracy is not the result."""
    chosen = next((point for point in summary.front if point.chosen), None)
    if chosen is None or any(point.metric is not None for point in summary.front):
        return []
    better = [
        str(number)
        for number, point in enumerate(summary.front, 1)
        if point.speedup >= chosen.speedup
        and (point.sqnr_db or 0.0) >= (chosen.sqnr_db or 0.0)
        and not point.chosen
    ]
    needs = summary.calibration == CalibrationSource.NONE.value
    why = "needs calibration, and is hardly faster" if needs else "is not significantly faster"
    return [f"Point {number} {why}: it is not the result." for number in better]


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


def _float_name(summary: Summary) -> str:
    if summary.converted_from:
        return f"as given ({summary.converted_from})"
    if summary.precision != UNCHANGED:
        return summary.precision
    computed_in = summary.engine.float_type
    return "float" if computed_in in ("", FLOAT32) else f"float ({computed_in})"


def _verdict(summary: Summary) -> list[str]:
    how = [*_scale(summary), *_converted(summary)]
    if not summary.kept_float:
        return [*how, f"{summary.contents}, in the {summary.dialect} dialect."]
    reason = summary.reason.rstrip(".") or "nothing that was tried is faster"
    if summary.precision != UNCHANGED:
        kept = f"{summary.precision} model is kept"
    elif _AS_GIVEN in summary.seeds:
        kept = "model is kept as given, byte for byte"
    else:
        kept = "float model is kept, byte for byte"
    return [f"The {kept}: {reason}.", *how]


def _scale(summary: Summary) -> list[str]:
    """Explain what speedups are relative to, and add remarks on the blanket placement."""
    blanket = summary.blanket
    if summary.kept_float and blanket is None:
        return []
    over = "as given" if summary.precision == UNCHANGED else f"in {summary.precision}"
    where = f", in {summary.openings} processes one after the other" if summary.openings > 1 else ""
    lines = [
        f"Speedups are over the model {over}, with {100 * summary.confidence:g} % intervals, all "
        f"timed in turns at the end{where}."
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
    far = cell(summary.precision_sqnr_db, ".1f", " dB from the model as given")
    fast = cell(summary.precision_speedup, ".2f", "x as fast as that")
    facts = ", ".join(filter(None, [f"to {summary.precision} first", far, fast]))
    return [
        f"The model was converted {facts}: the engine takes types as they are written. "
        "--precision float32 leaves it as it is."
    ]


def _accuracy(summary: Summary) -> list[str]:
    lines = []
    if summary.output_sqnr_db is not None and not summary.kept_float:
        against = "float" if summary.precision == UNCHANGED else "the model as given"
        lines.append(f"Output SQNR {summary.output_sqnr_db:.1f} dB against {against}.")
        if summary.float_sqnr_db is not None:
            lines.append(float_error_line(summary.engine.float_type, summary.float_sqnr_db))
        if summary.near_min_sqnr and summary.allowed_sqnr_db is not None:
            lines.append(near_limit_line(summary.output_sqnr_db, summary.allowed_sqnr_db))
    elif summary.qdq_pairs + summary.dynamic_ops and not summary.kept_float:
        lines.append("Output SQNR unknown: its outputs could not be compared with float.")
    if summary.lost_to_accuracy and not summary.kept_float:
        lines.append(f"The fastest model was not accurate enough: {summary.lost_to_accuracy}.")
    if summary.metric is not None:
        values = ", ".join(f"{name} {value:.6g}" for name, value in summary.metric.items())
        lines.append(f"Your metric: {values}.")
    if summary.calibration == CalibrationSource.DATA.value:
        method = summary.calibration_method
        lines.append(f"Calibrated on {summary.calibrated_on}, {method} ranges.")
        lines += rewritten_lines(summary.corrected_biases, summary.smoothed_inputs)
    elif summary.calibration == CalibrationSource.NONE.value and not summary.kept_float:
        lines.append("Its scales don't depend on calibration data.")
    return lines


def _effort(summary: Summary) -> list[str]:
    seconds = summary.seconds
    details = [f"{summary.failed} failed"] if summary.failed else []
    details += [f"{summary.memo_hits} known from before"] if summary.memo_hits else []
    also = f" ({', '.join(details)})" if details else ""
    what = f"{summary.groups} choices in {summary.regions} regions ({summary.patterns} patterns)"
    lines = []
    if summary.mode == _SUBGRAPH:
        what = "whole models"
        lines = _subgraphs(summary)
    this_run = "This run: " if summary.runs > 1 else ""
    spent = {
        "building": seconds.building, "timing": seconds.timing,
        "calibration and checks": seconds.other, "own": seconds.own,
    }  # fmt: skip
    parts = [f"{name} {duration(each)}" for name, each in spent.items() if each >= _SHORTEST_S]
    lines.append(
        f"{this_run}{summary.benchmarks} benchmarks{also} of {what}, {duration(seconds.total)}: "
        f"{', '.join(parts) or 'nothing was built'}."
    )
    # Otherwise there was only time for the float model.
    is_begun = summary.stopped != "budget" or summary.total_benchmarks + summary.memo_hits > 0
    if is_begun:
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
    if summary.stopped in STOPPED and is_begun:
        lines.append(STOPPED[summary.stopped])
    return lines


def _workers(summary: Summary) -> list[str]:
    """Say what each of several workers did, and which were left out."""
    done = (f"{each.name} {each.jobs} jobs" for each in summary.workers)
    return [
        *([f"Timed side by side: {', '.join(done)}."] if summary.workers else []),
        *(
            f"{each.name.capitalize()} was left out: {each.left_out}."
            for each in summary.workers if each.left_out
        ),
    ]  # fmt: skip


def _files(result: TuneResult) -> list[str]:
    others = [name for name in result.summary.files.values() if name != result.model.name]
    build = result.summary.build_with
    return [
        f"Written: {result.model}",
        *([f"Report: {result.report}"] if result.report is not None else []),
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
            f"left float: {count} op{'s' * (count != 1)}, {reason}"
            for reason, count in sorted(plan.left_float.items(), key=lambda item: -item[1])
        ),
    ]
    what = "benchmarks"
    if plan.mode == _SUBGRAPH:
        what = "assemblies of the whole model"
        how = "each distinct subgraph is timed alone, as float and quantized"
        if plan.is_told_in_place:
            how = "whole models tell what subgraphs take; the others are timed alone"
        lines.append(f"what {plan.engine} fuses is found out in a run, and {how}")
    else:
        seeds = (f"{name} ({count} tensors)" for name, count in plan.seeds.items())
        lines += [
            f"{plan.regions} regions, {plan.patterns} patterns, {plan.groups} choices",
            f"first tried: {', '.join(seeds) or 'nothing'}",
        ]
    lines.append(f"at most {plan.benchmarks} {what} on {plan.engine}; nothing was written")
    return page([*lines, _estimate_line(plan)])


def _estimate_line(plan: TunePlan) -> str:
    estimate = plan.estimate
    if estimate is None:
        return f"no estimate of the time: the model could not be timed here: {plan.no_estimate}"
    least, most = duration(estimate.least_s), duration(estimate.most_s)
    expected = f"about {most}" if least == most else f"{least} to {most}"
    also = ", and the subgraphs" if plan.mode == _SUBGRAPH else ""
    return (
        f"expected time: {expected}{also}, without accuracy repairs; from one timing of the model "
        f"({duration(estimate.build_s)} to build, {_milliseconds(estimate.latency_ms)} ms a run)"
    )


def autotune_text(result: TuneResult) -> str:
    """Return the two lines that scripts look for, followed by the output of `tune`."""
    summary = result.summary
    return (
        f"Baseline: {_milliseconds(summary.baseline_ms)} ms\n"
        f"Final: {_milliseconds(summary.final_ms)} ms ({summary.speedup:.3f}x speedup)\n\n"
        f"{tune_text(result)}"
    )


def _milliseconds(latency_ms: float) -> str:
    """Format with two decimals, or as many as a small model needs."""
    return f"{latency_ms:.2f}" if latency_ms >= 1.0 else f"{latency_ms:.3g}"


_TRIALS = (
    "tried on the whole model", "quantized", "dropped", "predicted", "measured", "std error", "",
)  # fmt: skip
_RAW = "raw"
_STAGES = {
    _RAW: "what the subgraph timings predict to be fastest",
    "schemes": "other ways to quantize groups",
    "batches": "groups changed together",
    "doubts": "groups whose predictions are uncertain",
}
# As a difference of logarithms.
_FAR = 0.1
_FAR_OFF = "Subgraph timings predicted the whole model poorly: region mode may find more."
# The search's prefix for a step from the best so far; all other steps start from the float model.
_STEPS = frozenset({"batches", "doubts", "schemes"})


def _batches(summary: Summary) -> list[Line]:
    """Report what was tried on the whole model, and how to read it."""
    tried = {batch.stage for batch in summary.batches}
    timed, subgraphs = _subgraph_counts(summary)
    note = f"Quantized and dropped count fusion groups{' that were timed' * (timed < subgraphs)}; "
    if _AS_GIVEN in summary.seeds:
        note += (
            "speedups in this table are over the float model inside, that of the result is over "
            "the model as given"
        )
    else:
        note += "speedups are over float"
    meanings = [f"{stage}: {_STAGES[stage]}" for stage in _STAGES if stage in tried]
    if tried & _STEPS:
        note += "; those of schemes, batches and doubts are over the best before them"
    # An assembly without Q/DQ is the float model, which is not timed against itself.
    if _RAW not in tried and timed == subgraphs > 0:
        note += ". By the subgraph timings, all of it should stay float"
    # Whole-model choices without a row, because they turned out to equal another one.
    first = {speedup: name for name, speedup in reversed([*summary.seeds.items()]) if name in tried}
    same = [
        f"{name}: the same as {first[speedup]}."
        for name, speedup in summary.seeds.items()
        if name not in tried and speedup in first
    ]
    is_far = timed > 0 and _is_far_off(summary.batches)
    table = batches_table(summary.batches, has_costs=timed > 0)
    told = [f"{'; '.join(meanings)}."] if meanings else []
    return [table, *told, f"{note}.", *same, *([_FAR_OFF] if is_far else [])]


def batches_table(batches: Sequence[Batch], *, has_costs: bool = True) -> Table:
    """Build the table of whole-model trials and the predictions from subgraphs.

    Args:
        batches: The trials.
        has_costs: Whether any subgraph was timed, so that there are predictions.
    """
    rows = [
        [
            batch.stage,
            str(batch.quantized) if has_costs else "-",
            str(batch.dropped) if has_costs else "-",
            _prediction(batch, has_costs=has_costs),
            "failed" if batch.measured is None else f"{batch.measured:.3f}x",
            "" if batch.measured is None else f"{100 * batch.error:.1f} %",
            "taken" if batch.accepted else "",
        ]
        for batch in batches
    ]
    return Table(_TRIALS, rows, right=(1, 2, 3, 4, 5))


def _prediction(batch: Batch, *, has_costs: bool) -> str:
    is_told = batch.predicted is not None and (has_costs or batch.predicted != 1.0)
    return f"{batch.predicted:.3f}x" if is_told else "-"


def _is_far_off(batches: Sequence[Batch]) -> bool:
    """Whether most predictions were far from the measurements."""
    errors = [
        abs(math.log(batch.measured / batch.predicted))
        for batch in batches
        if batch.measured and batch.predicted
    ]
    return bool(errors) and statistics.median(errors) > _FAR


def _subgraph_counts(summary: Summary) -> tuple[int, int]:
    """Return how many distinct subgraphs were timed, and how many there are."""
    timed = summary.subgraphs.get("pieces", 0)
    return timed, summary.subgraphs.get("all_pieces", timed)


def _subgraphs(summary: Summary) -> list[str]:
    """Report how many subgraphs there were, and how many were timed; empty if unknown."""
    found, benchmarks = summary.subgraphs, summary.subgraph_benchmarks
    if not found:  # the run ended before it found any
        return [f"{benchmarks} benchmarks of subgraphs."] if benchmarks else []
    timed, subgraphs = _subgraph_counts(summary)
    groups = f"{found['groups']} fusion groups ({found['structural']} by structure alone)"
    if timed < subgraphs:  # what can be quantized is known only for the timed ones
        why = ": the time was up" if summary.stopped == "budget" else ""
        told = f" {benchmarks} benchmarks of them." if benchmarks else ""
        return [f"{groups}. {timed} of {subgraphs} distinct subgraphs were timed{why}.{told}"]
    return [
        f"{groups}, {found['units']} could be quantized: {subgraphs} distinct subgraphs, "
        f"{f'{benchmarks} benchmarks of them' if benchmarks else 'known from before'}."
    ]


_LONGEST_FAILURE = 60
_LISTED = ("candidate", "tensors", "latency ms", "speedup", "output SQNR", "metric", "note")
_LISTED_NOTE = (
    "Speedups are the search's estimates over float; latencies were measured at different times, "
    "and smoothing was not timed in the search."
)


def candidates_text(candidates: Sequence[Candidate], most: int | None = None) -> str:
    """Format a table of candidates, fastest first.

    Args:
        candidates: The candidates to show.
        most: The maximum number to show.
    """
    if not candidates:
        return "Nothing was tried in this run."
    ordered = sorted(candidates, key=lambda one: -(one.speedup or 0.0))
    table = Table(_LISTED, [_candidate_row(one) for one in ordered[:most]], right=(1, 2, 3, 4, 5))
    shown = [n for n in range(len(_LISTED)) if n not in (4, 5) or any(r[n] for r in table.rows)]
    more = len(ordered) - len(table.rows)
    return page([table.only(shown), *([f"and {more} more: --list"] if more else []), _LISTED_NOTE])


def _candidate_row(one: Candidate) -> list[str]:
    remark = one.role or ("float" if one.tensors == 0 else one.shortfall)
    if one.failure is not None:
        first = message(one.failure).split("\n", 1)[0]
        remark = f"failed: {shortened(first, _LONGEST_FAILURE)}"
    elif one.tensors is None:
        remark = "no file"
    return [
        one.id,
        cell(one.tensors, "d"),
        cell(one.latency_ms, ".3f"),
        cell(one.speedup, ".3f", "x"),
        cell(one.sqnr_db, ".1f", " dB"),
        cell(one.metric, ".6g"),
        remark,
    ]


def candidates_record(candidates: Sequence[Candidate]) -> dict[str, Any]:
    """Build the JSON form, in the order in which they were tried."""
    listed = [one.to_dict() for one in candidates]
    return {"kind": "candidates", "schema": 1, "candidates": listed}


def exclusion_list(tool: str, names: Sequence[str]) -> list[str] | dict[str, list[str]]:
    """Return a list of nodes not to quantize, in the format that a tool takes.

    Args:
        tool: One of `EXCLUSION_TOOLS`.
        names: Names of nodes.
    """
    if tool == "modelopt":  # it matches regular expressions at the beginning of names
        return [f"^{re.escape(name)}$" for name in names]
    return {"names": list(names)} if tool == "nncf" else list(names)
