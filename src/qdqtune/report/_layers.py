"""The output of `inspect --layers` and `inspect --groups`."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from qdqtune.records._layers import BETWEEN, GroupRecord, GroupsRecord, LayersRecord, MappedLayer
from qdqtune.records._printable import printable
from qdqtune.report._bench import engine_lines
from qdqtune.report._formatting import Table, cell, counted, shortened, some, text_table

_LONGEST_NAME = 44
_MOST_NAMES = 3
_ASIDE = frozenset({"Constant", "DequantizeLinear", "Identity", "QuantizeLinear"})
_TOO_SHORT = (
    "No layer took long enough for the engine's clock.",
    "Give open dims larger sizes (--dim, --shapes), or look at --format json.",
)
_HEADER = ("layer", "kind", "precision", "ms", "share", "nodes of the model")
_TIMES = (3, 4)
_MOST_OPS = 5
_GROUP_HEADER = ("group", "ops", "layer", "ms", "share", "quantizable", "alike")
_GROUP_TIMES = (3, 4)
_GROUP_NUMBERS = (0, 3, 4, 5, 6)
_NOT_TIMED = "The model was built, not run: there are no times."

_names = functools.partial(some, most=_MOST_NAMES, longest=_LONGEST_NAME)


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
    table = Table(_HEADER, [_row(layer, record) for layer in shown]).only(columns)
    counts = (f"{name or 'unknown'} {n}" for name, n in record.layers_by_precision.items())
    lines = [
        printable(f"layers by precision: {', '.join(counts)}"),
        f"{counted(len(record.conversions), 'conversion')} between types",
        *_folded(record),
        _NOT_TIMED,
    ]
    more = _and_more(len(record.layers) - len(shown), "layer")
    return "\n".join([*_head(record), "", text_table(*table), *more, "", *lines])


def _and_more(count: int, what: str, which: str = "") -> list[str]:
    return (
        [f"and {counted(count, f'more {what}')}{which}: --max_items 0 shows all"] if count else []
    )


def _head(record: LayersRecord) -> list[str]:
    took = f"{record.total_ms:.3f} ms per run, from {counted(record.runs, 'run')}"
    took = took if record.is_timed else "not timed"
    nodes, layers = counted(record.nodes, "node"), counted(len(record.layers), "layer")
    return [
        *engine_lines(record.engine),
        printable(f"{record.model}: {nodes} run as {layers}, {took}"),
    ]


def _row(layer: MappedLayer, record: LayersRecord) -> list[str]:
    return [
        shortened(layer.name, _LONGEST_NAME),
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
    idle = sum(not layer.ms for layer in record.layers)
    which = f", {idle} of them without time of their own" if idle else ""
    return _and_more(len(record.layers) - len(shown), "layer", which)


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
    count = counted(len(conversions), "conversion")
    lines.append(f"{count} between types, {100 * record.share(conversions):.1f} % of the time")
    return [*map(printable, lines), *_folded(record)]


def _folded(record: LayersRecord) -> list[str]:
    if not record.unexecuted:
        return []
    count = counted(len(record.unexecuted), "node")
    return [printable(f"{count} folded away, run by no layer: {_names(record.unexecuted)}")]


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
    is_timed = record.total_ms is not None
    columns = [n for n in range(len(_GROUP_HEADER)) if is_timed or n not in _GROUP_TIMES]
    table = Table(_GROUP_HEADER, [_group_row(group) for group in shown], _GROUP_NUMBERS)
    more = _and_more(len(ordered) - len(shown), "group")
    shown_table = text_table(*table.only(columns))
    return "\n".join([*_group_head(record), "", shown_table, *more, "", *_group_summary(record)])


def _group_head(record: GroupsRecord) -> list[str]:
    lines = engine_lines(record.engine) if record.engine is not None else []
    took = f", {record.total_ms:.3f} ms per run" if record.total_ms is not None else ""
    if record.engine is not None and record.total_ms is None:
        took = ", built but not timed"
    groups, nodes = counted(len(record.groups), "group"), counted(record.nodes, "node")
    told = f" by {record.source}" if record.engine is None else ""
    return [*lines, printable(f"{record.model}: {nodes} in {groups}{told}{took}")]


def _group_row(group: GroupRecord) -> list[str]:
    return [
        str(group.number),
        _ops(group.op_types),
        _names(group.layers, most=1) or "(none)",
        cell(group.ms, ".3f"),
        "" if group.share is None else f"{100 * group.share:.1f} %",
        f"{group.quantizable} of {len(group.nodes)}" if group.quantizable else "-",
        str(group.alike),
    ]


def _ops(op_types: Sequence[str]) -> str:
    """Return the compute ops, or the others if there are none."""
    computing = [op_type for op_type in op_types if op_type not in _ASIDE] or list(op_types)
    shown = " + ".join(shortened(op_type, _LONGEST_NAME) for op_type in computing[:_MOST_OPS])
    more = len(computing) - _MOST_OPS
    return f"{shown} + {more} more" if more > 0 else shown


def _group_summary(record: GroupsRecord) -> list[str]:
    able = [group for group in record.groups if group.quantizable]
    spent = sum(group.share or 0.0 for group in able)
    time = f", {100 * spent:.1f} % of the time" if record.total_ms is not None else ""
    lines = [
        f"{counted(len(record.groups), 'group')}, {record.distinct} distinct; "
        f"{record.structural} by structure alone",
        f"{100 * record.covered:.1f} % of the nodes are in layers, {record.unmentioned} in none",
        f"{counted(len(able), 'group')} with ops that {record.dialect} can quantize{time}",
    ]
    return [printable(line) for line in lines]
