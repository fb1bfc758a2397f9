"""Layers that share nodes: which of them are one subgraph, and who gets what all of them claim."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from qdqtune.autotune.subgraphs.convex import Flow
from qdqtune.autotune.subgraphs.node_roles import COMPUTING, Role

MOST_NODES = 64
"""No layers become a larger subgraph than that, and no layer grows by more."""

# A node that more layers mention tells nothing of what belongs together.
_MOST_LAYERS = 4
_MOST_LEADS = 4


def settle(
    flow: Flow, roles: Sequence[Role], claims: Sequence[Collection[int]]
) -> list[tuple[set[int], list[int]]]:
    """Make subgraphs that share nothing of layers that may.

    Layers with a common op that computes are one subgraph, as long as each doesn't bring along ops
    of its own that lead a layer. Any other node goes where its neighbours are.

    Args:
        flow: The graph.
        roles: By node.
        claims: By layer: the nodes that it mentions.

    Returns:
        Subgraphs and the layers that each was made of. A layer that others took all nodes of has no
        nodes in its subgraph.
    """
    holders: dict[int, list[int]] = {}
    for layer, nodes in enumerate(claims):
        for node in nodes:
            holders.setdefault(node, []).append(layer)
    merged = _Merged(roles, claims)
    shared = [node for node, layers in holders.items() if len(layers) > 1]
    bridges = [n for n in shared if roles[n] in COMPUTING and len(holders[n]) <= _MOST_LAYERS]
    for node in sorted(bridges, key=lambda node: (roles[node] is not Role.LEAD, node)):
        first, *others = holders[node]
        for other in others:
            merged.join(first, other)
    wanted = {
        node: tuple(dict.fromkeys(merged.root(layer) for layer in layers))
        for node, layers in holders.items()
    }
    subgraphs: dict[int, tuple[set[int], list[int]]] = {}
    for layer in range(len(claims)):
        subgraphs.setdefault(merged.root(layer), (set(), []))[1].append(layer)
    for node, owner in _owners(flow, roles, wanted).items():
        subgraphs[owner][0].add(node)
    return list(subgraphs.values())


class _Merged:
    """Layers that became one, by the first of them."""

    def __init__(self, roles: Sequence[Role], claims: Sequence[Collection[int]]) -> None:
        self._first = list(range(len(claims)))
        self._nodes = [set(nodes) for nodes in claims]
        self._apart: set[tuple[int, int]] = set()
        self._leads = [{node for node in nodes if roles[node] is Role.LEAD} for nodes in claims]

    def root(self, layer: int) -> int:
        """The first of the layers that this one is one with."""
        while self._first[layer] != layer:
            self._first[layer] = self._first[self._first[layer]]
            layer = self._first[layer]
        return layer

    def join(self, one: int, other: int) -> None:
        """Make two layers one, unless that would glue together too much."""
        one, other = sorted((self.root(one), self.root(other)))
        if one == other or (one, other) in self._apart:
            return
        if not self._fit(one, other):
            self._apart.add((one, other))
            return
        self._first[other] = one
        for sets in (self._nodes, self._leads):
            small, large = sorted((sets[one], sets[other]), key=len)
            large |= small
            sets[one], sets[other] = large, set()

    def _fit(self, one: int, other: int) -> bool:
        a, b = self._leads[one], self._leads[other]
        if not (a <= b or b <= a) and (a.isdisjoint(b) or len(a | b) > _MOST_LEADS):
            return False
        small, large = sorted((self._nodes[one], self._nodes[other]), key=len)
        more = sum(node not in large for node in small)
        return more == 0 or len(large) + more <= MOST_NODES


def _owners(
    flow: Flow, roles: Sequence[Role], wanted: dict[int, tuple[int, ...]]
) -> dict[int, int]:
    """Who gets each node: the subgraph with most of its neighbours."""
    owner = {node: subgraphs[0] for node, subgraphs in wanted.items() if len(subgraphs) == 1}
    open_nodes = sorted(wanted.keys() - owner.keys(), key=flow.rank.__getitem__)
    for nodes in (open_nodes, open_nodes[::-1]):
        for node in nodes:
            if node not in owner:
                best = _nearest(flow, roles, node, wanted[node], owner)
                if best is not None:
                    owner[node] = best
    for node in open_nodes:
        owner.setdefault(node, wanted[node][0])
    return owner


def _nearest(
    flow: Flow,
    roles: Sequence[Role],
    node: int,
    subgraphs: Sequence[int],
    owner: dict[int, int],
) -> int | None:
    """The subgraph with most neighbours; of those alike, one that a constant's reader is in."""
    makers = [owner[maker] for maker in flow.predecessors[node] if maker in owner]
    readers = [owner[reader] for reader in flow.successors[node] if reader in owner]
    near = readers if roles[node] is Role.CONSTANT else makers
    best = max(
        subgraphs,
        key=lambda subgraph: (
            makers.count(subgraph) + readers.count(subgraph),
            near.count(subgraph),
            -subgraph,
        ),
    )
    return best if best in makers or best in readers else None
