"""The canonical order of a structure's nodes, operands and border tensors, by colour refinement."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from qdqtune.search.regions._structure import EXTERNAL, FIXED, INSIDE, Structure, StructureNode

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


#: A tensor of a structure: the node that makes it and which output, or (nodes + external, 0).
Tensor = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """A structure in canonical order. Equal structures, however listed, have equal layouts.

    Attributes:
        order: Nodes in canonical order: producers first, branches contiguous where possible.
        operands: By node (as listed): its input positions in canonical order.
        groups: By region of the tree, its border and its parts.
    """

    order: tuple[int, ...]
    operands: tuple[tuple[int, ...], ...]
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Group:
    """One region of the tree.

    Attributes:
        nodes: Its own nodes, in canonical order.
        children: Its child groups, by their first node.
        inputs: Tensors that it reads and doesn't produce, by first use.
        outputs: Tensors that are used outside, by producer.
        made_by: The child that produces each tensor that a child outputs.
    """

    nodes: list[int]
    children: list[int]
    inputs: dict[Tensor, int]
    outputs: dict[Tensor, int]
    made_by: dict[Tensor, int]


def lay_out(structure: Structure, hashes: Sequence[int]) -> Layout:
    """Put a structure in canonical order."""
    colours = distinct_colours(structure, hashes)
    order = _order(structure, colours)
    rank = [0] * len(order)
    for place, number in enumerate(order):
        rank[number] = place
    operands = tuple(_operands(node, rank, colours) for node in structure.nodes)
    groups = _groups(structure, order)
    _add_borders(structure, order, operands, groups)
    return Layout(order, operands, tuple(groups))


def tensor_of(structure: Structure, number: int, position: int) -> Tensor | None:
    """Return the tensor at an input of a node; None if it is a constant or omitted."""
    slot = structure.nodes[number].slots[position]
    if slot.kind == INSIDE:
        return slot.source, slot.output
    return (len(structure.nodes) + slot.source, 0) if slot.kind == EXTERNAL else None


def _order(structure: Structure, colours: list[int]) -> tuple[int, ...]:
    """Order producers first; among the ready nodes, continue the current branch."""
    size = len(structure.nodes)
    readers: list[list[int]] = [[] for _ in range(size)]
    missing = [0] * size
    for number, node in enumerate(structure.nodes):
        for source in {slot.source for slot in node.slots if slot.kind == INSIDE}:
            readers[source].append(number)
            missing[number] += 1
    ready = [(1, colours[number], number) for number in range(size) if not missing[number]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, _, number = heapq.heappop(ready)
        order.append(number)
        for reader in readers[number]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, (-len(order), colours[reader], reader))
    return tuple(order)


def _operands(node: StructureNode, rank: list[int], colours: list[int]) -> tuple[int, ...]:
    positions = range(len(node.slots))
    if not node.commutative:
        return tuple(positions)

    def key(position: int) -> tuple[int, int, int]:
        slot = node.slots[position]
        if slot.kind == INSIDE:
            return slot.kind, rank[slot.source], slot.output
        return slot.kind, colours[len(rank) + slot.source] if slot.kind == EXTERNAL else 0, 0

    return tuple(sorted(positions, key=key))


def _groups(structure: Structure, order: Sequence[int]) -> list[Group]:
    groups = [Group([], [], {}, {}, {}) for _ in structure.parents]
    first = [len(order)] * len(groups)
    for place, number in enumerate(order):
        group = structure.nodes[number].group
        groups[group].nodes.append(number)
        first[group] = min(first[group], place)
    for group in range(len(groups) - 1, 0, -1):
        parent = structure.parents[group]
        first[parent] = min(first[parent], first[group])
        groups[parent].children.append(group)
    for each in groups:
        each.children.sort(key=first.__getitem__)
    return groups


def _add_borders(
    structure: Structure,
    order: Sequence[int],
    operands: Sequence[tuple[int, ...]],
    groups: list[Group],
) -> None:
    """Compute inputs and outputs of every group; the cost is linear in the size of the result."""
    nodes, parents = structure.nodes, structure.parents
    depths = _depths(parents)
    readers: dict[Tensor, set[int]] = {}
    for number in order:
        for position in operands[number]:
            tensor = tensor_of(structure, number, position)
            if tensor is None:
                continue
            group = nodes[number].group
            made_in = nodes[tensor[0]].group if tensor[0] < len(nodes) else -1
            readers.setdefault(tensor, set()).add(group)
            common = _common(group, made_in, parents, depths)
            while group != common and tensor not in groups[group].inputs:
                groups[group].inputs[tensor] = len(groups[group].inputs)
                group = parents[group]
    for number in order:
        for output, (_, leaves) in enumerate(nodes[number].outputs):
            tensor = (number, output)
            for reader in (-1,) if leaves else readers.get(tensor, ()):
                group = nodes[number].group
                common = _common(group, reader, parents, depths)
                while group != common:
                    groups[group].outputs.setdefault(tensor, len(groups[group].outputs))
                    if parents[group] >= 0:
                        groups[parents[group]].made_by[tensor] = group
                    group = parents[group]


def _depths(parents: Sequence[int]) -> list[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths


def _common(a: int, b: int, parents: Sequence[int], depths: Sequence[int]) -> int:
    """Return the innermost group that contains both; -1 stands for the outside."""
    if b < 0:
        return -1
    while a != b:
        if depths[a] >= depths[b]:
            a = parents[a]
        else:
            b = parents[b]
    return a
