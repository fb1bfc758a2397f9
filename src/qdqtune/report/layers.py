"""The output of `inspect --layers`."""

from __future__ import annotations

from collections.abc import Sequence

from qdqtune.records.layers import BETWEEN, LayersRecord, MappedLayer
from qdqtune.report.bench import engine_lines
from qdqtune.report.tables import printable, text_table

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
