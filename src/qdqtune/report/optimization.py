"""What `optimize` shows."""

from __future__ import annotations

from typing import Any

from qdqtune.records.optimization import OptimizeReport
from qdqtune.report.tables import printable, text_table

_MEGABYTE = 1 << 20


def optimization_record(report: OptimizeReport) -> dict[str, Any]:
    """The JSON form."""
    counts = report.counts
    return {
        "kind": "optimization",
        "schema": 1,
        "output": str(report.output),
        "nodes_before": dict(sorted(counts.before.items())),
        "nodes_after": dict(sorted(counts.after.items())),
        "folded": counts.folded,
        "no_ops": counts.no_ops,
        "duplicate_nodes": counts.duplicate_nodes,
        "duplicate_weights": counts.duplicate_weights,
        "unused_functions": counts.unused_functions,
        "qdq_nodes": counts.qdq,
        "weight_bytes_before": report.bytes_before,
        "weight_bytes_after": report.bytes_after,
    }


def optimization_text(report: OptimizeReport) -> str:
    """The text form: a table of what changed, and how."""
    counts = report.counts
    before, after = sum(counts.before.values()), sum(counts.after.values())
    lines = [printable(f"{report.output}: {before} nodes before, {after} now")]
    changed = counts.changed
    if changed:
        rows = [(op_type, str(old), str(new)) for op_type, (old, new) in changed.items()]
        lines.append(text_table(("op", "before", "now"), rows, right=(1, 2)))
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
