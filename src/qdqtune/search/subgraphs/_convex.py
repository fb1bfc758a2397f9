"""Which sets of nodes can be cut out of a graph and run alone: no path leaves and comes back."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise

# A search for ways back gives up here, or at some times the size of the set; what an engine really
# fuses lies close together.
_MOST_VISITED = 500
_MOST_PER_NODE = 4


class Flow:
    """The ways through a graph.

    Args:
        predecessors: By node: the nodes that it reads.
        successors: By node: the nodes that read it.

    Attributes:
        rank: By node: its place in an order of execution that has every node near its readers,
            however far apart the graph lists them.
    """

    def __init__(
        self, predecessors: Sequence[Sequence[int]], successors: Sequence[Sequence[int]]
    ) -> None:
        self.predecessors = predecessors
        self.successors = successors
        self.rank = _ranks(predecessors, successors)

    def between(self, nodes: Collection[int]) -> set[int] | None:
        """The nodes that have to be taken in so that no path leaves the set and comes back.

        Returns:
            None if the set lies so far apart that it was not looked for.
        """
        last = max(self.rank[node] for node in nodes)
        most = max(_MOST_VISITED, _MOST_PER_NODE * len(nodes))
        outside: set[int] = set()
        waiting = deque(nodes)
        while waiting:
            for reader in self.successors[waiting.popleft()]:
                if reader in outside or reader in nodes or self.rank[reader] > last:
                    continue
                if len(outside) == most:
                    return None
                outside.add(reader)
                waiting.append(reader)
        found: set[int] = set()
        for node in sorted(outside, key=self.rank.__getitem__, reverse=True):
            if any(reader in nodes or reader in found for reader in self.successors[node]):
                found.add(node)
        return found

    def can_join(self, node: int, nodes: Collection[int]) -> bool:
        """Whether a convex set stays convex with a node that reads it or is read by it.

        Where a large set makes that hard to say, it is denied.
        """
        readers = self.successors[node]
        if readers and all(reader in nodes for reader in readers):
            return True
        makers = [maker for maker in self.predecessors[node] if self.predecessors[maker]]
        if makers and all(maker in nodes for maker in makers):
            return True
        return len(nodes) <= _MOST_VISITED and self.between({*nodes, node}) == set()

    def parts(self, nodes: Iterable[int]) -> Iterator[set[int]]:
        """Divide a set into convex ones; one that is convex already stays whole."""
        waiting = [set(nodes)]
        while waiting:
            part = waiting.pop()
            between = self.between(part) if len(part) > 1 else set()
            if between is None:
                waiting.extend(self._at_widest_gap(part))
            elif between:
                yield from self._by_returns(part, between)
            else:
                yield part

    def connected(self, nodes: Collection[int]) -> Iterator[set[int]]:
        """The subgraphs of a set that hang together by its own edges."""
        left = set(nodes)
        for start in sorted(left):
            if start not in left:
                continue
            left.remove(start)
            subgraph, waiting = {start}, [start]
            while waiting:
                node = waiting.pop()
                for near in (*self.predecessors[node], *self.successors[node]):
                    if near in left:
                        left.remove(near)
                        subgraph.add(near)
                        waiting.append(near)
            yield subgraph

    def _at_widest_gap(self, nodes: set[int]) -> tuple[set[int], set[int]]:
        ordered = sorted(nodes, key=self.rank.__getitem__)
        gaps = [self.rank[b] - self.rank[a] for a, b in pairwise(ordered)]
        cut = 1 + gaps.index(max(gaps))
        return set(ordered[:cut]), set(ordered[cut:])

    def _by_returns(self, nodes: set[int], between: set[int]) -> Iterator[set[int]]:
        """Divide by how often a path to a node can have left the set: that only ever grows."""
        returns: dict[int, int] = {}
        for node in sorted(nodes | between, key=self.rank.__getitem__):
            returns[node] = max(
                (
                    returns[maker] + (maker in nodes and node not in nodes)
                    for maker in self.predecessors[node]
                    if maker in returns
                ),
                default=0,
            )
        by_returns: dict[int, set[int]] = {}
        for node in nodes:
            by_returns.setdefault(returns[node], set()).add(node)
        for _, part in sorted(by_returns.items()):
            yield from self.connected(part)


def _ranks(predecessors: Sequence[Sequence[int]], successors: Sequence[Sequence[int]]) -> list[int]:
    """Every node right after what it reads, as deep as possible."""
    rank = [-1] * len(predecessors)
    count = 0
    for end in (node for node, readers in enumerate(successors) if not readers):
        stack = [(end, iter(predecessors[end]))]
        while stack:
            node, makers = stack[-1]
            for maker in makers:
                if rank[maker] < 0:
                    stack.append((maker, iter(predecessors[maker])))
                    break
            else:
                stack.pop()
                if rank[node] < 0:
                    rank[node] = count
                    count += 1
    return rank
