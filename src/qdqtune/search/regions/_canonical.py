"""The canonical form of a region, and its signature.

Text that describes its structure completely.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakKeyDictionary

from qdqtune.graph._index import GraphIndex
from qdqtune.search.regions._canonical_order import Group, Layout, Tensor, lay_out, tensor_of
from qdqtune.search.regions._region import Region
from qdqtune.search.regions._structure import EXTERNAL, FIXED, Binding, Structure, read_structure
from qdqtune.search.regions._wiring import Labels, Wiring, wiring_of

EMPTY = "EMPTY"
COMPOSITE_PREFIX = "COMPOSITE("

# Skip quoted attribute text, since it can contain anything.
_LABEL = r"(?:\w+|\?)\[[\dx?*]*\]"
_QUOTED_OR_SHAPES = re.compile(
    rf"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    rf"|(?<!:):{_LABEL}"
    rf"|(?<=\))=(?!>)(?:{_LABEL}|-)(?:;(?:{_LABEL}|-))*"
)


def write_signature(
    structure: Structure, layout: Layout, texts: Sequence[str], *, shapes: bool
) -> str:
    """Write the signature of a structure.

    A leaf is written `Conv[kernel_shape=3x3](e0,c,c)->Relu(%0)=>%1`: e0 is the first external
    tensor, c a constant, - an omitted input, %0 the first node's output (%0.1 its second one), and
    the outputs used outside follow =>. A composite is written
    `COMPOSITE(leaf+leaf){e0;#0.0}=>#1.0`: the braces list, for each child, the sources of its
    inputs; #0.0 is the first output of the first child. Types and shapes follow a colon; those of a
    node's outputs follow an equals sign.

    Args:
        structure: The structure.
        layout: Its canonical order.
        texts: Text by label.
        shapes: Whether to include types and shapes.
    """
    if not structure.nodes:
        return EMPTY
    return "".join(_Writer(structure, layout, texts, shapes=shapes).parts())


def without_shapes(signature: str) -> str:
    """Remove types and shapes from a signature; one without them is returned unchanged."""
    return _QUOTED_OR_SHAPES.sub(lambda found: found.group(1) or "", signature)


class _Writer:
    def __init__(
        self, structure: Structure, layout: Layout, texts: Sequence[str], *, shapes: bool
    ) -> None:
        self._structure = structure
        self._layout = layout
        self._texts = texts
        self._shapes = shapes
        self._place = {
            number: place for group in layout.groups for place, number in enumerate(group.nodes)
        }
        self._child_place = {
            child: place for group in layout.groups for place, child in enumerate(group.children)
        }

    def parts(self) -> list[str]:
        """Yield the text in parts; iterative, since trees may be deep."""
        parts: list[str] = []
        waiting: list[str | int] = [0]
        while waiting:
            item = waiting.pop()
            if isinstance(item, str):
                parts.append(item)
                continue
            group = self._layout.groups[item]
            nodes = "->".join(self._node(item, number) for number in group.nodes)
            outputs = "=>" + ",".join(self._ref(item, tensor) for tensor in group.outputs)
            if not group.children:
                parts.append(nodes + outputs)
                continue
            parts.append(f"{COMPOSITE_PREFIX}{nodes}|" if nodes else COMPOSITE_PREFIX)
            waiting.append(f"){{{self._child_inputs(item)}}}{outputs}")
            for place, child in reversed(list(enumerate(group.children))):
                waiting += [child, "+"] if place else [child]
        return parts

    def _child_inputs(self, group: int) -> str:
        return ";".join(
            ",".join(self._ref(group, tensor) for tensor in self._layout.groups[child].inputs)
            for child in self._layout.groups[group].children
        )

    def _ref(self, group: int, tensor: Tensor) -> str:
        """Return how a group refers to a tensor."""
        border = self._layout.groups[group]
        if tensor in border.inputs:
            return f"e{border.inputs[tensor]}"
        number, output = tensor
        if self._structure.nodes[number].group == group:
            return f"%{self._place[number]}" + (f".{output}" if output else "")
        child = border.made_by[tensor]
        return f"#{self._child_place[child]}.{self._layout.groups[child].outputs[tensor]}"

    def _node(self, group: int, number: int) -> str:
        node = self._structure.nodes[number]
        operands = ",".join(
            self._operand(group, number, position) for position in self._layout.operands[number]
        )
        text = f"{self._texts[node.token]}({operands})"
        if self._shapes:
            kinds = (self._texts[out.label] if out.label >= 0 else "-" for out in node.outputs)
            text += "=" + ";".join(kinds)
        return text

    def _operand(self, group: int, number: int, position: int) -> str:
        slot = self._structure.nodes[number].slots[position]
        tensor = tensor_of(self._structure, number, position)
        text = self._ref(group, tensor) if tensor else "c" if slot.kind == FIXED else "-"
        if self._shapes and slot.kind in (EXTERNAL, FIXED):
            text += f":{self._texts[slot.label]}"
        return text


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


@dataclass(eq=False)
class Form:
    """The form shared by all regions of one structure."""

    structure: Structure
    layout: Layout
    labels: Labels
    _signatures: dict[bool, str] = field(default_factory=dict)

    def signature(self, *, shapes: bool) -> str:
        """The structure as text."""
        if shapes not in self._signatures:
            self._signatures[shapes] = write_signature(
                self.structure, self.layout, self.labels.texts, shapes=shapes
            )
        return self._signatures[shapes]


class CanonicalRegion:
    """A region in canonical form.

    Args:
        form: The form of its structure.
        binding: What the structure's numbers stand for.
        wiring: The wiring of the graph.

    Attributes:
        form: The form.
    """

    def __init__(self, form: Form, binding: Binding, wiring: Wiring) -> None:
        self.form = form
        self._binding = binding
        self._wiring = wiring
        self._child_edges: dict[int, dict[str, list[tuple[int, int]]]] = {}

    def signature(self, *, shapes: bool = False) -> str:
        """Return the region's structure as text, optionally with types and shapes."""
        return self.form.signature(shapes=shapes)

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """Index positions of all nodes, including children's, in canonical order."""
        return tuple(self._binding.positions[number] for number in self.form.layout.order)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Tensors from outside, without constants, by first use."""
        return self._names(self._top.inputs)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Tensors that are used outside, by producer."""
        return self._names(self._top.outputs)

    @cached_property
    def seen_outside(self) -> frozenset[str]:
        """The outputs, as a set for lookup."""
        return frozenset(self.outputs)

    @cached_property
    def children(self) -> tuple[ChildForm, ...]:
        """The children, by their first node."""
        groups = self.form.layout.groups
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
        structure = self.form.structure
        order = self.form.layout.order
        return tuple(
            place for place, number in enumerate(order) if structure.nodes[number].group == 0
        )

    @cached_property
    def own_outputs(self) -> tuple[tuple[int, int], ...]:
        """Outputs that its own nodes produce: position in canonical order, and output index."""
        place = {number: place for place, number in enumerate(self.form.layout.order)}
        made_by = self._top.made_by
        return tuple(
            (place[number], output)
            for number, output in self._top.outputs
            if (number, output) not in made_by
        )

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
        return self.form.layout.operands[self.form.layout.order[node_index]]

    @property
    def _top(self) -> Group:
        return self.form.layout.groups[0]

    def _names(self, tensors: dict[Tensor, int]) -> tuple[str, ...]:
        inside = len(self._binding.positions)
        return tuple(
            self._wiring.makes[self._binding.positions[number]][output].tensor
            if number < inside
            else self._binding.externals[number - inside]
            for number, output in tensors
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
    form = forms.get(structure)
    if form is None:
        layout = lay_out(structure, wiring.labels.hashes)
        form = forms[structure] = Form(structure, layout, wiring.labels)
    return CanonicalRegion(form, binding, wiring)
