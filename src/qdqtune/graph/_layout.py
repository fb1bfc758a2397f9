"""Positions for drawing a graph: layers from top to bottom, few crossings, folded into columns.

Nodes are put on the layer behind their last predecessor, ordered by the mean position of their
neighbours, and moved to that mean as far as the order allows. A long graph is cut into columns
that are read like those of a newspaper.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from qdqtune.records._report import Point

_SWEEPS = 8
# A longer edge is drawn straight across: a bend on each layer would take more room than it clears.
_LONGEST_BENT = 60
# Width over height of a drawing; a row is less high than a node is wide.
_ASPECT = 1.7
_ROWS_PER_SLOT = 2.6
# How far from an even division a column may end, to cut fewer edges.
_SEARCHED = 0.12
_GUTTER = 0.7


@dataclass(frozen=True)
class Layout:
    """Positions of nodes, and the bends of edges, in slots to the right and rows down.

    Attributes:
        nodes: The middle of each node.
        bends: The points between the ends of each edge.
        width: Width of the drawing.
        height: Height of the drawing.
    """

    nodes: tuple[Point, ...]
    bends: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def lay_out(count: int, edges: Sequence[tuple[int, int]]) -> Layout:
    """Find positions for the nodes of an acyclic graph.

    Args:
        count: Number of nodes; they are numbered in topological order.
        edges: Pairs of source and target, the smaller number first.
    """
    if not count:
        return Layout((), (), 0.0, 0.0)
    drawing = _Drawing(_layers_of(count, edges))
    chains = [drawing.connect(*edge) for edge in edges]
    drawing.arrange()
    columns = _Columns(drawing, chains)
    nodes = tuple(columns.place(number) for number in range(count))
    bends = tuple(columns.bends(chain) for chain in chains)
    return Layout(nodes, bends, columns.width, columns.height)


def _layers_of(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return each node's layer: after all that it reads, and no earlier than what is needed."""
    layers, readers = [0] * count, defaultdict[int, list[int]](list)
    for source, target in sorted(edges):
        layers[target] = max(layers[target], layers[source] + 1)
        readers[source].append(target)
    reads = {target for _, target in edges}
    for number in range(count - 1, -1, -1):
        if readers[number] and number not in reads:
            layers[number] = min(layers[reader] for reader in readers[number]) - 1
    return layers


@dataclass
class _Drawing:
    """The nodes and bends on each layer, in order, with their positions."""

    layer: list[int]
    rows: list[list[int]] = field(default_factory=list)
    x: list[float] = field(default_factory=list)
    _above: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    _below: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.nodes = len(self.layer)
        self.rows = [[] for _ in range(max(self.layer) + 1)]
        for number, layer in enumerate(self.layer):
            self.rows[layer].append(number)

    def connect(self, source: int, target: int) -> list[int]:
        """Add an edge, with a bend on every layer that it passes, and return all its points."""
        chain = [source]
        if self.layer[target] - self.layer[source] <= _LONGEST_BENT:
            for layer in range(self.layer[source] + 1, self.layer[target]):
                chain.append(len(self.layer))
                self.rows[layer].append(len(self.layer))
                self.layer.append(layer)
        chain.append(target)
        for one, other in itertools.pairwise(chain):
            if self.layer[other] - self.layer[one] == 1:
                self._below[one].append(other)
                self._above[other].append(one)
        return chain

    def arrange(self) -> None:
        """Order each layer by the neighbours of its nodes, and move nodes towards these."""
        self.x = [0.0] * len(self.layer)
        for row in self.rows:
            for place, number in enumerate(row):
                self.x[number] = float(place)
        for sweep in range(_SWEEPS):
            is_down = sweep % 2 == 0
            near = self._above if is_down else self._below
            for row in self.rows if is_down else self.rows[::-1]:
                wanted = {number: self._mean(near[number], number) for number in row}
                row.sort(key=lambda number: wanted[number])
                self._move(row, [wanted[number] for number in row])
        for row in [*self.rows, *self.rows[::-1]]:
            both = [[*self._above[number], *self._below[number]] for number in row]
            self._move(row, [self._mean(*each) for each in zip(both, row, strict=True)])

    def _mean(self, near: Sequence[int], number: int) -> float:
        return sum(self.x[each] for each in near) / len(near) if near else self.x[number]

    def _move(self, row: Sequence[int], wanted: Sequence[float]) -> None:
        """Move nodes as near to where they should be as order and distance allow.

        The least squares are found by pooling adjacent violators.
        """
        start, starts = 0.0, []
        for number in row:
            width = self._width(number)
            starts.append(start + width / 2.0)
            start += width
        pools: list[tuple[float, int]] = []
        for place, offset in zip(wanted, starts, strict=True):
            pool = (place - offset, 1)
            while pools and pools[-1][0] / pools[-1][1] > pool[0] / pool[1]:
                before = pools.pop()
                pool = (before[0] + pool[0], before[1] + pool[1])
            pools.append(pool)
        shifts = [total / size for total, size in pools for _ in range(size)]
        for number, shift, offset in zip(row, shifts, starts, strict=True):
            self.x[number] = shift + offset

    def _width(self, number: int) -> float:
        return 1.0 if number < self.nodes else 0.25


class _Columns:
    """The layers of a drawing, cut into columns side by side."""

    def __init__(self, drawing: _Drawing, chains: Sequence[Sequence[int]]) -> None:
        self._drawing = drawing
        total = len(drawing.rows)
        spread = max(drawing.x) - min(drawing.x) + 1.0 + _GUTTER
        count = max(1, round(math.sqrt(_ASPECT * total / (_ROWS_PER_SLOT * spread))))
        self._starts = self._cut(count, chains)
        self._lefts: list[float] = []
        self.width = 0.0
        for first, end in zip(self._starts, [*self._starts[1:], total], strict=True):
            inside = [drawing.x[number] for row in drawing.rows[first:end] for number in row]
            self._lefts.append(self.width - min(inside) + 0.5)
            self.width += max(inside) - min(inside) + 1.0 + _GUTTER
        self.width -= _GUTTER
        ends = [*self._starts[1:], total]
        self.height = float(max(end - start for start, end in zip(self._starts, ends, strict=True)))

    def _cut(self, count: int, chains: Sequence[Sequence[int]]) -> list[int]:
        """Return the first layer of each column: near an even division, where few edges cross."""
        layer, total = self._drawing.layer, len(self._drawing.rows)
        crossing = [0] * (total + 1)
        for chain in chains:
            crossing[layer[chain[0]] + 1] += 1
            crossing[layer[chain[-1]] + 1] -= 1
        for each in range(1, total + 1):
            crossing[each] += crossing[each - 1]
        starts = [0]
        for column in range(1, count):
            even = column * total / count
            margin = _SEARCHED * total / count
            near = range(math.ceil(even - margin), math.floor(even + margin) + 1)
            possible = [each for each in near if starts[-1] < each < total]
            if possible:
                starts.append(min(possible, key=lambda each: (crossing[each], abs(each - even))))
        return starts

    def _column(self, number: int) -> int:
        layer = self._drawing.layer[number]
        return max(n for n, start in enumerate(self._starts) if start <= layer)

    def place(self, number: int) -> Point:
        """Return where a node or a bend is."""
        column, drawing = self._column(number), self._drawing
        row = drawing.layer[number] - self._starts[column] + 0.5
        return round(drawing.x[number] + self._lefts[column], 2), row

    def bends(self, chain: Sequence[int]) -> tuple[Point, ...]:
        """Return the points between the ends of an edge; between columns it runs in the gutter."""
        found = []
        for one, other in itertools.pairwise(chain):
            before, after = self._column(one), self._column(other)
            if before != after:
                (x, y), (next_x, next_y) = self.place(one), self.place(other)
                gutter = round(self._lefts[after] + self._least_x(after) - 0.5 - _GUTTER / 2, 2)
                low, high = y + 0.45, next_y - 0.45
                found += [(x, low), (gutter, low), (gutter, high), (next_x, high)]
            if other != chain[-1]:
                found.append(self.place(other))
        return tuple(found)

    def _least_x(self, column: int) -> float:
        ends = [*self._starts[1:], len(self._drawing.rows)]
        rows = self._drawing.rows[self._starts[column] : ends[column]]
        return min(self._drawing.x[number] for row in rows for number in row)
