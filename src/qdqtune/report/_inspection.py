"""The output of `inspect`, and of `python -m qdqtune.autotune.region_inspect`."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence

from qdqtune.records._inputs import shape_text
from qdqtune.records._inspection import (
    Inspection,
    PatternRecord,
    RegionRecord,
    TensorAnswer,
    TensorPlace,
)
from qdqtune.records._printable import message, printable
from qdqtune.report._formatting import shortened, some, text_table

_LONGEST_NAME = 60
_MOST_NAMES = 3
_WIDEST_BAR = 40
_MOST_TREE_NAMES = 20
# Deeper regions are indented no further.
_DEEPEST_INDENT, _DEEPEST_TREE_INDENT = 12, 24

_names = functools.partial(some, most=_MOST_NAMES, longest=_LONGEST_NAME)


def inspection_text(record: Inspection, *, all_regions: bool, max_items: int) -> str:
    """Format a model as text: what can be quantized, region sizes, patterns, and the tree.

    Args:
        record: The model.
        all_regions: Whether the tree shows regions in which nothing can be quantized.
        max_items: The maximum number of patterns, and of regions, to show; 0 shows all.
    """
    parts = [_head(record), _quantizable(record)]
    if record.why is not None:
        return "\n\n".join([*parts[:1], answer_text(record.why, record)])
    parts += [
        _regions(record),
        histogram(record.leaf_sizes),
        _patterns(record, max_items),
        _tree(record, all_regions, max_items),
    ]
    return "\n\n".join(part for part in parts if part)


def in_float32_line(half_type: str, dialect: str) -> str:
    """Say that a half-precision model is converted to float32 before it is quantized."""
    return (
        f"The model is {half_type}, for which {dialect} has no integer kernels: tune and quantize "
        "convert it to float32 between its inputs and outputs, and so it is shown here."
    )


def answer_text(answer: TensorAnswer, record: Inspection) -> str:
    """Explain why a tensor can or can't be quantized, for each of its consumers."""
    kind = "constant" if answer.constant else "tensor"
    typed = f"{answer.dtype or 'of unknown type'} {shape_text(answer.dims)}"
    lines = [printable(f"{kind} {shortened(answer.tensor, _LONGEST_NAME)}: {typed}"), ""]
    rows = [_place_row("made by", answer.maker, record.dialect)]
    rows += [_place_row("read by", place, record.dialect) for place in answer.readers]
    lines.append(text_table(["", "node", "op", "point", "why"], rows))
    if not answer.readers:
        lines.append("Nothing reads it.")
    return "\n".join(lines)


def histogram(sizes: Sequence[int]) -> str:
    """Plot how many regions there are of each size, as bars."""
    counts: Counter[int] = Counter((size - 1).bit_length() for size in sizes if size)
    if not counts:
        return ""
    rows = []
    most = max(counts.values())
    for step in range(min(counts), max(counts) + 1):
        low, high = (1 << (step - 1)) + 1 if step else 1, 1 << step
        bar = "#" * -(-_WIDEST_BAR * counts[step] // most)
        rows.append([str(high) if low >= high else f"{low}-{high}", str(counts[step]), bar])
    return text_table(["ops in a leaf", "regions", ""], rows, right=(0, 1))


def _head(record: Inspection) -> str:
    taken = f"; {record.pairs} DequantizeLinear taken out first" if record.pairs else ""
    lines = [
        f"{record.model}: {record.nodes} ops after folding{taken}. Looked at for "
        f"{record.quant_type} in the {record.dialect} dialect."
    ]
    if record.converted_from:
        lines.append(in_float32_line(record.converted_from, record.dialect))
    return "\n".join(map(printable, lines))


def _quantizable(record: Inspection) -> str:
    can = sum(count for count, _ in record.quantizable.values())
    kinds = ", ".join(
        f"{op_type} {count}" + ("" if count == every else f" of {every}")
        for op_type, (count, every) in record.quantizable.items()
        if count
    )
    lines = [f"{can} ops can be quantized" + (f": {kinds}" if kinds else "")]
    if record.fused:
        lines.append(f"{record.fused} activations go with the op before them")
    for reason, nodes in record.left_float.items():
        lines.append(f"{len(nodes)} stay float: {reason} ({_names(nodes)})")
    return "\n".join(printable(line) for line in lines)


def _regions(record: Inspection) -> str:
    leaves = record.leaf_sizes
    composites = len(record.regions) - len(leaves)
    covered = 100 * record.covered / max(1, record.nodes)
    kinds = f"{len(leaves)} LEAF, {composites} COMPOSITE"
    average = sum(leaves) / max(1, len(leaves))
    return (
        f"{len(record.regions)} regions ({kinds}), {record.covered} of {record.nodes} ops in them "
        f"({covered:.1f} %); leaves have {min(leaves, default=0)} to {max(leaves, default=0)} "
        f"ops, {average:.1f} on average"
    )


def _patterns(record: Inspection, max_items: int) -> str:
    variants = sum(pattern.variants for pattern in record.patterns)
    count = len(record.patterns)
    title = (
        f"{count} patterns of leaves, types and shapes counted"
        if record.by_shape
        else f"{count} patterns of leaves; {variants} if types and shapes count (--by_shape)"
    )
    shown = record.patterns[: max_items or None]
    rows = [
        [str(p.number), str(p.regions), str(p.variants), str(p.points), _ops(p.op_types)]
        for p in shown
    ]
    header = ["pattern", "regions", "shapes", "points", "ops"]
    table = text_table(header, rows, right=(0, 1, 2, 3))
    left_out = record.patterns[len(shown) :]
    return "\n".join([title, table, *_and_more(left_out, "patterns")])


def _tree(record: Inspection, all_regions: bool, max_items: int) -> str:
    kept = [region for region in record.regions if all_regions or region.quantizable]
    shown = kept[: max_items or None]
    last = _last_siblings(shown)
    lines = []
    open_levels: dict[int, bool] = {}
    for region in shown:
        open_levels[region.level] = region.id not in last
        lines.append(_region_line(region, open_levels))
    dropped = len(record.regions) - len(kept)
    note = [f"and {dropped} in which nothing can be quantized: --all_regions"] if dropped else []
    return "\n".join(["regions", *lines, *_and_more(kept[len(shown) :], "regions"), *note])


def _last_siblings(regions: Sequence[RegionRecord]) -> set[int]:
    """Of the shown regions, return the last one below each parent."""
    return set({region.parent: region.id for region in regions}.values())


def _region_line(region: RegionRecord, open_levels: dict[int, bool]) -> str:
    above = range(min(region.level, _DEEPEST_INDENT))
    indent = "".join("│  " if open_levels.get(level) else "   " for level in above)
    branch = "├─" if open_levels[region.level] else "└─"
    border = f"{_names(region.inputs)} -> {_names(region.outputs)}"
    ops = _ops(region.op_types) if region.op_types else f"{len(region.children)} regions"
    pattern = f", pattern {region.pattern}" if region.pattern is not None else ""
    return printable(
        f"{indent}{branch} {region.id} {region.type} {region.size} ops{pattern}: {ops} [{border}]"
    )


def _place_row(what: str, place: TensorPlace, dialect: str) -> list[str]:
    if not place.node:
        return [what, "(the graph)", "", "no", place.reason]
    port = "output" if what == "made by" else "input"
    reasons = [place.reason] if place.reason else []
    if place.dialect_reason:
        reasons.append(f"stays float: {place.dialect_reason}")
    elif place.with_op:
        reasons.append(f"{dialect} quantizes it with the op")
    return [
        what,
        f"{shortened(place.node, _LONGEST_NAME)}, {port} {place.position}",
        place.op_type,
        "yes" if place.is_point else "no",
        "; ".join(reasons),
    ]


def _and_more(left_out: Sequence[RegionRecord] | Sequence[PatternRecord], what: str) -> list[str]:
    return [f"and {len(left_out)} more {what}: --max_items 0 shows all"] if left_out else []


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
    lines = [*_statistics(regions), ""]
    for region in shown:
        lines += _region(region, verbose)
    if left_out:
        lines.append(f"{left_out} regions without quantizable operations are left out")
    sizes = [region.size for region in regions if not region.children]
    return message("\n".join([*lines, "", "Size distribution:", histogram(sizes)]))


def _statistics(regions: Sequence[RegionRecord]) -> list[str]:
    outermost = [region for region in regions if region.parent is None]
    refined = sum(1 for region in outermost if region.children)
    leaves = [region.size for region in regions if not region.children]
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
    facts = [f"Direct nodes: {len(region.nodes)}"]
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
