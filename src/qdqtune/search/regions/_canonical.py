"""The canonical form of a region, and its signature: its whole structure as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

from qdqtune.graph._index import GraphIndex
from qdqtune.search.regions._region import Region
from qdqtune.search.regions._structure import (
    EXTERNAL,
    FIXED,
    Binding,
    Structure,
    StructureNode,
    distinct_colours,
    node_order,
    read_structure,
)
from qdqtune.search.regions._wiring import Wiring, wiring_of

EMPTY = "EMPTY"
COMPOSITE_PREFIX = "COMPOSITE("

# Skip quoted attribute text, since it can contain anything.
_LABEL = r"(?:\w+|\?)\[[\dx?*]*\]"
_QUOTED_OR_SHAPES = re.compile(
    rf"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    rf"|(?<!:):{_LABEL}"
    rf"|(?<=\))=(?!>)(?:{_LABEL}|-)(?:;(?:{_LABEL}|-))*"
)
# A grouped Conv, with the input channels of a group, and a Concat with its inputs. Signatures come
# from files, too: how far the first one looks ahead is limited.
_GROUPED = re.compile(
    r"\bgroup=(?!1\b)\d+"
    r"(?=[^\[\]'\"]{0,200}\]\([^(),]{0,200},c:\w{1,20}\[[^]x]{1,20}x(\d{1,20})[]x])"
)
_CONCATENATED = re.compile(r"\b(Concat\[axis=-?\d+\]\()[^()]*\)")
_ATTRIBUTES = re.compile(r"\[(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\[\]'\"])*\]")
_DIMS = re.compile(r"\[([\dx?*]*)\]")
_DIGITS = 18  # of a dim, at most: a signature may come from a file


def without_shapes(signature: str) -> str:
    """Remove types and shapes from a signature; one without them is returned unchanged."""
    return _QUOTED_OR_SHAPES.sub(lambda found: found.group(1) or "", signature)


def without_attributes(signature: str) -> str:
    """Remove the attributes of ops from a signature; types and shapes have to be removed first."""
    return _ATTRIBUTES.sub("", signature)


def shapes_in(signature: str) -> tuple[str, ...]:
    """All shapes in a signature as text, such as `1x64x8x8`, in order; scalars have none."""
    shapes = (found[0] for found in _QUOTED_OR_SHAPES.finditer(signature) if not found[1])
    return tuple(label for text in shapes for label in _DIMS.findall(text) if label)


def dims_in(signature: str) -> tuple[int, ...]:
    """All dims of the shapes in a signature, in order; unknown ones are 0."""
    dims = (dim[:_DIGITS] for label in shapes_in(signature) for dim in label.split("x"))
    return tuple(int(dim) if dim.isdecimal() else 0 for dim in dims)


class Scalable(NamedTuple):
    """A signature in two parts, of which a model of another width differs only in the second.

    Attributes:
        structure: Ops and how they are connected.
        dims: All dims.
    """

    structure: str
    dims: tuple[int, ...]


def scalable(signature: str) -> Scalable:
    """Split a signature into a structure that is the same for a model of any width, and dims.

    The number of groups of a Conv, which is dense, grouped or depthwise, and the inputs of a Concat
    are left out of both.
    """

    def kind(found: re.Match[str]) -> str:
        return "depthwise" if found[1] == "1" else "grouped"

    text = _CONCATENATED.sub(r"\1*)", _GROUPED.sub(kind, signature))
    return Scalable(without_shapes(text), dims_in(text))


#: A tensor of a structure: the vertex that makes it, and which output.
Tensor = tuple[int, int]


@dataclass
class Group:
    """One region of the tree: what it consists of, each with its place in canonical order.

    Attributes:
        nodes: Its own nodes.
        children: Its child groups, by their first node.
        inputs: Tensors that it reads and doesn't produce, by first use.
        outputs: Tensors that are used outside, by producer.
        made_by: The child that produces each tensor that a child outputs.
    """

    nodes: dict[int, int] = field(default_factory=dict)
    children: dict[int, int] = field(default_factory=dict)
    inputs: dict[Tensor, int] = field(default_factory=dict)
    outputs: dict[Tensor, int] = field(default_factory=dict)
    made_by: dict[Tensor, int] = field(default_factory=dict)


class Form:
    """A structure in canonical order. Equal structures, however listed, have equal forms.

    Args:
        structure: The structure.

    Attributes:
        order: Nodes in canonical order: producers first, branches contiguous where possible.
        operands: By node (as listed): its input positions in canonical order.
        groups: By region of the tree, its border and its parts.
    """

    def __init__(self, structure: Structure) -> None:
        self._structure = structure
        colours = distinct_colours(structure)
        self.order = node_order(structure, colours)
        rank = colours[:]  # by vertex, what inputs of commutative ops are sorted by
        for place, number in enumerate(self.order):
            rank[number] = place
        self.operands = [_operands(node, rank) for node in structure.nodes]
        self.groups = [Group() for _ in structure.parents]
        self._signatures: dict[bool, str] = {}
        self._fill_groups()
        self._add_borders()

    def _fill_groups(self) -> None:
        nodes, parents = self._structure.nodes, self._structure.parents
        for number in self.order:
            own = self.groups[nodes[number].group].nodes
            own[number] = len(own)
        waiting = set(range(1, len(parents)))
        by_first_node = [nodes[number].group for number in self.order]
        for group in (*by_first_node, *sorted(waiting, reverse=True)):
            while group in waiting:
                waiting.remove(group)
                siblings = self.groups[parents[group]].children
                siblings[group] = len(siblings)
                group = parents[group]

    def _add_borders(self) -> None:
        """Compute inputs and outputs of every group."""
        nodes, parents, groups = self._structure.nodes, self._structure.parents, self.groups
        last = list(range(len(parents)))  # the last group inside each: they are listed depth first
        for group in range(len(parents) - 1, 0, -1):
            last[parents[group]] = max(last[parents[group]], last[group])

        def around(group: int, other: int) -> Iterator[int]:
            """Yield a group and those around it, up to the first that contains the other one."""
            while group >= 0 and not group <= other <= last[group]:
                yield group
                group = parents[group]

        readers: dict[Tensor, set[int]] = {}
        for number in self.order:
            for position in self.operands[number]:
                kind, source, output, _ = nodes[number].slots[position]
                if kind > EXTERNAL:
                    continue
                tensor = (source, output)
                readers.setdefault(tensor, set()).add(nodes[number].group)
                for group in around(nodes[number].group, -1 if kind else nodes[source].group):
                    inputs = groups[group].inputs
                    if tensor in inputs:
                        break
                    inputs[tensor] = len(inputs)
        for number in self.order:
            for output, (_, leaves) in enumerate(nodes[number].outputs):
                tensor = (number, output)
                for reader in (-1,) if leaves else readers.get(tensor, ()):
                    for group in around(nodes[number].group, reader):
                        groups[group].outputs.setdefault(tensor, len(groups[group].outputs))
                        if group:
                            groups[parents[group]].made_by[tensor] = group

    def signature(self, *, shapes: bool) -> str:
        """Return the structure as text.

        A leaf is written `Conv[kernel_shape=3x3](e0,c,c)->Relu(%0)=>%1`: e0 is the first external
        tensor, c a constant, - an omitted input, %0 the first node's output (%0.1 its second one),
        and the outputs used outside follow =>. A composite is written
        `COMPOSITE(leaf+leaf){e0;#0.0}=>#1.0`: the braces list, for each child, the sources of its
        inputs; #0.0 is the first output of the first child. Types and shapes follow a colon; those
        of a node's outputs follow an equals sign.

        Args:
            shapes: Whether to include types and shapes.
        """
        if not self._structure.nodes:
            return EMPTY
        if shapes not in self._signatures:
            self._signatures[shapes] = "".join(self._parts(shapes))
        return self._signatures[shapes]

    def _parts(self, shapes: bool) -> Iterator[str]:
        """Yield the text in parts; iterative, since trees may be deep."""
        waiting: list[str | int] = [0]
        while waiting:
            item = waiting.pop()
            if isinstance(item, str):
                yield item
                continue
            group = self.groups[item]
            nodes = "->".join(self._node(group, number, shapes) for number in group.nodes)
            outputs = f"=>{self._refs(group, group.outputs)}"
            if not group.children:
                yield nodes + outputs
                continue
            yield f"{COMPOSITE_PREFIX}{nodes}|" if nodes else COMPOSITE_PREFIX
            read = ";".join(self._refs(group, self.groups[each].inputs) for each in group.children)
            waiting.append(f"){{{read}}}{outputs}")
            for child, place in reversed(group.children.items()):
                waiting += [child, "+"] if place else [child]

    def _refs(self, group: Group, tensors: Iterable[Tensor]) -> str:
        return ",".join(self._ref(group, tensor) for tensor in tensors)

    def _ref(self, group: Group, tensor: Tensor) -> str:
        """Return how a group refers to a tensor."""
        if tensor in group.inputs:
            return f"e{group.inputs[tensor]}"
        number, output = tensor
        if number in group.nodes:
            return f"%{group.nodes[number]}" + (f".{output}" if output else "")
        child = group.made_by[tensor]
        return f"#{group.children[child]}.{self.groups[child].outputs[tensor]}"

    def _node(self, group: Group, number: int, shapes: bool) -> str:
        node = self._structure.nodes[number]
        operands = []
        for position in self.operands[number]:
            kind, source, output, label = node.slots[position]
            text = "c" if kind == FIXED else "-"
            if kind <= EXTERNAL:
                text = self._ref(group, (source, output))
            operands.append(f"{text}:{label}" if shapes and label else text)
        text = f"{node.token}({','.join(operands)})"
        if shapes:
            text += "=" + ";".join(out.label or "-" for out in node.outputs)
        return text


def _operands(node: StructureNode, rank: list[int]) -> tuple[int, ...]:
    positions = range(len(node.slots))
    if not node.commutative:
        return tuple(positions)

    def key(position: int) -> tuple[int, int, int]:
        kind, source, output, _ = node.slots[position]
        return kind, rank[source] if kind <= EXTERNAL else 0, output

    return tuple(sorted(positions, key=key))


@dataclass(frozen=True)
class ChildForm:
    """A child as its parent's pattern sees it.

    Attributes:
        region: The child.
        inputs: Its inputs in the order of the parent's pattern.
        outputs: Its outputs in the order of the parent's pattern.
    """

    region: Region
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class CanonicalRegion:
    """A region in canonical form.

    Args:
        form: The form of its structure.
        binding: What the structure's numbers stand for.
        wiring: The wiring of the graph.

    Attributes:
        region: The region.
    """

    def __init__(self, form: Form, binding: Binding, wiring: Wiring) -> None:
        self.region = binding.regions[0]
        self._form = form
        self._top = form.groups[0]
        self._binding = binding
        self._wiring = wiring
        self._child_edges: dict[int, dict[str, list[tuple[int, int]]]] = {}

    def signature(self, *, shapes: bool = False) -> str:
        """Return the region's structure as text, optionally with types and shapes."""
        return self._form.signature(shapes=shapes)

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """Index positions of all nodes, including children's, in canonical order."""
        return tuple(self._binding.positions[number] for number in self._form.order)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Tensors from outside, without constants, by first use."""
        return self._names(self._top.inputs)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Tensors that are used outside, by producer."""
        return self._names(self._top.outputs)

    @cached_property
    def children(self) -> tuple[ChildForm, ...]:
        """The children, by their first node."""
        groups = self._form.groups
        return tuple(
            ChildForm(
                self._binding.regions[child],
                self._names(groups[child].inputs),
                self._names(groups[child].outputs),
            )
            for child in self._top.children
        )

    @cached_property
    def own_nodes(self) -> tuple[int, ...]:
        """The nodes, in canonical order, that belong to the region itself and not to a child."""
        order = self._form.order
        return tuple(place for place, number in enumerate(order) if number in self._top.nodes)

    @cached_property
    def own_outputs(self) -> tuple[tuple[int, int], ...]:
        """Outputs that its own nodes produce: position in canonical order, and output index."""
        place = dict(zip(self._top.nodes, self.own_nodes, strict=True))
        return tuple((place[made], output) for made, output in self._top.outputs if made in place)

    def edges_into_child(self, child: int, tensor: str) -> list[tuple[int, int]]:
        """Return where a child reads a tensor: positions of nodes and of their inputs."""
        if child not in self._child_edges:
            edges: dict[str, list[tuple[int, int]]] = {}
            for node in sorted(self.children[child].region.get_region_nodes_and_descendants()):
                for position, read in enumerate(self._wiring.reads[node]):
                    edges.setdefault(read.tensor, []).append((node, position))
            self._child_edges[child] = edges
        return self._child_edges[child].get(tensor, [])

    def input_positions(self, node_index: int) -> tuple[int, ...]:
        """Return the inputs of a node in canonical order."""
        return self._form.operands[self._form.order[node_index]]

    def _names(self, tensors: Iterable[Tensor]) -> tuple[str, ...]:
        positions, externals = self._binding.positions, self._binding.externals
        return tuple(
            self._wiring.makes[positions[vertex]][output].tensor
            if vertex < len(positions)
            else externals[vertex - len(positions)]
            for vertex, output in tensors
        )


_FORMS: WeakKeyDictionary[GraphIndex, dict[Structure, Form]] = WeakKeyDictionary()


def canonical_region(region: Region, index: GraphIndex) -> CanonicalRegion:
    """Put a region in canonical form; equal structures are computed once.

    Raises:
        AutotunerError: If the region doesn't fit the graph.
    """
    wiring = wiring_of(index)
    structure, binding = read_structure(region, index, wiring)
    forms = _FORMS.setdefault(index, {})
    form = forms.get(structure) or forms.setdefault(structure, Form(structure))
    return CanonicalRegion(form, binding, wiring)
