"""The output of `optimize`, `convert` and `shapes`."""

from __future__ import annotations

from qdqtune.records._inputs import shape_text
from qdqtune.records._precision import PrecisionReport
from qdqtune.records._printable import printable
from qdqtune.records._results import (
    ConvertReport,
    OptimizeCounts,
    OptimizeReport,
    Proof,
    ShapesReport,
)
from qdqtune.report._formatting import Table, some, text_table

_MEGABYTE = 1 << 20
_MOST_NAMES = 3


def optimization_text(report: OptimizeReport) -> str:
    """Format as text: a table of what changed, and how."""
    counts = report.counts
    before, after = sum(counts.before.values()), sum(counts.after.values())
    lines = [printable(f"{report.output}: {before} nodes before, {after} now")]
    if counts.changed:
        lines.append(text_table(*changes_table(counts)))
    told = {
        "folded or unused nodes": counts.folded,
        "no-ops": counts.no_ops,
        "duplicate nodes": counts.duplicate_nodes,
        "duplicate weights": counts.duplicate_weights,
        "unused functions": counts.unused_functions,
    }
    gone = [f"{count} {what}" for what, count in told.items() if count > 0]
    lines.append(f"gone: {', '.join(gone) or 'nothing'}")
    lines.append(
        f"weights: {report.bytes_before / _MEGABYTE:.1f} MiB before, "
        f"{report.bytes_after / _MEGABYTE:.1f} MiB now"
    )
    if counts.qdq:
        lines.append(f"all {counts.qdq} quantization nodes stayed as they were")
    return "\n".join(lines)


def changes_table(counts: OptimizeCounts) -> Table:
    """Build the table of op types whose count changed."""
    rows = [(op_type, str(old), str(new)) for op_type, (old, new) in counts.changed.items()]
    return Table(("op", "before", "now"), rows, right=(1, 2))


def conversion_text(report: ConvertReport) -> str:
    """Format as text; the last line warns if outputs are no longer finite."""
    conversion = report.conversion
    name = conversion.precision.value
    lines = [
        f"{report.output}: {len(conversion.converted)} ops in {name}, "
        f"{len(conversion.kept)} kept as they were, Casts {conversion.casts:+d}"
        if conversion.modified
        else f"{report.output}: nothing was converted to {name}"
    ]
    if conversion.opset is not None:
        lines.append(f"raised to opset {conversion.opset}, where ops have a form in {name}")
    lines += _kept_lines(conversion)
    if conversion.saturated:
        names = some(conversion.saturated, _MOST_NAMES)
        lines.append(f"saturated: {names}, numbers beyond the range of {name}")
    for output, db in report.sqnr_db.items():
        lines.append(f"output {output}: SQNR {db:.1f} dB against the model before")
    if report.overflow:
        lines.append(
            f"WARNING: outputs are no longer finite: {report.overflow} is the first to overflow. "
            f"Keep it and what follows: --keep_nodes {report.overflow}"
        )
    return "\n".join(printable(line) for line in lines)


def _kept_lines(conversion: PrecisionReport) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for node, reason in conversion.kept.items():
        by_reason.setdefault(reason, []).append(node)
    ordered = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    return [f"kept: {some(nodes, _MOST_NAMES)}, {reason}" for reason, nodes in ordered]


_PROOFS = {
    Proof.COMPARED: "it gives for a batch what the model gave for its samples",
    Proof.RUN: "it was run once",
    Proof.INFERENCE: "shape inference finds no fault; it was not run",
    Proof.NONE: "it could not be tried here",
}


def shapes_text(report: ShapesReport) -> str:
    """Format a table of inputs and outputs, the symbols, and the file written."""
    rows = [
        [kind, tensor.name, tensor.dtype or "-", shape_text(tensor.dims)]
        for kind, tensors in (("input", report.inputs), ("output", report.outputs))
        for tensor in tensors
    ]
    lines = [text_table(["", "name", "type", "shape"], rows)]
    if report.symbols:
        lines += ["", f"Open dims with a name: {printable(', '.join(report.symbols))}"]
    if report.rewritten:
        names = printable(", ".join(report.rewritten[:_MOST_NAMES]))
        more = ", …" if len(report.rewritten) > _MOST_NAMES else ""
        count = len(report.rewritten)
        lines += ["", f"The batch was written into {count} Reshape node(s): {names}{more}"]
    if report.output is not None:
        lines += ["", f"{printable(report.output)}: {_PROOFS[report.proof]}"]
    return "\n".join(lines)
