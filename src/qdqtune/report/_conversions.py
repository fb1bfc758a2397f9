"""The output of `optimize`, `convert` and `shapes`."""

from __future__ import annotations

from qdqtune.records._inputs import shape_text
from qdqtune.records._results import (
    ConvertReport,
    OptimizeCounts,
    OptimizeReport,
    Proof,
    ShapesReport,
)
from qdqtune.report._formatting import Line, Table, page, some

_MEGABYTE = 1 << 20
_MOST_NAMES = 3


def optimization_text(report: OptimizeReport) -> str:
    """Format as text: a table of what changed, and how."""
    counts = report.counts
    before, after = sum(counts.before.values()), sum(counts.after.values())
    lines: list[Line] = [f"{report.output}: {before} nodes before, {after} now"]
    if counts.changed:
        lines.append(changes_table(counts))
    told = {
        "folded or unused nodes": counts.folded,
        "no-ops": counts.no_ops,
        "duplicate nodes": counts.duplicate_nodes,
        "duplicate weights": counts.duplicate_weights,
        "unused functions": counts.unused_functions,
    }
    gone = [f"{count} {what}" for what, count in told.items() if count > 0]
    lines += [
        f"gone: {', '.join(gone) or 'nothing'}",
        f"weights: {report.bytes_before / _MEGABYTE:.1f} MiB before, "
        f"{report.bytes_after / _MEGABYTE:.1f} MiB now",
    ]
    if counts.qdq:
        lines.append(f"all {counts.qdq} quantization nodes stayed as they were")
    return page(lines)


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
    by_reason: dict[str, list[str]] = {}
    for node, reason in conversion.kept.items():
        by_reason.setdefault(reason, []).append(node)
    for reason, nodes in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        lines.append(f"kept: {some(nodes, _MOST_NAMES)}, {reason}")
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
    return page(lines)


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
    lines: list[Line] = [Table(["", "name", "type", "shape"], rows)]
    if report.symbols:
        lines += ["", f"Open dims with a name: {', '.join(report.symbols)}"]
    if report.rewritten:
        names = some(report.rewritten, _MOST_NAMES)
        lines += [
            "",
            f"The batch was written into {len(report.rewritten)} Reshape node(s): {names}",
        ]
    if report.output is not None:
        lines += ["", f"{report.output}: {_PROOFS[report.proof]}"]
    return page(lines)
