"""The output of `cache`."""

from __future__ import annotations

import math

from qdqtune.records._cache import CacheReport
from qdqtune.report._formatting import Line, Table, page, shortened

_TITLES = (
    "engine", "version", "device", "dialect", "type", "patterns", "settled", "float", "subgraphs",
)  # fmt: skip

_MOST_SHOWN, _LONGEST = 20, 60


def cache_text(report: CacheReport) -> str:
    """Format as text: a table of what is known, by where it was found out."""
    lines: list[Line] = [str(report.path)]
    rows = [
        (
            row.engine, row.version, row.device, row.dialect, row.quant_type, str(row.patterns),
            str(row.settled), str(row.kept_float), str(row.subgraphs),
        )
        for row in report.rows
    ]  # fmt: skip
    if rows:
        lines.append(Table(_TITLES, rows))
    if report.patterns:
        shown = [
            (
                f"{each.chosen} of {each.choices}",
                "" if each.gain is None else f"{100.0 * math.expm1(each.gain):+.1f} %",
                each.engine, shortened(each.structure, _LONGEST),
                shortened(" ".join(each.shapes), _LONGEST),
            )
            for each in report.patterns[:_MOST_SHOWN]
        ]  # fmt: skip
        titles = ("quantized", "best gain", "engine", "pattern", "shapes")
        lines += ["", Table(titles, shown, right=(1,))]
        if (more := len(report.patterns) - len(shown)) > 0:
            lines.append(f"and {more} more; all with --format json")
    if report.schemes:
        lines.append(f"schemes: {report.schemes}, from anywhere")
    if not rows and not report.schemes:
        lines.append("nothing is known")
    if report.damaged:
        lines.append(f"damaged lines, not used: {report.damaged}")
    if report.removed:
        lines.append(f"removed: {report.removed}")
    return page(lines)
