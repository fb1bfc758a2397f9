"""A minimum cut by Dinic's algorithm: maximum flow, a layer of shortest paths at a time.

Networks of a few thousand nodes take a fraction of a second, which a library for sparse matrices
would not be worth its size for.
"""

from __future__ import annotations

SOURCE, SINK, _FIRST = 0, 1, 2
UNITS = 1 << 29
"""What all costs of a network together come to at most: it is counted in whole numbers."""
_FORBIDDEN = 2 * UNITS


class Network:
    """Costs between numbered nodes, to be divided into the source's side and the sink's.

    Args:
        scale: Whole units per millisecond.
    """

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._size = _FIRST
        self._costs: dict[tuple[int, int], int] = {}

    def node(self) -> int:
        """One more node."""
        self._size += 1
        return self._size - 1

    def connect(self, start: int, end: int, cost_ms: float) -> None:
        """Let it cost something to have one node on the source's side and the other not."""
        self._add(start, end, max(0, round(cost_ms * self._scale)))

    def forbid(self, start: int, end: int) -> None:
        """Let it cost more than everything else together."""
        self._add(start, end, _FORBIDDEN)

    def _add(self, start: int, end: int, units: int) -> None:
        known = self._costs.get((start, end), 0)
        self._costs[start, end] = min(known + units, _FORBIDDEN)

    def sources_side(self) -> set[int]:
        """The nodes that are on the source's side of every minimum cut."""
        flow = _Flow(self._size)
        for (start, end), units in self._costs.items():
            flow.add_arc(start, end, units)
        while SINK in (levels := flow.levels()):
            flow.block(levels)
        return set(levels)


class _Flow:
    """What can still flow through every arc; an arc and its reverse have neighbouring numbers."""

    def __init__(self, size: int) -> None:
        self._arcs: list[list[int]] = [[] for _ in range(size)]
        self._ends: list[int] = []
        self._left: list[int] = []

    def add_arc(self, start: int, end: int, units: int) -> None:
        """Let so much flow from one node to another, and nothing back yet."""
        for one, other, capacity in ((start, end, units), (end, start, 0)):
            self._arcs[one].append(len(self._ends))
            self._ends.append(other)
            self._left.append(capacity)

    def levels(self) -> dict[int, int]:
        """How many arcs the nodes that can be reached are away from the source."""
        found = {SOURCE: 0}
        waiting = [SOURCE]
        for node in waiting:  # which grows
            for arc in self._arcs[node]:
                end = self._ends[arc]
                if self._left[arc] and end not in found:
                    found[end] = found[node] + 1
                    waiting.append(end)
        return found

    def block(self, levels: dict[int, int]) -> None:
        """Fill shortest paths to the sink until there is none of that length."""
        ends, left = self._ends, self._left
        untried = [0] * len(self._arcs)
        path: list[int] = []
        node = SOURCE
        while True:
            if node == SINK:
                node = self._fill(path)
                continue
            arcs = self._arcs[node]
            while untried[node] < len(arcs):
                arc = arcs[untried[node]]
                if left[arc] and levels.get(ends[arc]) == levels[node] + 1:
                    path.append(arc)
                    node = ends[arc]
                    break
                untried[node] += 1
            else:
                if not path:
                    return
                node = ends[path.pop() ^ 1]
                untried[node] += 1

    def _fill(self, path: list[int]) -> int:
        """Send what a path takes along it, and return to the start of its first full arc."""
        units = min(self._left[arc] for arc in path)
        for arc in path:
            self._left[arc] -= units
            self._left[arc ^ 1] += units
        first = next(number for number, arc in enumerate(path) if not self._left[arc])
        node = self._ends[path[first] ^ 1]
        del path[first:]
        return node
