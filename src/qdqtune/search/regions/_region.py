"""Regions: subgraphs with boundary tensors, in a tree."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar

_log = logging.getLogger(__name__)

Item = TypeVar("Item")


class KeyedList(MutableSequence[Item], Generic[Item]):
    """A list view of a mapping's values; every change is passed to the mapping's owner.

    Iteration goes over a snapshot taken at its start.

    Args:
        held: The mapping.
        assign: Replaces the owner's items with the given ones.
    """

    def __init__(self, held: Mapping[Any, Item], assign: Callable[[Iterable[Item]], None]) -> None:
        self._held = held
        self._assign = assign

    def __getitem__(self, index: Any) -> Any:
        return list(self._held.values())[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        items = list(self)
        items[index] = value
        self._assign(items)

    def __delitem__(self, index: int | slice) -> None:
        items = list(self)
        del items[index]
        self._assign(items)

    def insert(self, index: int, value: Item) -> None:
        """Insert an item before another one."""
        items = list(self)
        items.insert(index, value)
        self._assign(items)

    def sort(self, *, key: Callable[[Item], Any], reverse: bool = False) -> None:
        """Reorder the items."""
        self._assign(sorted(self, key=key, reverse=reverse))

    def __iter__(self) -> Iterator[Item]:
        return iter(list(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


class RegionType(Enum):
    """What a region consists of."""

    LEAF = "LEAF"  # nodes only
    COMPOSITE = "COMPOSITE"  # other regions
    ROOT = "ROOT"  # the whole graph


class Region:
    """A subgraph in a tree of regions; all tree walks are iterative, so any depth works.

    `nodes` are positions in the autotuner's own graph, which is folded: a node of the file may have
    another position there, or be missing. Take positions from that graph, or use `region_of` to
    look them up by name::

        graph = QDQAutotunerBase(model).graph
        region = region_of(graph, ["conv1", "relu1"])
        region.nodes.add(graph.position["conv2"])

    Args:
        region_id: A unique number.
        level: Depth in the tree; regions without a parent are at 0.
        region_type: What it consists of.

    Attributes:
        id: The number.
        level: The depth.
        type: What it consists of.
        parent: The parent region, if any.
        nodes: Positions, in `graph.nodes`, of the nodes that belong to it directly.
        inputs: Tensors that it reads and doesn't produce, without constants, in structural order.
        outputs: Tensors that are used outside, in structural order.
        metadata: Arbitrary data of the caller.
    """

    def __init__(self, region_id: int, level: int, region_type: RegionType) -> None:
        self.id = region_id
        self.level = level
        self.type = region_type
        self.parent: Region | None = None
        self.nodes: set[int] = set()
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.metadata: dict[str, Any] = {}
        self._children: dict[int, Region] = {}

    @property
    def children(self) -> KeyedList[Region]:
        """The children as a list; an inserted child is added as by `add_child`."""
        return KeyedList(self._children, self._take_children)

    @children.setter
    def children(self, children: Iterable[Region]) -> None:
        self._take_children(children)

    def get_children(self, *, sort: bool = False) -> list[Region]:
        """Return the children; if sorted, deepest first, then smallest first."""
        children = list(self._children.values())
        if sort:
            children.sort(
                key=lambda child: (-child.level, child.get_size_of_region_and_descendants())
            )
        return children

    def add_child(self, child: Region) -> None:
        """Add a region as a child, and remove it from its previous parent.

        If a child has the same id, nothing happens. The region itself and its ancestors are refused
        with a warning.
        """
        if child.id == self.id or (child._children and self.is_descendant_of(child)):
            _log.warning("Region %d can't lie in region %d, which lies in it.", child.id, self.id)
            return
        if child.id in self._children:
            return
        if child.parent is not None:
            child.parent.remove_child(child)
        child.parent = self
        self._children[child.id] = child

    def remove_child(self, child: Region) -> bool:
        """Remove a child.

        Returns:
            Whether it was a child.
        """
        found = self._children.pop(child.id, None)
        if found is None:
            return False
        found.parent = None
        return True

    def _take_children(self, children: Iterable[Region]) -> None:
        """Replace the children."""
        wanted = list(children)
        for child in self._children.values():
            child.parent = None
        self._children.clear()
        for child in wanted:
            self.add_child(child)

    def is_descendant_of(self, ancestor: Region) -> bool:
        """Whether this region is inside another one, at any depth."""
        above = self.parent
        while above is not None:
            if above.id == ancestor.id:
                return True
            above = above.parent
        return False

    def get_nodes(self, *, sort: bool = False) -> list[int]:
        """Return the positions of its own nodes."""
        return sorted(self.nodes) if sort else list(self.nodes)

    def get_region_nodes_and_descendants(self) -> set[int]:
        """Return the positions of its own nodes and those of all descendants."""
        if not self._children:
            return set(self.nodes)
        return set().union(*(region.nodes for region in walk([self])))

    def contains_node(self, position: int) -> bool:
        """Whether a node belongs to it directly."""
        return position in self.nodes

    def contains_node_within_region_and_descendants(self, position: int) -> bool:
        """Whether a node belongs to it or to a descendant."""
        return any(position in region.nodes for region in walk([self]))

    def get_size_of_region_and_descendants(self) -> int:
        """Return its number of nodes, including descendants."""
        return sum(len(region.nodes) for region in walk([self]))

    def merge(self, other: Region) -> None:
        """Move the nodes and the children of another region into this one."""
        if other is self:
            return
        self.nodes |= other.nodes
        for child in other.children:
            self.add_child(child)

    def __repr__(self) -> str:
        return (
            f"Region[id={self.id}, level={self.level}, type={self.type.value}, "
            f"nodes={len(self.nodes)}, children={len(self._children)}, "
            f"inputs={len(self.inputs)}, outputs={len(self.outputs)}]"
        )


def walk(regions: Iterable[Region]) -> Iterator[Region]:
    """Yield every region of the trees, parents before children."""
    waiting = list(regions)[::-1]
    while waiting:
        region = waiting.pop()
        yield region
        if region._children:
            waiting.extend(reversed(region._children.values()))


def leaves(regions: Iterable[Region]) -> list[Region]:
    """Yield the regions of the trees that have no children."""
    return [region for region in walk(regions) if not region._children]
