"""The output of `inspect`, and of `python -m qdqtune.autotune.region_inspect`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from qdqtune.records._inputs import shape_text
from qdqtune.records._layers import BETWEEN, GroupRecord, GroupsRecord, LayersRecord, MappedLayer
from qdqtune.records._printable import message
from qdqtune.records._results import (
    Inspection,
    NodeAnswer,
    RegionRecord,
    TensorAnswer,
    TensorPlace,
)
from qdqtune.report._bench import engine_lines
from qdqtune.report._formatting import Line, Table, cell, counted, page, shortened, some

_LONGEST_NAME = 60
_LONGEST_LAYER = 44
_MOST_NAMES = 3
_WIDEST_BAR = 40
_MOST_TREE_NAMES = 20
# Deeper regions are indented no further.
_DEEPEST_INDENT, _DEEPEST_TREE_INDENT = 12, 24


def _and_more(count: int, what: str, which: str = "") -> list[str]:
    more = counted(count, f"more {what}")
    return [f"and {more}{which}: --max_items 0 shows all"] if count else []


def inspection_text(record: Inspection, *, all_regions: bool, max_items: int) -> str:
    """Format a model as text: what can be quantized, region sizes, patterns, and the tree.

    Args:
        record: The model.
        all_regions: Whether the tree shows regions in which nothing can be quantized.
        max_items: The maximum number of patterns, and of regions, to show; 0 shows all.
    """
    counts = (
        (record.pairs, "DequantizeLinear taken out"),
        (record.dynamic, "dynamic ops made float"),
        (record.unfused, "Sums made Adds"),
    )
    done = ", ".join(f"{count} {what}" for count, what in counts if count)
    taken = f"; {done} first" if done else ""
    lines: list[Line] = [
        f"{record.model}: {record.nodes} ops after folding{taken}. Looked at for "
        f"{record.quant_type} in the {record.dialect} dialect."
    ]
    if record.converted_from:
        lines.append(in_float32_line(record.converted_from, record.dialect))
    if record.why is not None:
        is_node = isinstance(record.why, NodeAnswer)
        return page([*lines, "", *(_node_answer(record) if is_node else _answer(record))])
    lines += ["", *_quantizable(record), "", _region_counts(record), ""]
    if record.leaf_sizes:
        lines += [_histogram(record.leaf_sizes), ""]
    lines += [*_patterns(record, max_items), "", *_tree(record, all_regions, max_items)]
    return page(lines)


def in_float32_line(half_type: str, dialect: str) -> str:
    """Say that a half-precision model is converted to float32 before it is quantized."""
    return (
        f"The model is {half_type}, for which {dialect} has no integer kernels: tune and quantize "
        "convert it to float32 between its inputs and outputs, and so it is shown here."
    )


def _node_answer(record: Inspection) -> list[Line]:
    """Explain whether a node can be quantized, and where pairs can stand around it."""
    answer, dialect = record.why, record.dialect
    assert isinstance(answer, NodeAnswer)
    verdict = f"runs as part of the op before it in {dialect}, and is quantized with that"
    if answer.quantizable:
        verdict = f"can be {record.quant_type} in {dialect}; a tune's report says whether it paid"
    elif answer.reason:
        verdict = f"stays float: {answer.reason}"
    rows = [
        [what, shortened(each.tensor, _LONGEST_NAME), *row[3:]]
        for what, places in (("reads", answer.inputs), ("makes", answer.outputs))
        for each in places
        for row in [_place_row(what, replace(each.place, dialect_reason=""), dialect)]
    ]
    return [
        f"node {shortened(answer.node, _LONGEST_NAME)} ({answer.op_type}): {verdict}",
        "",
        Table(["", "tensor", "point", "why"], rows),
    ]


def _answer(record: Inspection) -> list[Line]:
    """Explain why a tensor can or can't be quantized, for each of its consumers."""
    answer, dialect = record.why, record.dialect
    assert isinstance(answer, TensorAnswer)
    kind = "constant" if answer.constant else "tensor"
    typed = f"{answer.dtype or 'of unknown type'} {shape_text(answer.dims)}"
    rows = [_place_row("made by", answer.maker, dialect)]
    rows += [_place_row("read by", place, dialect) for place in answer.readers]
    return [
        f"{kind} {shortened(answer.tensor, _LONGEST_NAME)}: {typed}",
        "",
        Table(["", "node", "op", "point", "why"], rows),
        *([] if answer.readers else ["Nothing reads it."]),
    ]


def _place_row(what: str, place: TensorPlace, dialect: str) -> list[str]:
    if not place.node:
        return [what, "(the graph)", "", "no", place.reason]
    port = "output" if what == "made by" else "input"
    reasons = [place.reason] if place.reason else []
    if place.dialect_reason:
        reasons.append(f"stays float: {place.dialect_reason}")
    elif place.with_op:
        reasons.append(f"{dialect} quantizes it with the op")
    if place.at_run_time is not None:
        why_not = f"not at run time: {place.why_not_at_run_time}"
        reasons.append("can be quantized at run time" if place.at_run_time else why_not)
    return [
        what,
        f"{shortened(place.node, _LONGEST_NAME)}, {port} {place.position}",
        place.op_type,
        "yes" if place.is_point else "no",
        "; ".join(reasons),
    ]


def _histogram(sizes: Sequence[int]) -> Table:
    """Plot how many regions there are of each size, as bars."""
    counts = Counter((size - 1).bit_length() for size in sizes)
    rows = []
    most = max(counts.values())
    for step in range(min(counts), max(counts) + 1):
        low, high = (1 << (step - 1)) + 1 if step else 1, 1 << step
        bar = "#" * -(-_WIDEST_BAR * counts[step] // most)
        rows.append([str(high) if low >= high else f"{low}-{high}", str(counts[step]), bar])
    return Table(["ops in a leaf", "regions", ""], rows, right=(0, 1))


def _names(names: Sequence[str]) -> str:
    return some(names, _MOST_NAMES, _LONGEST_NAME)


def _quantizable(record: Inspection) -> list[str]:
    can = sum(count for count, _ in record.quantizable.values())
    kinds = ", ".join(
        f"{op_type} {count}" + ("" if count == every else f" of {every}")
        for op_type, (count, every) in record.quantizable.items()
        if count
    )
    lines = [f"{can} ops can be quantized" + (f": {kinds}" if kinds else "")]
    if record.at_run_time:
        lines.append(f"{record.at_run_time} can be quantized at run time (--dynamic)")
    if record.fused:
        lines.append(f"{record.fused} activations go with the op before them")
    for reason, nodes in record.left_float.items():
        lines.append(f"{len(nodes)} stay float: {reason} ({_names(nodes)})")
    return lines


def _region_counts(record: Inspection) -> str:
    leaves = record.leaf_sizes
    composites = len(record.regions) - len(leaves)
    covered = 100 * record.covered / max(1, record.nodes)
    kinds = f"{len(leaves)} LEAF, {composites} COMPOSITE"
    average = sum(leaves) / max(1, len(leaves))
    return (
        f"{len(record.regions)} regions by {record.divided_by} ({kinds}), {record.covered} of "
        f"{record.nodes} ops in them ({covered:.1f} %); leaves have "
        f"{min(leaves, default=0)} to {max(leaves, default=0)} ops, {average:.1f} on average"
    )


def _patterns(record: Inspection, max_items: int) -> list[Line]:
    variants = sum(pattern.variants for pattern in record.patterns)
    count = len(record.patterns)
    title = (
        f"{count} patterns of leaves, types and shapes counted"
        if record.by_shape
        else f"{count} patterns of leaves; {variants} if types and shapes count (--by_shape)"
    )
    is_named = any(pattern.title for pattern in record.patterns)
    rows = [
        [str(p.number), str(p.regions), str(p.variants), str(p.points), _ops(p.op_types)]
        + ([shortened(p.title, _LONGEST_NAME)] if is_named else [])
        for p in record.patterns[: max_items or None]
    ]
    titles = ["pattern", "regions", "shapes", "points", "ops", *(["module"] if is_named else [])]
    table = Table(titles, rows, right=(0, 1, 2, 3))
    return [title, table, *_and_more(count - len(rows), "pattern")]


def _tree(record: Inspection, all_regions: bool, max_items: int) -> list[str]:
    kept = [region for region in record.regions if all_regions or region.quantizable]
    shown = kept[: max_items or None]
    last = set({region.parent: region.id for region in shown}.values())  # of each parent
    lines = ["regions"]
    open_levels: dict[int, bool] = {}
    for region in shown:
        open_levels[region.level] = region.id not in last
        lines.append(_region_line(region, open_levels))
    lines += _and_more(len(kept) - len(shown), "region")
    dropped = len(record.regions) - len(kept)
    if dropped:
        lines.append(f"and {dropped} in which nothing can be quantized: --all_regions")
    return lines


def _region_line(region: RegionRecord, open_levels: dict[int, bool]) -> str:
    above = range(min(region.level, _DEEPEST_INDENT))
    indent = "".join("│  " if open_levels.get(level) else "   " for level in above)
    branch = "├─" if open_levels[region.level] else "└─"
    border = f"{_names(region.inputs)} -> {_names(region.outputs)}"
    ops = _ops(region.op_types) if region.op_types else f"{len(region.children)} regions"
    pattern = f", pattern {region.pattern}" if region.pattern is not None else ""
    called = f"{region.id} {region.type}"
    if region.scope:
        called += f" {shortened(region.scope, _LONGEST_NAME)}"
    return f"{indent}{branch} {called} {region.size} ops{pattern}: {ops} [{border}]"


def _ops(op_types: Iterable[str]) -> str:
    counts = Counter(op_types)
    shown = [f"{op} x{n}" if n > 1 else op for op, n in counts.most_common()]
    more = len(shown) - 2 * _MOST_NAMES
    return ", ".join(shown[: 2 * _MOST_NAMES]) + (f" and {more} more types" if more > 0 else "")


def region_tree_text(
    regions: Sequence[RegionRecord], *, all_regions: bool, verbose: bool = False
) -> str:
    """Format the regions of a model: how they were found, their sizes, and the tree.

    Args:
        regions: All regions, each before its children.
        all_regions: Whether the tree shows regions in which nothing can be quantized.
        verbose: Whether to name nodes and tensors.
    """
    shown = [region for region in regions if all_regions or region.quantizable]
    left_out = len(regions) - len(shown)
    leaves = [region.size for region in regions if not region.children]
    lines = [*_statistics(regions, leaves), ""]
    for region in shown:
        lines += _region(region, verbose)
    if left_out:
        lines.append(f"{left_out} regions without quantizable operations are left out")
    sizes = [_histogram(leaves)] if leaves else [""]
    return message(page([*lines, "", "Size distribution:", *sizes]))


def _statistics(regions: Sequence[RegionRecord], leaves: Sequence[int]) -> list[str]:
    outermost = [region for region in regions if region.parent is None]
    refined = sum(1 for region in outermost if region.children)
    nodes = sum(region.size for region in outermost)
    covered = sum(len(region.nodes) for region in regions)
    coverage = f"{covered}/{nodes} nodes ({100 * covered / max(1, nodes):.1f}%)"
    kinds = f"{len(leaves)} LEAF, {len(regions) - len(leaves)} COMPOSITE"
    average = sum(leaves) / max(1, len(leaves))
    return [
        f"Phase 1 complete: {len(outermost)} regions, {coverage}",
        f"Phase 2 complete: refined {refined} regions, skipped {len(outermost) - refined}",
        f"Summary: {len(regions)} regions ({kinds}), {coverage}",
        f"LEAF region sizes: min={min(leaves, default=0)}, max={max(leaves, default=0)}, "
        f"avg={average:.1f}",
    ]


def _region(region: RegionRecord, verbose: bool) -> list[str]:
    facts = [f"Scope: {region.scope}"] if region.scope else []
    facts.append(f"Direct nodes: {len(region.nodes)}")
    if region.op_types:
        facts.append(f"Nodes: {some(list(dict.fromkeys(region.op_types)), _MOST_TREE_NAMES)}")
    if verbose and region.nodes:
        facts.append(f"Node names: {some(region.nodes, _MOST_TREE_NAMES)}")
    facts.append(f"Total nodes (recursive): {region.size}")
    if region.children:
        facts.append(f"Children: {len(region.children)}")
    for title, tensors in (("Inputs", region.inputs), ("Outputs", region.outputs)):
        named = f": {some(tensors, _MOST_TREE_NAMES)}" if verbose and tensors else ""
        facts.append(f"{title}: {len(tensors)} tensors{named}")
    indent = "│    " * min(region.level, _DEEPEST_TREE_INDENT)
    lines = [f"{indent}├─ Region {region.id} (Level {region.level}, Type: {region.type})"]
    lines += [f"{indent}│  ├─ {fact}" for fact in facts[:-1]]
    return [*lines, f"{indent}│  └─ {facts[-1]}"]


_ASIDE = frozenset({"Constant", "DequantizeLinear", "Identity", "QuantizeLinear"})
_TOO_SHORT = (
    "No layer took long enough for the engine's clock.",
    "Give open dims larger sizes (--dim, --shapes), or look at --format json.",
)
_NOT_TIMED = "The model was built, not run: there are no times."
_HEADER = ("layer", "kind", "precision", "ms", "share", "nodes of the model")
_GROUP_HEADER = ("group", "ops", "layer", "ms", "share", "quantizable", "alike")
_GROUP_NUMBERS = (0, 3, 4, 5, 6)
_TIMES = (3, 4)
_MOST_OPS = 5


def _timed_table(table: Table, is_timed: bool) -> Table:
    columns = range(len(table.header))
    return table.only([column for column in columns if is_timed or column not in _TIMES])


def layers_text(record: LayersRecord, *, by_time: bool, max_items: int) -> str:
    """Format a table of the layers, and their totals.

    Args:
        record: The layers.
        by_time: Whether the slowest layer comes first; otherwise they are in execution order.
        max_items: The maximum number of layers that take time to show; 0 shows all layers.
    """
    took = f"{record.total_ms:.3f} ms per run, from {counted(record.runs, 'run')}"
    took = took if record.is_timed else "not timed"
    nodes, layers = counted(record.nodes, "node"), counted(len(record.layers), "layer")
    head = [*engine_lines(record.engine), f"{record.model}: {nodes} run as {layers}, {took}", ""]
    if record.is_timed and not record.total_ms:
        return page([*head, *_TOO_SHORT])
    kept = [layer for layer in record.layers if layer.ms or not (max_items and record.is_timed)]
    if by_time and record.is_timed:
        kept.sort(key=lambda layer: -layer.ms)
    rows = [_layer_row(layer, record) for layer in kept[: max_items or None]]
    table = _timed_table(Table(_HEADER, rows, _TIMES), record.is_timed)
    idle = sum(not layer.ms for layer in record.layers) if record.is_timed else 0
    which = f", {idle} of them without time of their own" if idle else ""
    more = _and_more(len(record.layers) - len(rows), "layer", which)
    return page([*head, table, *more, "", *_totals(record)])


def _layer_row(layer: MappedLayer, record: LayersRecord) -> list[str]:
    return [
        shortened(layer.name, _LONGEST_LAYER),
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
    names = some([*computing, *aside], min(len(computing), _MOST_NAMES) or 1, _LONGEST_LAYER)
    return names if layer.executes else f"({layer.how}) {names}" if names else "?"


def _totals(record: LayersRecord) -> list[str]:
    conversions = f"{counted(len(record.conversions), 'conversion')} between types"
    if record.is_timed:
        serving = [layer for layer in record.layers if layer.how == BETWEEN]
        spent = (
            f"{precision or 'unknown'} {ms:.3f} ms ({100 * ms / record.total_ms:.1f} %)"
            for precision, ms in record.ms_by_precision.items()
            if ms
        )
        lines = [
            f"{100 * record.mapped_share:.1f} % of the time is mapped to nodes, "
            f"{100 * record.share(serving):.1f} % of it in layers that only help others",
            f"by precision: {', '.join(spent)}",
            f"{conversions}, {100 * record.share(record.conversions):.1f} % of the time",
        ]
    else:
        counts = (f"{name or 'unknown'} {n}" for name, n in record.layers_by_precision.items())
        lines = [f"layers by precision: {', '.join(counts)}", conversions]
    if record.unexecuted:
        count = counted(len(record.unexecuted), "node")
        names = some(record.unexecuted, _MOST_NAMES, _LONGEST_LAYER)
        lines.append(f"{count} folded away, run by no layer: {names}")
    return lines if record.is_timed else [*lines, _NOT_TIMED]


def groups_text(record: GroupsRecord, *, by_time: bool, max_items: int) -> str:
    """Format a table of the groups, and their totals.

    Args:
        record: The groups.
        by_time: Whether the slowest group comes first; otherwise they are in graph order.
        max_items: The maximum number to show; 0 shows all.
    """
    is_timed = record.total_ms is not None
    took = f", {record.total_ms:.3f} ms per run" if is_timed else ""
    if record.engine is not None and not is_timed:
        took = ", built but not timed"
    groups, nodes = counted(len(record.groups), "group"), counted(record.nodes, "node")
    told = f" by {record.source}" if record.engine is None else ""
    ordered = list(record.groups)
    if by_time:
        ordered.sort(key=lambda group: -(group.ms or 0.0))
    rows = [_group_row(group) for group in ordered[: max_items or None]]
    able = [group for group in record.groups if group.quantizable]
    spent = sum(group.share or 0.0 for group in able)
    time = f", {100 * spent:.1f} % of the time" if is_timed else ""
    return page(
        [
            *(engine_lines(record.engine) if record.engine is not None else []),
            f"{record.model}: {nodes} in {groups}{told}{took}",
            "",
            _timed_table(Table(_GROUP_HEADER, rows, _GROUP_NUMBERS), is_timed),
            *_and_more(len(ordered) - len(rows), "group"),
            "",
            f"{groups}, {record.distinct} distinct; {record.structural} by structure alone",
            f"{100 * record.covered:.1f} % of the nodes are in layers, {record.unmentioned} in "
            "none",
            f"{counted(len(able), 'group')} with ops that {record.dialect} can quantize{time}",
        ]
    )


def _group_row(group: GroupRecord) -> list[str]:
    # The compute ops, or the others if there are none.
    computing = [op for op in group.op_types if op not in _ASIDE] or group.op_types
    ops = " + ".join(shortened(op, _LONGEST_LAYER) for op in computing[:_MOST_OPS])
    more = len(computing) - _MOST_OPS
    return [
        str(group.number),
        f"{ops} + {more} more" if more > 0 else ops,
        some(group.layers, 1, _LONGEST_LAYER) or "(none)",
        cell(group.ms, ".3f"),
        "" if group.share is None else f"{100 * group.share:.1f} %",
        f"{group.quantizable} of {len(group.nodes)}" if group.quantizable else "-",
        str(group.alike),
    ]
