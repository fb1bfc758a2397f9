"""The search space: groups of like ops, each quantized or not, and how regions yield them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from itertools import filterfalse

import onnx_ir as ir

from qdqtune.config import SCOPE, STRUCTURE
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import WEIGHTED_OPS
from qdqtune.qdq._op_units import norms_of
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._errors import InvalidSchemeError
from qdqtune.records._placement import Edge, Placement
from qdqtune.search.patterns._insertion_points import to_placement
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.search.patterns._region_pattern import PatternView, group_regions, view_pattern
from qdqtune.search.regions._canonical import CanonicalRegion
from qdqtune.search.regions._region import leaves
from qdqtune.search.regions._scope_search import division_of, find_regions
from qdqtune.search.regions._scopes import kind_of, scope_of_region

_logger = logging.getLogger(__name__)

State = frozenset[int]
"""Numbers of the groups that are quantized."""


class Form(Enum):
    """What of an op is quantized."""

    WHOLE = "whole"
    WEIGHTS = "weights only"
    ACTIVATIONS = "activations only"
    DYNAMIC = "dynamic"
    UNFUSED = "unfused"

    @property
    def needs_ranges(self) -> bool:
        """Whether activations are quantized with scales that calibration found."""
        return self in (Form.WHOLE, Form.ACTIVATIONS)

    @property
    def reads_floats(self) -> bool:
        """Whether the op's neighbours don't matter: it reads and writes floats."""
        return self in (Form.DYNAMIC, Form.UNFUSED)


@dataclass(frozen=True)
class Group:
    """Ops that are quantized together, because they play the same part in like regions.

    Attributes:
        pattern: Signature, with shapes, of the regions that they are part of.
        role: Position of the op in that pattern.
        op_type: What they are.
        nodes: Names, in the graph's order.
        structure: Equal for groups whose ops, attributes and shapes are; empty if nobody looked.
        form: What of them is quantized.
    """

    pattern: str
    role: int
    op_type: str
    nodes: tuple[str, ...]
    structure: str = ""
    form: Form = Form.WHOLE


class Space:
    """All placements that a search may propose for one model in one dialect.

    Args:
        planner: What each op needs to be quantized.
        groups: The choices, in the graph's order.
        weights: Share of the model's latency by node name, as far as it is known.
    """

    def __init__(
        self, planner: QuantizationPlanner, groups: Sequence[Group], weights: Mapping[str, float]
    ) -> None:
        self.planner = planner
        self.groups = tuple(groups)
        self.potential = tuple(
            sum(weights.get(node, 0.0) for node in self._at_stake(group)) for group in self.groups
        )
        if not any(self.potential):  # nothing is known: all may matter
            self.potential = (1.0 / max(1, len(self.groups)),) * len(self.groups)
        self._forms = {group.form for group in self.groups}
        self._placements: dict[State, Placement] = {}
        self._keys: dict[State, str] = {}
        self._closed: dict[State, State] = {}
        self._neighbours = self._find_neighbours()
        self.other_forms = frozenset(
            number for number, group in enumerate(self.groups) if group.form.reads_floats
        )
        self._rivals = self._find_rivals() if self.other_forms else {}

    @property
    def patterns(self) -> dict[str, list[int]]:
        """The groups of each pattern, in order of first appearance."""
        return self.by(lambda group: group.pattern)

    def by(self, key: Callable[[Group], str]) -> dict[str, list[int]]:
        """The groups with each value of a key, in order of first appearance.

        Dynamic and unfused groups are not mixed with others: of an op, only one form is chosen.
        """
        found: dict[str, list[int]] = {}
        for number, group in enumerate(self.groups):
            value = key(group)
            if number in self.other_forms:
                value = f"{value} {group.form.value}"
            found.setdefault(value, []).append(number)
        return found

    @property
    def everything(self) -> State:
        """Every group; what could also be dynamic or unfused is not."""
        return frozenset(range(len(self.groups))) - self.other_forms

    def in_form(self, form: Form) -> State:
        """The groups of one form."""
        return frozenset(n for n, group in enumerate(self.groups) if group.form is form)

    def needs_ranges(self, state: State) -> bool:
        """Whether a choice depends on calibration."""
        return any(self.groups[number].form.needs_ranges for number in state)

    def of_ops(self, op_types: Collection[str]) -> State:
        """The groups of these op types, and all that only move values; none is dynamic."""
        return frozenset(
            number
            for number in self.everything
            if self.groups[number].op_type in op_types or self.moves(number)
        )

    def switched(self, state: State, flip: State) -> State:
        """A choice with some groups flipped; ops that get another form lose the one they had."""
        added = flip - state
        dropped = {rival for number in added for rival in self._rivals.get(number, ())} - added
        return (state ^ flip) - dropped

    def weighted(self) -> State:
        """The ops with weights, and what moves their results."""
        return self.of_ops(WEIGHTED_OPS)

    def moves(self, number: int) -> bool:
        """Whether a group's ops only move values."""
        return self.groups[number].nodes[0] in self.planner.passthrough

    def with_one_form(self, state: State, values: Sequence[float]) -> State:
        """A choice in which ops that are chosen in two forms have the more valuable one only.

        Args:
            state: The choice.
            values: What each group is worth.
        """
        dropped = set()
        for number in sorted(state & self.other_forms):
            for rival in self._rivals[number] & state:
                dropped.add(min(number, rival, key=lambda each: values[each]))
        return state - dropped

    def placement(self, state: State) -> Placement:
        """What a choice comes to in the model."""
        if state not in self._placements:
            names: dict[Form, set[str]] = {form: set() for form in Form}
            for number in state:
                names[self.groups[number].form].update(self.groups[number].nodes)
            whole, fed = names[Form.WHOLE], names[Form.ACTIVATIONS]
            self._placements[state] = self.planner.placement(
                whole | fed,
                names[Form.WEIGHTS],
                float_weights=fed - whole,
                dynamic=names[Form.DYNAMIC],
                unfused=names[Form.UNFUSED],
            )
        return self._placements[state]

    def key(self, state: State) -> str:
        """Equal for choices that come to the same placement, in every run."""
        if state not in self._keys:
            self._keys[state] = self.placement(state).digest()
        return self._keys[state]

    def nearest(self, placement: Placement) -> State:
        """The groups whose ops are all integer kernels in a placement."""
        found = {Form.WHOLE: self.planner.quantized(placement)}
        if Form.WEIGHTS in self._forms:
            found[Form.WEIGHTS] = self.planner.stored(placement)
        if Form.ACTIVATIONS in self._forms:
            found[Form.ACTIVATIONS] = self.planner.fed(placement)
        if Form.DYNAMIC in self._forms:
            found[Form.DYNAMIC] = self.planner.at_run_time(placement)
        if Form.UNFUSED in self._forms:
            found[Form.UNFUSED] = placement.unfused
        return frozenset(
            number
            for number, group in enumerate(self.groups)
            if found[group.form].issuperset(group.nodes)
        )

    def like_ops(self, names: Collection[str]) -> State:
        """The groups with any of these ops, and those that play the same part in like regions."""
        parts = {
            (group.pattern, group.role, group.form)
            for group in self.groups
            if not set(names).isdisjoint(group.nodes)
        }
        return frozenset(
            number
            for number, group in enumerate(self.groups)
            if (group.pattern, group.role, group.form) in parts
        )

    def closed(self, state: State) -> State:
        """A choice with all groups that it quantizes on the way, and without those it doesn't.

        An op between quantized ones is quantized with them, and one that only moves values is not
        if they are float. Choices that come to the same placement are the same when closed.
        """
        if state not in self._closed:
            closed = self.nearest(self.placement(state))
            same = self.key(closed) == self.key(state)
            self._closed[state] = closed if same else state
        return self._closed[state]

    def rivals(self, numbers: Iterable[int]) -> State:
        """The groups that are other forms of the ops of these."""
        return frozenset(rival for number in numbers for rival in self._rivals.get(number, ()))

    def around(self, numbers: Iterable[int]) -> State:
        """The groups that share a tensor with one of these, these included."""
        return frozenset(near for number in numbers for near in self._neighbours[number])

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Neighbours, the smaller number first."""
        return tuple(
            (number, near)
            for number, nearby in enumerate(self._neighbours)
            for near in sorted(nearby)
            if near > number
        )

    def _at_stake(self, group: Group) -> set[str]:
        """The nodes whose latency depends on a group.

        A sum may have none of its own, as part of another kernel; what reads it gets faster.
        """
        nodes = set(group.nodes)
        if group.form is Form.UNFUSED:
            for name in group.nodes:
                nodes.update(norm.name or "" for norm in norms_of(self.planner.index.node[name]))
        return nodes

    def _find_neighbours(self) -> list[set[int]]:
        wires = self._wires()
        touching: dict[str, set[int]] = {}
        index = self.planner.index
        for number, group in enumerate(self.groups):
            if group.form.reads_floats:
                continue
            for name in group.nodes:
                for tensor in filterfalse(index.is_constant, _tensors(index.node[name])):
                    touching.setdefault(wires.get(tensor, tensor), set()).add(number)
        neighbours: list[set[int]] = [{number} for number in range(len(self.groups))]
        for numbers in touching.values():
            for number in numbers:
                neighbours[number] |= numbers
        return neighbours

    def _find_rivals(self) -> dict[int, set[int]]:
        """Groups that have ops in common, one of them dynamic or unfused."""
        of_node: dict[str, set[int]] = {}
        for number, group in enumerate(self.groups):
            for name in group.nodes:
                of_node.setdefault(name, set()).add(number)
        rivals: dict[int, set[int]] = {}
        for number in sorted(self.other_forms):
            near = set().union(*(of_node[name] for name in self.groups[number].nodes)) - {number}
            rivals[number] = near
            for other in near:
                rivals.setdefault(other, set()).add(number)
        return rivals

    def _wires(self) -> dict[str, str]:
        """Results of ops that are no choice and have one operand, such as a Relu: to the operand.

        Whether a conversion is needed behind such an op depends on what is before it.
        """
        index = self.planner.index
        chosen = {name for group in self.groups for name in group.nodes}
        wires: dict[str, str] = {}
        for node in index.nodes:
            operands = list(filterfalse(index.is_constant, set(index.reads(node))))
            if node.name not in chosen and len(operands) == 1:
                source = wires.get(operands[0], operands[0])
                wires.update((value.name or "", source) for value in node.outputs)
        return wires


def _tensors(node: ir.Node) -> list[str]:
    values = (*node.inputs, *node.outputs)
    return [value.name for value in values if value is not None and value.name]


@dataclass(frozen=True)
class Grouping:
    """The choices in a model, and what they were found in.

    Attributes:
        groups: In the graph's order.
        regions: How many regions there are, those that consist of others not counted.
        views: The distinct ones, with shapes.
        cached: What a pattern cache would quantize.
        cached_patterns: How many patterns of it are in the model.
        ruled: Names of the ops that placement rules would quantize.
        divided_by: What divides the model into regions.
    """

    groups: tuple[Group, ...] = ()
    regions: int = 0
    views: tuple[PatternView, ...] = ()
    cached: frozenset[Edge] = frozenset()
    cached_patterns: int = 0
    ruled: frozenset[str] = frozenset()
    divided_by: str = STRUCTURE

    @property
    def patterns(self) -> int:
        """How many distinct regions there are, with shapes."""
        return len(self.views)

    def of_regions(self, matches: Callable[[str], object]) -> Grouping:
        """The choices in regions with a matching node, and in those of the same patterns.

        Args:
            matches: Whether a node's name matches.
        """
        views = tuple(view for view in self.views if any(map(matches, view.nodes)))
        kept = {view.pattern.signature for view in views}
        return replace(
            self,
            groups=tuple(group for group in self.groups if group.pattern in kept),
            regions=sum(view.regions for view in views),
            views=views,
        )


def group_ops(
    index: GraphIndex,
    planner: QuantizationPlanner,
    cache: PatternCache | None = None,
    regions: str = STRUCTURE,
) -> Grouping:
    """Find the choices that a dialect leaves in a model.

    Regions with the same structure and shapes share a pattern, and the ops in one place of it are
    one group: all the insertion points of that place, in every region of the pattern. Modules of
    different names, such as the projections of an attention, have groups of their own.

    Args:
        index: The model, with shapes.
        planner: What can be quantized in it.
        cache: What other runs found.
        regions: What divides the model into regions.
    """
    divided_by = division_of(index, regions)
    found_regions = leaves(find_regions(index, divided_by))
    patterns = group_regions(found_regions, index)
    views = tuple(view_pattern(forms, index) for forms in patterns)
    found: list[tuple[int, Group]] = []
    possible = {
        Form.WHOLE: planner.units.keys(),
        Form.DYNAMIC: planner.may_be_dynamic,
        Form.UNFUSED: frozenset(planner.unfused),
    }
    for view, forms in zip(views, patterns, strict=True):
        signature = view.pattern.signature
        for role, places in _roles(forms, index, by_kind=divided_by == SCOPE):
            nodes = [index.nodes[place] for place in places]
            for form, ops in possible.items():
                names = tuple(node.name or "" for node in nodes if node.name in ops)
                if names:
                    key = _group_key(index, nodes[0])
                    group = Group(signature, role, nodes[0].op_type, names, key, form)
                    found.append((index.position[names[0]], group))
    # Other forms come last, so that the numbers of what was always there don't depend on them.
    found.sort(key=lambda each: (each[1].form.reads_floats, each[0]))
    cached: set[Edge] = set()
    cached_patterns = 0
    if cache is not None:
        cached_patterns = cache.occurring(view.pattern for view in views)
        for view, forms in zip(views, patterns, strict=True):
            for region in forms:
                cached |= _cached_edges(cache, view, region, index)
    groups = tuple(group for _, group in found)
    return Grouping(
        groups, len(found_regions), views, frozenset(cached), cached_patterns, divided_by=divided_by
    )


def _roles(
    forms: Sequence[CanonicalRegion], index: GraphIndex, *, by_kind: bool
) -> Iterator[tuple[int, list[int]]]:
    """Yield each place of a pattern with the positions of the ops in it, modules of a kind each."""
    kinds: dict[str, list[CanonicalRegion]] = {}
    for form in forms:
        kind = kind_of(scope_of_region(form.region, index)) if by_kind else ""
        kinds.setdefault(kind, []).append(form)
    for alike in kinds.values():
        for role, places in enumerate(zip(*(form.nodes for form in alike), strict=True)):
            yield role, sorted(places)


def _cached_edges(
    cache: PatternCache, view: PatternView, form: CanonicalRegion, index: GraphIndex
) -> frozenset[Edge]:
    """What the best scheme that is known of a pattern, or else of its structure, quantizes."""
    for pattern in (view.pattern, view.structure):
        known = cache.get_pattern_schemes(pattern.signature)
        if known is not None and known.schemes:
            best = known.best_scheme or known.schemes[0]
            try:
                places = set().union(*(point.resolve_in(form, index) for point in best.points()))
            except InvalidSchemeError as error:
                _logger.warning("a scheme of the pattern cache does not fit: %s", error.what)
                continue
            return index.effective(to_placement(index, places))
    return frozenset()


def _group_key(index: GraphIndex, node: ir.Node) -> str:
    """What an op is, wherever it stands: type, attributes and shapes."""
    attributes = sorted(f"{name}={attribute}" for name, attribute in node.attributes.items())
    shapes = [index.shape(value.name or "") for value in node.inputs if value is not None]
    return f"{node.op_type}{attributes}{shapes}"
