"""Where an engine's time goes before and after: layers of two models, matched by their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import QDQ_OPS
from qdqtune.records._layers import BETWEEN, MappedLayer
from qdqtune.records._report import COMPUTES, CONVERTS, REARRANGES, LayerChange


def layer_changes(
    index: GraphIndex, before: Sequence[MappedLayer], after: Sequence[MappedLayer] | None
) -> tuple[LayerChange, ...]:
    """Match the layers of two models.

    Nodes that one layer executes in either model are one row, so that both columns are about the
    same work. Layers that only convert or move values have rows of their own.

    Args:
        index: The float model.
        before: The layers of the float model.
        after: Those of the result, whose nodes have the same names; None if there is none.

    Returns:
        The rows, largest gain first.
    """
    sets = _DisjointSets(index.node)
    for layer in (*before, *(after or ())):
        if _kind(layer) == COMPUTES:
            sets.join(_own(index, layer))
    found: dict[tuple[str, str], list[float]] = {}
    precisions: dict[tuple[str, str], dict[str, float]] = {}
    serves: dict[tuple[str, str], tuple[str, ...]] = {}
    for column, layers in enumerate((before, after or ())):
        for layer in layers:
            kind, own = _kind(layer), _own(index, layer)
            key = (kind, sets.root(own[0]) if own else layer.name)
            if not own and kind == COMPUTES:
                key = (kind, "")
            found.setdefault(key, [0.0, 0.0])[column] += layer.ms
            serves.setdefault(key, own)
            if column:
                spent = precisions.setdefault(key, {})
                spent[layer.precision] = spent.get(layer.precision, 0.0) + layer.ms
    members = sets.members()
    rows = []
    for key, (before_ms, after_ms) in found.items():
        kind, root = key
        nodes = tuple(members.get(root, ())) if kind == COMPUTES else serves[key]
        spent = precisions.get(key, {})
        rows.append(
            LayerChange(
                nodes,
                tuple(index.node[name].op_type for name in nodes),
                kind,
                before_ms,
                None if after is None else after_ms,
                max(spent, key=lambda each: spent[each]) if spent else "",
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.gain_ms, -row.before_ms, row.nodes)))


def layer_numbers(rows: Sequence[LayerChange]) -> dict[str, int]:
    """Return the row in which each node computes; conversions around it are others."""
    return {
        name: number
        for number, row in enumerate(rows)
        if row.kind == COMPUTES
        for name in row.nodes
    }


def _kind(layer: MappedLayer) -> str:
    if layer.converts or (layer.node_types and QDQ_OPS.issuperset(layer.node_types)):
        return CONVERTS
    return REARRANGES if layer.how == BETWEEN else COMPUTES


def _own(index: GraphIndex, layer: MappedLayer) -> tuple[str, ...]:
    """Return the nodes of a layer that the float model has, too."""
    return tuple(name for name in layer.nodes if name in index.node)


class _DisjointSets:
    """Names that belong together."""

    def __init__(self, names: Iterable[str]) -> None:
        self._parent = {name: name for name in names}

    def root(self, name: str) -> str:
        while (parent := self._parent[name]) != name:
            self._parent[name] = self._parent[parent]
            name = parent
        return name

    def join(self, names: Sequence[str]) -> None:
        for name in names[1:]:
            self._parent[self.root(name)] = self.root(names[0])

    def members(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self._parent:
            found.setdefault(self.root(name), []).append(name)
        return found
