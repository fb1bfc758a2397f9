"""The output of `inspect --layers` and `inspect --groups`."""

from __future__ import annotations

from collections.abc import Sequence

from qdqtune.records._layers import BETWEEN, GroupRecord, GroupsRecord, LayersRecord, MappedLayer
from qdqtune.records._printable import printable
from qdqtune.report._bench import engine_lines
from qdqtune.report._formatting import text_table

_LONGEST_NAME = 44
_MOST_NAMES = 3
_ASIDE = frozenset({"Constant", "DequantizeLinear", "Identity", "QuantizeLinear"})
_TOO_SHORT = (
    "No layer took long enough for the engine's clock.",
    "Give open dims larger sizes (--dim, --shapes), or look at --format json.",
)
_HEADER = ("layer", "kind", "precision", "ms", "share", "nodes of the model")
_TIMES = (3, 4)
_NOT_TIMED = "The model was built, not run: there are no times."


def layers_text(record: LayersRecord, *, by_time: bool, max_items: int) -> str:
    """Format a table of the layers, and their totals.

    Args:
        record: The layers.
        by_time: Whether the slowest layer comes first; otherwise they are in execution order.
        max_items: The maximum number of layers that take time to show; 0 shows all layers.
    """
    if not record.is_timed:
        return _without_times(record, max_items)
    kept = [layer for layer in record.layers if layer.ms or not max_items]
    if by_time:
        kept.sort(key=lambda layer: -layer.ms)
    shown = kept[: max_items or None]
    if not record.total_ms:
        return "\n".join([*_head(record), "", *_TOO_SHORT])
    table = text_table(_HEADER, [_row(layer, record) for layer in shown], right=_TIMES)
    return "\n".join([*_head(record), "", table, *_left_out(record, shown), "", *_summary(record)])


def _without_times(record: LayersRecord, max_items: int) -> str:
    shown = record.layers[: max_items or None]
    columns = [column for column in range(len(_HEADER)) if column not in _TIMES]
    rows = [_row(layer, record) for layer in shown]
    table = text_table(
        [_HEADER[column] for column in columns],
        [[row[column] for column in columns] for row in rows],
    )
    more = len(record.layers) - len(shown)
    left_out = [f"and {_count(more, 'more layer')}: --max_items 0 shows all"] if more else []
    counts = (f"{name or 'unknown'} {n}" for name, n in record.layers_by_precision.items())
    summary = [
        printable(f"layers by precision: {', '.join(counts)}"),
        f"{_count(len(record.conversions), 'conversion')} between types",
        *_folded(record),
        _NOT_TIMED,
    ]
    return "\n".join([*_head(record), "", table, *left_out, "", *summary])


def _head(record: LayersRecord) -> list[str]:
    took = f"{record.total_ms:.3f} ms per run, from {_count(record.runs, 'run')}"
    took = took if record.is_timed else "not timed"
    nodes, layers = _count(record.nodes, "node"), _count(len(record.layers), "layer")
    return [
        *engine_lines(record.engine),
        printable(f"{record.model}: {nodes} run as {layers}, {took}"),
    ]


def _row(layer: MappedLayer, record: LayersRecord) -> list[str]:
    return [
        _name(layer.name),
        layer.op_type,
        layer.precision,
        f"{layer.ms:.3f}",
        f"{100 * record.share([layer]):.1f} %",
        _nodes(layer),
    ]


def _nodes(layer: MappedLayer) -> str:
    """List the nodes, compute ops first."""
    pairs = list(zip(layer.nodes, layer.node_types, strict=True))
    computing = [name for name, op_type in pairs if op_type not in _ASIDE]
    aside = [name for name, op_type in pairs if op_type in _ASIDE]
    names = _names([*computing, *aside], most=min(len(computing), _MOST_NAMES) or 1)
    return names if layer.executes else f"({layer.how}) {names}" if names else "?"


def _left_out(record: LayersRecord, shown: Sequence[MappedLayer]) -> list[str]:
    more = len(record.layers) - len(shown)
    if not more:
        return []
    idle = sum(not layer.ms for layer in record.layers)
    which = f", {idle} of them without time of their own" if idle else ""
    return [f"and {_count(more, 'more layer')}{which}: --max_items 0 shows all"]


def _summary(record: LayersRecord) -> list[str]:
    serving = [layer for layer in record.layers if layer.how == BETWEEN]
    lines = [
        f"{100 * record.mapped_share:.1f} % of the time is mapped to nodes, "
        f"{100 * record.share(serving):.1f} % of it in layers that only help others"
    ]
    total = record.total_ms or 1.0
    spent = [
        f"{precision or 'unknown'} {ms:.3f} ms ({100 * ms / total:.1f} %)"
        for precision, ms in record.ms_by_precision.items()
        if ms
    ]
    lines.append("by precision: " + ", ".join(spent))
    conversions = record.conversions
    count = _count(len(conversions), "conversion")
    lines.append(f"{count} between types, {100 * record.share(conversions):.1f} % of the time")
    return [*map(printable, lines), *_folded(record)]


def _folded(record: LayersRecord) -> list[str]:
    if not record.unexecuted:
        return []
    count = _count(len(record.unexecuted), "node")
    return [printable(f"{count} folded away, run by no layer: {_names(record.unexecuted)}")]


def _count(count: int, what: str) -> str:
    """Format a number and its noun."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _names(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    shown = ", ".join(_name(name) for name in names[:most])
    more = len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown


def _name(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


_LONGEST_GROUP_NAME = 40
_MOST_OPS = 5
_GROUP_ASIDE = frozenset({"Constant", "DequantizeLinear", "Identity", "QuantizeLinear"})
_GROUP_HEADER = ("group", "ops", "layer", "ms", "share", "quantizable", "alike")
_GROUP_TIMES = (3, 4)


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
    columns = [
        n for n in range(len(_GROUP_HEADER)) if record.total_ms is not None or n not in _GROUP_TIMES
    ]
    rows = [_group_row(group) for group in shown]
    right = [place for place, column in enumerate(columns) if column not in (1, 2)]
    table = text_table(
        [_GROUP_HEADER[column] for column in columns],
        [[row[column] for column in columns] for row in rows],
        right=right,
    )
    more = len(ordered) - len(shown)
    left_out = [f"and {_count(more, 'more group')}: --max_items 0 shows all"] if more else []
    return "\n".join([*_group_head(record), "", table, *left_out, "", *_group_summary(record)])


def _group_head(record: GroupsRecord) -> list[str]:
    lines = engine_lines(record.engine) if record.engine is not None else []
    took = f", {record.total_ms:.3f} ms per run" if record.total_ms is not None else ""
    if record.engine is not None and record.total_ms is None:
        took = ", built but not timed"
    groups, nodes = _count_groups(len(record.groups), "group"), _count_groups(record.nodes, "node")
    told = f" by {record.source}" if record.engine is None else ""
    return [*lines, printable(f"{record.model}: {nodes} in {groups}{told}{took}")]


def _group_row(group: GroupRecord) -> list[str]:
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
    computing = [op_type for op_type in op_types if op_type not in _GROUP_ASIDE] or list(op_types)
    shown = " + ".join(_group_name(op_type) for op_type in computing[:_MOST_OPS])
    more = len(computing) - _MOST_OPS
    return f"{shown} + {more} more" if more > 0 else shown


def _layers(names: Sequence[str]) -> str:
    if not names:
        return "(none)"
    return _group_name(names[0]) + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _group_summary(record: GroupsRecord) -> list[str]:
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


def _count_groups(count: int, what: str) -> str:
    """Format a number and its noun."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _group_name(name: str) -> str:
    return name if len(name) <= _LONGEST_GROUP_NAME else f"{name[: _LONGEST_NAME - 1]}…"
