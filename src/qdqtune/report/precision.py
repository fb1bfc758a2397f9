"""The output of `convert`."""

from __future__ import annotations

from qdqtune.records.precision import ConvertReport, PrecisionReport
from qdqtune.report.tables import printable

# The number of names that a line lists; beyond it, the line gives only a count.
_SHOWN_NAMES = 3


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
        lines.append(
            f"saturated: {_names(list(conversion.saturated))}, numbers beyond the range of {name}"
        )
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
    return [f"kept: {_names(nodes)}, {reason}" for reason, nodes in ordered]


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN_NAMES])
    more = len(names) - _SHOWN_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
