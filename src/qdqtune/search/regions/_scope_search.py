"""Find regions that are the modules of a model, by the scopes that exporters record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qdqtune.config import SCOPE, STRUCTURE
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import POINTWISE_OPS, is_op
from qdqtune.records._precision import AUTO
from qdqtune.search.regions._region import Region
from qdqtune.search.regions._region_search import (
    HEAVY_OPS,
    CombinedRegionSearch,
    Part,
    RegionSearchBase,
)
from qdqtune.search.regions._scopes import (
    ANCHOR_OPS,
    Scope,
    carry_scopes,
    scope_of,
    shared_length,
)
from qdqtune.search.regions._wiring import wiring_of

# Ops of a module that become one region; those of a larger one are divided by structure.
_LARGEST_MODULE = 32
# Pointwise ops that an engine may fuse with what is before them: a GELU by tanh has 8.
_LARGEST_EPILOGUE = 8
# Ops that are no region of their own, unless one of them is an anchor.
_LARGEST_SMALL = 3


@dataclass
class _Cluster:
    """Nodes of one module.

    Attributes:
        scope: The module.
        nodes: Their positions.
        first: What decides between clusters; it doesn't depend on the order of the node list.
        is_heavy: Whether one of them is a heavy op.
        has_anchor: Whether one of them is what a module is about.
    """

    scope: Scope
    nodes: list[int]
    first: tuple[int, str]
    is_heavy: bool
    has_anchor: bool


class _Partition:
    """A partition of a graph into connected clusters, each of one scope, that can be merged.

    Args:
        index: The graph.

    Attributes:
        clusters: The clusters by one of their nodes, their key.
    """

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self._wiring = wiring_of(index)
        self._of = list(range(len(index.nodes)))  # another node of the cluster, closer to its key
        self._rank: list[tuple[int, str]] = []
        self.clusters: dict[int, _Cluster] = {}
        for number, (node, before) in enumerate(
            zip(index.nodes, self._wiring.predecessors, strict=True)
        ):
            depth = 1 + max((self._rank[each][0] for each in before), default=-1)
            rank = (depth, node.name or "")
            self._rank.append(rank)
            is_heavy, has_anchor = is_op(node, *HEAVY_OPS), is_op(node, *ANCHOR_OPS)
            self.clusters[number] = _Cluster(scope_of(node), [number], rank, is_heavy, has_anchor)
        self._connect([cluster.scope for cluster in self.clusters.values()])

    def _connect(self, scopes: Sequence[Scope]) -> None:
        for node, behind in enumerate(self._wiring.successors):
            # What another module reads, too, doesn't connect: data would leave and come back.
            if {scopes[each] for each in behind} == {scopes[node]}:
                for each in behind:
                    self._merge(each, node)

    def merge_small(self) -> None:
        """Merge epilogues into what they follow, and small clusters into a neighbour."""
        for node in sorted(self.clusters, key=lambda key: self.clusters[key].first):
            key = self._key(node)
            cluster = self.clusters[key]
            if (near := self._followed(key, cluster)) is None:
                near = self._neighbour(key, cluster)
            if near is not None:
                self._merge(key, near)

    def _key(self, node: int) -> int:
        """Return the key of the cluster that a node is in."""
        while (closer := self._of[node]) != node:
            self._of[node] = self._of[closer]
            node = closer
        return node

    def _merge(self, one: int, into: int) -> None:
        one, into = self._key(one), self._key(into)
        if one == into:
            return
        scope = self.clusters[into].scope
        if len(self.clusters[one].nodes) > len(self.clusters[into].nodes):
            one, into = into, one
        less, more = self.clusters.pop(one), self.clusters[into]
        self._of[one] = into
        more.scope, more.first = scope, min(more.first, less.first)
        more.nodes += less.nodes
        more.is_heavy |= less.is_heavy
        more.has_anchor |= less.has_anchor

    def _followed(self, key: int, cluster: _Cluster) -> int | None:
        """Return the heavy op's cluster of which this one is the epilogue."""
        if len(cluster.nodes) > _LARGEST_EPILOGUE or not all(
            is_op(self._index.nodes[node], *POINTWISE_OPS) for node in cluster.nodes
        ):
            return None
        before = {each for node in cluster.nodes for each in self._wiring.predecessors[node]}
        own = [
            each
            for each in before.difference(cluster.nodes)
            if self.clusters[self._key(each)].is_heavy
            and {self._key(reader) for reader in self._wiring.successors[each]} == {key}
        ]
        last = max(own, key=self._rank.__getitem__, default=None)
        return None if last is None else self._key(last)

    def _neighbour(self, key: int, cluster: _Cluster) -> int | None:
        """Return the nearest cluster, if this one is too small; the one before it if in doubt."""
        if len(cluster.nodes) > _LARGEST_SMALL or cluster.has_anchor:
            return None
        sides = (self._wiring.predecessors, self._wiring.successors)
        before, behind = (
            {self._key(each) for node in cluster.nodes for each in side[node]} - {key}
            for side in sides
        )
        if not before:
            return None

        def nearness(near: int) -> tuple[int, bool, tuple[int, str]]:
            other = self.clusters[near]
            return shared_length([cluster.scope, other.scope]), near in before, other.first

        return max(before | behind, key=nearness)


class ScopeRegionSearch(RegionSearchBase):
    """Finds the modules of a model: composites that contain others, and leaves.

    A leaf is a module without modules inside, or connected ops of a module that are in none inside
    it. Activations and sums are in the leaf of the op that they follow, and a few other ops in that
    of a neighbour. What is larger than a module usually is, such as a model without scopes, is
    divided by structure.

    Args:
        graph: The graph.
        maximum_sequence_region_size: Maximum number of nodes in a sequence inside a large module.

    Raises:
        UsageError: If the size is not at least 1.
    """

    def __init__(self, graph: GraphIndex, maximum_sequence_region_size: int = 10) -> None:
        super().__init__(graph, None, maximum_sequence_region_size, _LARGEST_MODULE + 1)

    def search_regions(self) -> list[Region]:
        """Find the regions; their leaves are disjoint and cover the graph."""
        partition = _Partition(self.graph)
        partition.merge_small()
        found: defaultdict[Scope, list[Part]] = defaultdict(list)
        for cluster in partition.clusters.values():
            found[cluster.scope].append(Part(sorted(cluster.nodes), converges=True))
        for length in range(max(map(len, found), default=0), 0, -1):
            for scope in [scope for scope in found if len(scope) == length]:
                found[scope[:-1]].append(_module(found.pop(scope)))
        return self._build(_in_order(found[()])) if found[()] else []


TorchRegionBuilder = ScopeRegionSearch
"""Another tool's name for a region search by scope."""


def _module(parts: Sequence[Part]) -> Part:
    """Return one part that consists of several; a module in which there is only one is that one."""
    if len(parts) == 1:
        return parts[0]
    nodes = sorted(node for part in parts for node in part.nodes)
    return Part(nodes, converges=True, parts=_in_order(parts))


def _in_order(parts: Iterable[Part]) -> tuple[Part, ...]:
    return tuple(sorted(parts, key=lambda part: part.nodes[0]))


def division_of(index: GraphIndex, regions: str = AUTO) -> str:
    """Return what divides a graph into regions: for auto scopes, if they tell modules apart."""
    if regions != AUTO:
        return regions
    return SCOPE if carry_scopes(index.nodes) else STRUCTURE


def find_regions(
    index: GraphIndex, regions: str = AUTO, maximum_sequence_region_size: int = 10
) -> list[Region]:
    """Find the regions of a graph.

    Args:
        index: The graph.
        regions: What divides it: one of `config.REGIONS`.
        maximum_sequence_region_size: Maximum number of nodes in a sequence inside a composite.
    """
    if division_of(index, regions) == SCOPE:
        return ScopeRegionSearch(index, maximum_sequence_region_size).search_regions()
    return CombinedRegionSearch(index, maximum_sequence_region_size).search_regions()
