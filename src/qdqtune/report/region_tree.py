"""The output of `python -m qdqtune.autotune.region_inspect`."""

from __future__ import annotations

from collections.abc import Sequence

from qdqtune.records.inspection import RegionRecord
from qdqtune.report.inspection import histogram
from qdqtune.report.tables import message

_MOST_NAMES = 20
# Deeper regions are indented no further.
_DEEPEST_INDENT = 24


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
        facts.append(f"Nodes: {_some(list(dict.fromkeys(region.op_types)))}")
    if verbose and region.nodes:
        facts.append(f"Node names: {_some(region.nodes)}")
    facts.append(f"Total nodes (recursive): {region.size}")
    if region.children:
        facts.append(f"Children: {len(region.children)}")
    for title, tensors in (("Inputs", region.inputs), ("Outputs", region.outputs)):
        named = f": {_some(tensors)}" if verbose and tensors else ""
        facts.append(f"{title}: {len(tensors)} tensors{named}")
    indent = "│    " * min(region.level, _DEEPEST_INDENT)
    lines = [f"{indent}├─ Region {region.id} (Level {region.level}, Type: {region.type})"]
    lines += [f"{indent}│  ├─ {fact}" for fact in facts[:-1]]
    return [*lines, f"{indent}│  └─ {facts[-1]}"]


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    shown = ", ".join(names[:_MOST_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown
