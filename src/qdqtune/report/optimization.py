"""The output of `optimize`."""

from __future__ import annotations

from qdqtune.records.optimization import OptimizeCounts, OptimizeReport
from qdqtune.report.tables import Table, printable, text_table

_MEGABYTE = 1 << 20


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
