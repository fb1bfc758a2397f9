"""The output of `quantize`, `insert` and `strip`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from qdqtune.records._quantization import Decision, InsertReport, QuantizeReport, StripReport
from qdqtune.records._ranges import CalibrationSource
from qdqtune.report._bench import busy_lines, rewritten_lines
from qdqtune.report._formatting import Line, Table, cell, counted, page


def near_limit_line(sqnr_db: float, min_sqnr_db: float) -> str:
    """Return the warning that a result is just within the accuracy limit."""
    return (
        f"Only {sqnr_db - min_sqnr_db:.1f} dB above the limit of {min_sqnr_db:.3g} dB: check the "
        "model on your own task, or raise --min_sqnr."
    )


def float_error_line(float_type: str, sqnr_db: float) -> str:
    """Return the part of an error that quantization did not cause."""
    return (
        f"The float model itself is {sqnr_db:.1f} dB from float32 there, computed in "
        f"{float_type or 'another type'}."
    )


def _others(tried_db: Mapping[str, float], method: str, unit: str = "") -> str:
    """Return the results of the range methods that were not chosen."""
    shown = (f"{name} {db:.1f}{unit}" for name, db in tried_db.items() if name != method)
    return ", ".join(shown)


def insertion_text(report: InsertReport) -> str:
    """Format as text; the last line warns if the scales can't be trusted."""
    dynamic = len(report.placement.dynamic)
    ops = f"{len(report.quantized)} ops" + (f" ({dynamic} dynamic)" if dynamic else "")
    lines = [
        f"{report.output}: {report.quant_type} in the {report.dialect} dialect, {ops}, "
        f"{report.pairs} tensors"
    ]
    for reason, count in Counter(report.left_float.values()).most_common():
        lines.append(f"left float: {count} op{'s' * (count != 1)}, {reason}")
    if report.scales_kept or report.ranges_kept:
        lines.append(
            f"kept from the model: the scales of {report.scales_kept} activations, the ranges of "
            f"{report.ranges_kept} more"
        )
    for name, db in report.sqnr_db.items():
        given = report.sqnr_given_db.get(name)
        also = f", {given:.1f} dB against the file as given" if given is not None else ""
        lines.append(f"output {name}: SQNR {db:.1f} dB against float{also}")
    if report.calibration is CalibrationSource.DATA:
        others = _others(report.tried_db, report.method.value, " dB")
        than = f" ({others})" if others else ""
        lines.append(f"calibrated on {report.calibrated_on}, {report.method.value} ranges{than}")
    return page(lines, report.warning)


def stripping_text(report: StripReport) -> str:
    """Format as text."""
    lines = [f"{report.output}: {report.taken}"]
    if report.left:
        lines.append(
            f"{report.left} Q and DQ nodes stayed: they belong to no pair with constant scales"
        )
    if report.rounded:
        lines.append(
            f"{report.rounded} weights have the rounded values of the file; the original ones are "
            "put back with --weights_from FLOAT"
        )
    if report.corrected_biases:
        lines.append(
            f"{report.corrected_biases} biases stay corrected: mean errors of quantized ops are "
            "taken off them; the original ones are put back with --weights_from FLOAT"
        )
    if report.smoothed_inputs:
        lines.append(
            f"the smoothed inputs of {counted(report.smoothed_inputs, 'product')} are as they were"
        )
    for name, db in report.sqnr_db.items():
        lines.append(f"output {name}: the quantized file is at SQNR {db:.1f} dB")
    return page(lines)


_MOST_REASONS = 3


def quantize_text(report: QuantizeReport, *, every_node: bool = False) -> str:
    """Format as text; the last line warns if the scales can't be trusted.

    Args:
        report: The result of the quantization.
        every_node: Whether to list every op with its own error, too.
    """
    lines: list[Line] = [op_table(report.decisions), ""]
    if every_node:
        lines += [_node_table(report.decisions), ""]
    lines += [*_placed(report), *_accuracy(report), *_latency(report), *_written(report)]
    return page(lines, report.warning)


def op_table(decisions: Sequence[Decision]) -> Table:
    """Build the table of how many ops of each type are quantized, and why the others are not."""
    quantized = Counter(each.op_type for each in decisions if each.quantized)
    dynamic = Counter(each.op_type for each in decisions if each.dynamic)
    left: dict[str, Counter[str]] = defaultdict(Counter)
    for each in decisions:
        if not each.quantized:
            left[each.op_type][f"{each.rule}: {each.reason}"] += 1
    types = sorted({each.op_type for each in decisions}, key=lambda name: (-quantized[name], name))
    rows = []
    for name in types:
        reasons = left[name].most_common()
        shown = [
            f"{reason} ({count})" if len(reasons) > 1 else reason
            for reason, count in reasons[:_MOST_REASONS]
        ]
        more = len(reasons) - len(shown)
        shown += [f"and {more} more: see -v"] if more else []
        first, *rest = shown or [""]
        counts = [quantized[name], *([dynamic[name]] if dynamic else []), left[name].total()]
        rows.append([name, *(str(count or "") for count in counts), first])
        rows += [["", *("" for _ in counts), reason] for reason in rest]
    head = ["op", "quantized", *(["at run time"] if dynamic else []), "float", "why float"]
    return Table(head, rows, right=tuple(range(1, len(head) - 1)))


def _node_table(decisions: Sequence[Decision]) -> Table:
    rows = [
        [
            each.node,
            each.op_type,
            "dynamic" if each.dynamic else "quantized" if each.quantized else "float",
            cell(each.sqnr_db, ".1f"),
            f"{each.rule}: {each.reason}",
        ]
        for each in decisions
    ]
    return Table(["node", "op", "", "own dB", "why"], rows, right=(3,))


def _placed(report: QuantizeReport) -> list[str]:
    if report.kept_float:
        return ["The table shows what was tried."] if report.comparison is not None else []
    lines = [
        f"{report.qdq_pairs} tensors are quantized ({report.quant_type}), in the {report.dialect} "
        "dialect."
    ]
    if report.dynamic_ops:
        lines.append(f"The inputs of {report.dynamic_ops} ops are quantized at run time.")
    if report.unfused_ops:
        lines.append(f"{report.unfused_ops} sums are written so that they are not fused.")
    if report.converted_from:
        lines.insert(
            0,
            f"The model is {report.converted_from}, for which {report.dialect} has no integer "
            "kernels: what is not quantized is float32 now. Inputs and outputs keep their types.",
        )
    for rule, count in Counter(report.added.values()).items():
        lines.append(f"Of {count} of them, readers without an integer kernel, too: {rule}.")
    accuracy = sum(each.rule == "accuracy" for each in report.decisions)
    if accuracy:
        lines.append(f"{accuracy} ops stay float for accuracy: see the table, or --min_sqnr.")
    return lines


def _accuracy(report: QuantizeReport) -> list[str]:
    lines = []
    for name in dict.fromkeys((*report.sqnr_db, *report.scores_db)):
        found = [f"SQNR {report.sqnr_db[name]:.1f} dB"] if name in report.sqnr_db else []
        if name in report.scores_db:
            found.append(f"scores that it comes from {report.scores_db[name]:.1f} dB")
        lines.append(f"Output {name}: {', '.join(found)}, against float ({report.judged_with}).")
    if not lines and not report.kept_float:
        lines.append("Output SQNR unknown: its outputs could not be compared with float.")
    worst = report.worst_db
    if report.float_sqnr_db is not None:
        lines.append(float_error_line(report.float_type, report.float_sqnr_db))
    if report.near_min_sqnr and worst is not None and report.allowed_sqnr_db is not None:
        lines.append(near_limit_line(worst, report.allowed_sqnr_db))
    if report.calibration == CalibrationSource.DATA.value:
        others = _others(report.tried_db, report.method)
        than = f" (worst output; others: {others} dB)" if others else ""
        lines.append(f"Calibrated on {report.calibrated_on}, {report.method} ranges{than}.")
        lines += rewritten_lines(report.corrected_biases, report.smoothed_inputs)
    return lines


def _latency(report: QuantizeReport) -> list[str]:
    found = report.comparison
    if found is None or report.baseline_ms is None or report.final_ms is None:
        return [f"Latency was not measured: {report.not_timed}."]
    return [
        f"Latency on {report.engine}: as given {report.baseline_ms:.3f} ms, quantized "
        f"{report.final_ms:.3f} ms, {found.ratio:.3f}x ({found.low:.3f} to {found.high:.3f}, "
        f"{100 * found.confidence:g} %).",
        *busy_lines(found.contention),
    ]


def _written(report: QuantizeReport) -> list[str]:
    if report.kept_float:
        result = f"The model is handed back as it was: {report.reason}."
    else:
        before, after = report.bytes_before, report.bytes_after
        result = f"Size {before / 1e6:.2f} MB -> {after / 1e6:.2f} MB ({after / before:.2f}x)."
    return [result, *([f"Written: {report.output}"] if report.output is not None else [])]
