"""The canonical order of a structure's nodes, operands and border tensors."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from qdqtune.autotune.regions.color_refinement import distinct_colours
from qdqtune.autotune.regions.structure import EXTERNAL, INSIDE, Structure, StructureNode

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
