"""Distinguish the nodes of a structure by their ops and wiring (colour refinement).

Colours are hashes of tuples of integers, which Python computes the same way in every process. A
hash collision costs a tie-break, never a wrong answer: a signature spells out the whole structure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from qdqtune.autotune.regions.structure import EXTERNAL, FIXED, INSIDE, Structure

# Maximum number of colours computed to break ties. Only structures with very many equal branches
# need more; their order then depends on the node list, which at worst results in a separate
# pattern.
_TIE_STEPS = 200_000

_MARK = 0x51


class ColorRefinement:
    """Colour refinement over the nodes and external tensors of a structure.

    Vertices are the nodes, then the externals.

    Args:
        structure: The structure.
        hashes: Hash by label.
        shapes: Whether types and shapes distinguish vertices.
    """

    def __init__(self, structure: Structure, hashes: Sequence[int], *, shapes: bool) -> None:
        self._structure = structure
        self.nodes = len(structure.nodes)
        self.size = self.nodes + structure.externals
        self.initial = [0] * self.size
        self._slots: list[list[tuple[int, int, int]]] = []
        self._uses: list[list[tuple[int, int, int]]] = [[] for _ in range(self.size)]
        for number, node in enumerate(structure.nodes):
            flags = [
                (output.leaves, hashes[output.label] if shapes and output.label >= 0 else 0)
                for output in node.outputs
            ]
            self.initial[number] = hash((hashes[node.token], *flags))
            slots = []
            for position, slot in enumerate(node.slots):
                label = hashes[slot.label] if shapes else 0
                if slot.kind in (INSIDE, EXTERNAL):
                    source = slot.source + (self.nodes if slot.kind == EXTERNAL else 0)
                    slots.append((slot.kind, source, slot.output))
                    place = -1 if node.commutative else position
                    self._uses[source].append((number, place, slot.output))
                    if slot.kind == EXTERNAL:
                        self.initial[source] = label
                else:
                    slots.append((slot.kind, label if slot.kind == FIXED else 0, 0))
            self._slots.append(slots)

    def refine(self, colours: list[int]) -> list[int]:
        """Refine colours until neighbours no longer distinguish any vertices."""
        count = len(set(colours))
        while count < self.size:
            colours = self._swept(colours)
            before, count = count, len(set(colours))
            if count == before:
                break
        return colours

    def _swept(self, colours: list[int]) -> list[int]:
        """Sweep down the graph and up once: a chain of any length converges in a few sweeps."""
        colours = colours[:]
        for number, (node, slots) in enumerate(
            zip(self._structure.nodes, self._slots, strict=True)
        ):
            parts = [
                (kind, source if kind not in (INSIDE, EXTERNAL) else colours[source], output)
                for kind, source, output in slots
            ]
            if node.commutative:
                parts.sort()
            colours[number] = hash((colours[number], *parts))
        for vertex in (*range(self.nodes, self.size), *range(self.nodes - 1, -1, -1)):
            seen = [
                (colours[reader], place, output) for reader, place, output in self._uses[vertex]
            ]
            seen.sort()
            colours[vertex] = hash((colours[vertex], *seen))
        if len(self._structure.parents) > 1:
            self._mix_groups(colours)
        return colours

    def _mix_groups(self, colours: list[int]) -> None:
        """Distinguish nodes by their region, and regions by their nodes."""
        parents = self._structure.parents
        members: list[list[int]] = [[] for _ in parents]
        for node, colour in zip(self._structure.nodes, colours, strict=False):
            members[node.group].append(colour)
        inner = [0] * len(parents)
        for group in range(len(parents) - 1, -1, -1):
            inner[group] = hash(tuple(sorted(members[group])))
            if group:
                members[parents[group]].append(inner[group])
        for group in range(1, len(parents)):
            inner[group] = hash((inner[group], inner[parents[group]]))
        for number, node in enumerate(self._structure.nodes):
            colours[number] = hash((colours[number], inner[node.group]))


def distinct_colours(structure: Structure, hashes: Sequence[int]) -> list[int]:
    """Give every node and external a unique colour, independent of node order.

    Vertices that the structure can't distinguish are distinguished by types and shapes, then
    arbitrarily: one is marked and everything is refined again. The structural signature doesn't
    depend on shapes, since they only decide between equals.
    """
    plain = ColorRefinement(structure, hashes, shapes=False)
    colours = plain.refine(plain.initial)
    if len(set(colours)) == plain.size:
        return colours
    shaped = ColorRefinement(structure, hashes, shapes=True)
    shaped_colours = shaped.refine(shaped.initial)
    steps = _TIE_STEPS
    while True:
        cell = _smallest_cell(colours)
        if not cell or steps <= 0:
            return colours
        tries = cell if 2 * len(cell) * plain.size <= steps else cell[:1]
        steps -= 2 * len(tries) * plain.size
        marked = [
            (
                plain.refine(_marked(colours, vertex)),
                shaped.refine(_marked(shaped_colours, vertex)),
            )
            for vertex in tries
        ]
        colours, shaped_colours = min(marked, key=lambda pair: (sorted(pair[0]), sorted(pair[1])))


def _marked(colours: list[int], vertex: int) -> list[int]:
    marked = colours[:]
    marked[vertex] = hash((marked[vertex], _MARK))
    return marked


def _smallest_cell(colours: list[int]) -> list[int]:
    """Return the smallest set of vertices that share a colour; the lowest colour breaks ties."""
    counts = Counter(colours)
    shared = [(count, colour) for colour, count in counts.items() if count > 1]
    if not shared:
        return []
    _, wanted = min(shared)
    return [vertex for vertex, colour in enumerate(colours) if colour == wanted]
