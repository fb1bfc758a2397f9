"""The output of `inspect --groups`."""

from __future__ import annotations

from collections.abc import Sequence

from qdqtune.records.fusion import GroupRecord, GroupsRecord
from qdqtune.report.bench import engine_lines
from qdqtune.report.tables import printable, text_table

_LONGEST_NAME = 40
_MOST_OPS = 5
_ASIDE = frozenset({"Constant", "DequantizeLinear", "Identity", "QuantizeLinear"})
_HEADER = ("group", "ops", "layer", "ms", "share", "quantizable", "alike")
_TIMES = (3, 4)


def groups_text(record: GroupsRecord, *, by_time: bool, max_items: int) -> str:
    """Format a table of the groups, and their totals.

    Args:
        record: The groups.
        by_time: Whether the slowest group comes first; otherwise they are in graph order.
        max_items: The maximum number to show; 0 shows all.
    """
    ordered = list(record.groups)
    if by_time:
        ordered.sort(key=lambda group: -(group.ms or 0.0))
    shown = ordered[: max_items or None]
    columns = [n for n in range(len(_HEADER)) if record.total_ms is not None or n not in _TIMES]
    rows = [_row(group) for group in shown]
    right = [place for place, column in enumerate(columns) if column not in (1, 2)]
    table = text_table(
        [_HEADER[column] for column in columns],
        [[row[column] for column in columns] for row in rows],
        right=right,
    )
    more = len(ordered) - len(shown)
    left_out = [f"and {_count(more, 'more group')}: --max_items 0 shows all"] if more else []
    return "\n".join([*_head(record), "", table, *left_out, "", *_summary(record)])


def _head(record: GroupsRecord) -> list[str]:
    lines = engine_lines(record.engine) if record.engine is not None else []
    took = f", {record.total_ms:.3f} ms per run" if record.total_ms is not None else ""
    if record.engine is not None and record.total_ms is None:
        took = ", built but not timed"
    groups, nodes = _count(len(record.groups), "group"), _count(record.nodes, "node")
    told = f" by {record.source}" if record.engine is None else ""
    return [*lines, printable(f"{record.model}: {nodes} in {groups}{told}{took}")]


def _row(group: GroupRecord) -> list[str]:
    return [
        str(group.number),
        _ops(group.op_types),
        _layers(group.layers),
        f"{group.ms:.3f}" if group.ms is not None else "",
        f"{100 * group.share:.1f} %" if group.share is not None else "",
        f"{group.quantizable} of {len(group.nodes)}" if group.quantizable else "-",
        str(group.alike),
    ]


def _ops(op_types: Sequence[str]) -> str:
    """Return the compute ops, or the others if there are none."""
    computing = [op_type for op_type in op_types if op_type not in _ASIDE] or list(op_types)
    shown = " + ".join(_name(op_type) for op_type in computing[:_MOST_OPS])
    more = len(computing) - _MOST_OPS
    return f"{shown} + {more} more" if more > 0 else shown


def _layers(names: Sequence[str]) -> str:
    if not names:
        return "(none)"
    return _name(names[0]) + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _summary(record: GroupsRecord) -> list[str]:
    able = [group for group in record.groups if group.quantizable]
    spent = sum(group.share or 0.0 for group in able)
    time = f", {100 * spent:.1f} % of the time" if record.total_ms is not None else ""
    lines = [
        f"{_count(len(record.groups), 'group')}, {record.distinct} distinct; "
        f"{record.structural} by structure alone",
        f"{100 * record.covered:.1f} % of the nodes are in layers, {record.unmentioned} in none",
        f"{_count(len(able), 'group')} with ops that {record.dialect} can quantize{time}",
    ]
    return [printable(line) for line in lines]


def _count(count: int, what: str) -> str:
    """Format a number and its noun."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _name(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
