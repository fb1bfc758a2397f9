"""The canonical form of a region: how its pattern numbers nodes, operands and borders.

A position in this form means the same role in every region of the pattern, regardless of node
order, of the operand order of an Add, and of names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakKeyDictionary

from qdqtune.autotune.regions.layout import Group, Layout, Tensor, lay_out
from qdqtune.autotune.regions.region import Region
from qdqtune.autotune.regions.signature import write_signature
from qdqtune.autotune.regions.structure import Binding, Structure, read_structure
from qdqtune.autotune.regions.wiring import Labels, Wiring, wiring_of
from qdqtune.graph.index import GraphIndex


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
