"""The structure of a region, without names, in the order of the node list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from qdqtune.graph._index import GraphIndex
from qdqtune.search._errors import AutotunerError
from qdqtune.search.regions._region import Region, walk
from qdqtune.search.regions._wiring import ABSENT, CONSTANT, Wiring

INSIDE, EXTERNAL, FIXED, MISSING = range(4)


class Slot(NamedTuple):
    """One input of a node.

    Attributes:
        kind: INSIDE (made in the region), EXTERNAL, FIXED (a constant) or MISSING.
        source: Number of the node that makes it, or of the external tensor.
        output: Which output of that node.
        label: Number of the text for type and shape; not used if made inside.
    """

    kind: int
    source: int
    output: int
    label: int


class Output(NamedTuple):
    """One output of a node.

    Attributes:
        label: Number of the text for type and shape.
        leaves: Whether it is used outside the region.
    """

    label: int
    leaves: bool


class StructureNode(NamedTuple):
    """A node without names.

    Attributes:
        group: The region of the tree that it belongs to directly.
        token: Number of the text for op and attributes.
        commutative: Whether its inputs can be swapped.
        slots: Its inputs.
        outputs: Its outputs.
    """

    group: int
    token: int
    commutative: bool
    slots: tuple[Slot, ...]
    outputs: tuple[Output, ...]


class Structure(NamedTuple):
    """A region without names. Regions with equal structures differ only in names.

    Attributes:
        nodes: The nodes, numbered in the order of the node list.
        parents: By region of the tree, its parent; the first is the region itself.
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
    regions, parents = _tree(region)
    group_of = {node: group for group, each in enumerate(regions) for node in each.nodes}
    if len(regions) > 1 and len(group_of) != sum(len(each.nodes) for each in regions):
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
                slots.append(Slot(INSIDE, local[producer], output, 0))
            elif producer == ABSENT:
                slots.append(Slot(MISSING, 0, 0, 0))
            elif producer == CONSTANT:
                slots.append(Slot(FIXED, 0, 0, label(index, tensor)))
            else:
                number = externals.setdefault(tensor, len(externals))
                slots.append(Slot(EXTERNAL, number, 0, label(index, tensor)))
        outputs = tuple(
            Output(
                label(index, made.tensor),
                made.leaves or not all(reader in local for reader in made.readers),
            )
            if made.tensor
            else Output(-1, leaves=False)
            for made in wiring.makes[position]
        )
        nodes.append(
            StructureNode(
                group_of[position],
                wiring.tokens[position],
                wiring.commutative[position],
                tuple(slots),
                outputs,
            )
        )
    structure = Structure(tuple(nodes), parents, len(externals))
    return structure, Binding(tuple(positions), tuple(externals), regions)


def _tree(region: Region) -> tuple[tuple[Region, ...], tuple[int, ...]]:
    """List the regions of a tree, parents before children, children by their first node."""
    if not region.children:
        return (region,), (-1,)
    unsorted = list(walk([region]))
    first: dict[int, int] = {}
    for each in reversed(unsorted):
        below = [first[child.id] for child in each.children]
        first[each.id] = min([*below, min(each.nodes, default=1 << 62)])
    regions: list[Region] = []
    parents: list[int] = []
    waiting = [(region, -1)]
    while waiting:
        each, parent = waiting.pop()
        group = len(regions)
        regions.append(each)
        parents.append(parent)
        children = sorted(each.children, key=lambda child: first[child.id], reverse=True)
        waiting += [(child, group) for child in children]
    return tuple(regions), tuple(parents)
