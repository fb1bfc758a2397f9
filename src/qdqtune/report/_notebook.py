"""HTML for notebooks: a caption and a small table per result.

`qdqtune.records._results` loads this module by name.
"""

from __future__ import annotations

import html
from collections.abc import Mapping

from qdqtune.records._accuracy import ErrorReport
from qdqtune.records._measurement import BenchRecord
from qdqtune.records._printable import message, printable
from qdqtune.records._quantization import QuantizeReport, QuantizeResult
from qdqtune.records._results import Inspection, OptimizeReport, Result
from qdqtune.records._tuning import TuneResult
from qdqtune.records._verification import VerifyReport
from qdqtune.report._bench import bench_table, layers_table, outputs_table
from qdqtune.report._conversions import changes_table
from qdqtune.report._formatting import Table
from qdqtune.report._quantization import op_table
from qdqtune.report._tuning import summary_table

_MOST_ROWS = 20


def html_of(result: Result) -> str:
    """Format a result as an HTML table, captioned with its main figures; names are escaped."""
    table = table_of(result)
    head = "".join(f"<th>{_escaped(title)}</th>" for title in table.header)
    rows = [
        "".join(
            f"<td{_RIGHT if column in table.right else ''}>{_escaped(cell)}</td>"
            for column, cell in enumerate(row)
        )
        for row in table.rows[:_MOST_ROWS]
    ]
    more = len(table.rows) - len(rows)
    if more:
        rows.append(f'<td colspan="{len(table.header)}">and {more} more</td>')
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    caption = f"<caption>{_escaped(repr(result))}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_RIGHT = ' style="text-align: right"'


def _escaped(text: str) -> str:
    return html.escape(printable(message(text)))


def table_of(result: Result) -> Table:
    """Build the table of a result; by default, every number and text of its JSON form."""
    match result:
        case TuneResult():
            return summary_table(result.summary)
        case QuantizeResult():
            return op_table(result.report.decisions)
        case QuantizeReport():
            return op_table(result.decisions)
        case BenchRecord():
            return bench_table(result)
        case ErrorReport():
            return layers_table(result, 0) if result.layers else outputs_table(result)
        case OptimizeReport():
            return changes_table(result.counts)
        case Inspection():
            counts = result.quantizable.items()
            rows = [(op_type, str(can), str(all_ - can)) for op_type, (can, all_) in counts]
            return Table(("op", "quantizable", "float or fused"), rows, right=(1, 2))
        case VerifyReport():
            rows = [(check.name, check.outcome.value, check.text) for check in result.all_checks]
            return Table(("check", "outcome", "what was compared"), rows)
    return Table(("", "value"), _facts(result.to_dict()))


def _facts(value: Mapping[str, object]) -> list[tuple[str, str]]:
    shown = {name: each for name, each in value.items() if name not in ("kind", "schema")}
    return [
        (name.replace("_", " "), f"{each:.4g}" if isinstance(each, float) else str(each))
        for name, each in shown.items()
        if isinstance(each, str | int | float) and each != ""
    ]
