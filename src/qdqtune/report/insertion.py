"""The output of `insert`."""

from __future__ import annotations

from collections import Counter

from qdqtune.records.insertion import InsertReport
from qdqtune.records.ranges import CalibrationSource
from qdqtune.report.tables import printable

RANDOM_WARNING = (
    "Calibrated on random inputs: good for timing, not for deployment; "
    "accuracy on real data is unknown."
)


def insertion_text(report: InsertReport) -> str:
    """Format as text; the last line warns if the scales can't be trusted."""
    lines = [
        f"{report.output}: {report.quant_type} in the {report.dialect} dialect, "
        f"{len(report.quantized)} ops, {report.pairs} tensors"
    ]
    for reason, count in Counter(report.left_float.values()).most_common():
        lines.append(f"left float: {count} ops, {reason}")
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
        others = ", ".join(
            f"{method} {db:.1f} dB"
            for method, db in report.tried_db.items()
            if method != report.method.value
        )
        than = f" ({others})" if others else ""
        lines.append(f"calibrated on {report.calibrated_on}, {report.method.value} ranges{than}")
    lines = [printable(line) for line in lines]
    if report.calibration is CalibrationSource.RANDOM:
        lines.append(RANDOM_WARNING)
    return "\n".join(lines)
