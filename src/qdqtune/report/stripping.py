"""The output of `strip`."""

from __future__ import annotations

from qdqtune.records.stripping import StripReport
from qdqtune.report.tables import printable


def stripping_text(report: StripReport) -> str:
    """Format as text."""
    tensors = len(report.placement.tensors)
    lines = [f"{report.output}: took {report.pairs} DequantizeLinear off {tensors} tensors"]
    if report.left:
        lines.append(
            f"{report.left} Q and DQ nodes stayed: they belong to no pair with constant scales"
        )
    if report.rounded:
        lines.append(
            f"{report.rounded} weights have the rounded values of the file; the original ones are "
            "put back with --weights_from FLOAT"
        )
    for name, db in report.sqnr_db.items():
        lines.append(f"output {name}: the quantized file is at SQNR {db:.1f} dB")
    return "\n".join(printable(line) for line in lines)
