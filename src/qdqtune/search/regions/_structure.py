"""A region without names, and the canonical order of its nodes, by colour refinement."""

from __future__ import annotations

import hashlib
import heapq
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from qdqtune.graph._index import GraphIndex
from qdqtune.records._errors import AutotunerError
from qdqtune.search.regions._region import Region, walk
from qdqtune.search.regions._wiring import ABSENT, CONSTANT, Wiring

# Where an input comes from; the first two are vertices of the structure.
INSIDE, EXTERNAL, FIXED, MISSING = range(4)


class Slot(NamedTuple):
    """One input of a node.

    Attributes:
        kind: INSIDE (made in the region), EXTERNAL, FIXED (a constant) or MISSING.
        source: The vertex that makes it: a node, or an external tensor.
        output: Which output of that node.
        label: Type and shape; empty if made inside.
    """

    kind: int
    source: int = 0
    output: int = 0
    label: str = ""


class Output(NamedTuple):
    """One output of a node.

    Attributes:
        label: Type and shape; empty if it is omitted.
        leaves: Whether it is used outside the region.
    """

    label: str
    leaves: bool


class StructureNode(NamedTuple):
    """A node without names.

    Attributes:
        group: The region of the tree that it belongs to directly.
        token: Op and attributes.
        commutative: Whether its inputs can be swapped.
        slots: Its inputs.
        outputs: Its outputs.
    """

    group: int
    token: str
    commutative: bool
    slots: tuple[Slot, ...]
    outputs: tuple[Output, ...]


class Structure(NamedTuple):
    """A region without names. Regions with equal structures differ only in names.

    Its vertices are the nodes, then the tensors from outside.

    Attributes:
        nodes: The nodes, numbered in the order of the node list.
        parents: By region of the tree, depth first, its parent; the first is the region itself.
        externals: Number of tensors from outside.
    """

    nodes: tuple[StructureNode, ...]
    parents: tuple[int, ...]
    externals: int


@dataclass(frozen=True)
class Binding:
    """What the numbers of a structure refer to in one model.

    Attributes:
        positions: Position in the index, by node.
        externals: Tensor name, by external.
        regions: Region, by group.
    """

    positions: tuple[int, ...]
    externals: tuple[str, ...]
    regions: tuple[Region, ...]


def read_structure(region: Region, index: GraphIndex, wiring: Wiring) -> tuple[Structure, Binding]:
    """Read the structure of a region.

    Raises:
        AutotunerError: If it has nodes that the graph doesn't have, or a node twice.
    """
    regions = tuple(walk([region]))
    numbers: dict[Region | None, int] = {each: group for group, each in enumerate(regions)}
    group_of = {node: group for group, each in enumerate(regions) for node in each.nodes}
    if len(group_of) != sum(len(each.nodes) for each in regions):
        raise AutotunerError(
            f"Region {region.id} has a node that lies in two of its regions.",
            "Regions are disjoint: take the node out of one of them.",
        )
    positions = sorted(group_of)
    if positions and not (positions[0] >= 0 and positions[-1] < len(wiring.reads)):
        raise AutotunerError(
            f"Region {region.id} has nodes up to {positions[-1]}, the graph {len(wiring.reads)}.",
            "Is it a region of another model?",
        )
    local = {position: number for number, position in enumerate(positions)}
    externals: dict[str, int] = {}
    label = wiring.tensor_label
    nodes = []
    for position in positions:
        slots = []
        for producer, output, tensor in wiring.reads[position]:
            if producer in local:
                slots.append(Slot(INSIDE, local[producer], output))
            elif producer == ABSENT:
                slots.append(Slot(MISSING))
            elif producer == CONSTANT:
                slots.append(Slot(FIXED, label=label(index, tensor)))
            else:
                vertex = externals.setdefault(tensor, len(positions) + len(externals))
                slots.append(Slot(EXTERNAL, vertex, label=label(index, tensor)))
        outputs = tuple(
            Output(
                label(index, made.tensor),
                made.leaves or not all(reader in local for reader in made.readers),
            )
            if made.tensor
            else Output("", leaves=False)
            for made in wiring.makes[position]
        )
        token, commutative = wiring.tokens[position], wiring.commutative[position]
        nodes.append(StructureNode(group_of[position], token, commutative, tuple(slots), outputs))
    parents = (-1, *(numbers[each.parent] for each in regions[1:]))
    structure = Structure(tuple(nodes), parents, len(externals))
    return structure, Binding(tuple(positions), tuple(externals), regions)


# Maximum number of colours computed to break ties. Only structures with very many equal branches
# need more; their order then depends on the node list, which at worst results in a separate
# pattern.
_TIE_STEPS = 200_000

_MARK = 0x51


@lru_cache(1 << 16)
def _hash_of(text: str) -> int:
    """Hash a text, the same in every process; 0 for an empty one."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=7).digest()
    return int.from_bytes(digest, "little") if text else 0


class _ColorRefinement:
    """Colour refinement over the vertices of a structure.

    Args:
        structure: The structure.
        shapes: Whether types and shapes distinguish vertices.
    """

    def __init__(self, structure: Structure, *, shapes: bool) -> None:
        self._structure = structure
        self.size = len(structure.nodes) + structure.externals
        self.initial = [0] * self.size
        # By node, its inputs: kind, then vertex and output, or a colour.
        self._slots: list[list[tuple[int, int, int]]] = []
        # By vertex, its readers: node, input and output.
        self._uses: list[list[tuple[int, int, int]]] = [[] for _ in range(self.size)]
        for number, node in enumerate(structure.nodes):
            flags = [(out.leaves, _hash_of(out.label) if shapes else 0) for out in node.outputs]
            self.initial[number] = hash((_hash_of(node.token), *flags))
            slots = []
            for position, (kind, source, output, label) in enumerate(node.slots):
                colour = _hash_of(label) if shapes else 0
                slots.append((kind, source if kind <= EXTERNAL else colour, output))
                if kind <= EXTERNAL:
                    place = -1 if node.commutative else position
                    self._uses[source].append((number, place, output))
                if kind == EXTERNAL:
                    self.initial[source] = colour
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
        for number, slots in enumerate(self._slots):
            parts = [
                (kind, colours[source] if kind <= EXTERNAL else source, output)
                for kind, source, output in slots
            ]
            if self._structure.nodes[number].commutative:
                parts.sort()
            colours[number] = hash((colours[number], *parts))
        nodes = len(self._slots)
        for vertex in (*range(nodes, self.size), *range(nodes - 1, -1, -1)):
            seen = sorted(
                (colours[reader], place, out) for reader, place, out in self._uses[vertex]
            )
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


def distinct_colours(structure: Structure) -> list[int]:
    """Give every vertex a unique colour, independent of node order.

    Vertices that the structure can't distinguish are distinguished by types and shapes, then
    arbitrarily: one is marked and everything is refined again. The structural signature doesn't
    depend on shapes, since they only decide between equals.
    """
    plain = _ColorRefinement(structure, shapes=False)
    colours = plain.refine(plain.initial)
    if len(set(colours)) == plain.size:
        return colours
    shaped = _ColorRefinement(structure, shapes=True)
    shaped_colours = shaped.refine(shaped.initial)
    steps = _TIE_STEPS
    while (cell := _smallest_cell(colours)) and steps > 0:
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
    return colours


def _marked(colours: list[int], vertex: int) -> list[int]:
    marked = colours[:]
    marked[vertex] = hash((marked[vertex], _MARK))
    return marked


def _smallest_cell(colours: list[int]) -> list[int]:
    """Return the smallest set of vertices that share a colour; the lowest colour breaks ties."""
    cells: defaultdict[int, list[int]] = defaultdict(list)
    for vertex, colour in enumerate(colours):
        cells[colour].append(vertex)
    shared = [(len(cell), colour) for colour, cell in cells.items() if len(cell) > 1]
    return cells[min(shared)[1]] if shared else []


def node_order(structure: Structure, colours: list[int]) -> list[int]:
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
    return order
