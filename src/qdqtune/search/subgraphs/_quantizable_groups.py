"""The choices of subgraph mode: each fusion group that can be quantized, in its best way.

What is profiled are the subgraphs that are distinct by content, with a few schemes each.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import WEIGHTED_OPS
from qdqtune.qdq._dialect import Output
from qdqtune.qdq._op_units import role_rule
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._placement import Edge, Placement
from qdqtune.records._tuning import SchemeTimes, SubgraphTimes
from qdqtune.search._space import Form, Group, State
from qdqtune.search.regions._canonical import canonical_region
from qdqtune.search.regions._region import Region, RegionType
from qdqtune.search.subgraphs._fusion_groups import FusionGroup

_DIGEST_BYTES = 12


@dataclass(frozen=True)
class Content:
    """A subgraph in canonical form.

    Attributes:
        key: Equal for subgraphs of the same structure, attributes, shapes and types.
        nodes: Names of its nodes; those of equal subgraphs correspond to each other.
        inputs: Tensors that it reads and doesn't make, constants left out; in such an order, too.
        outputs: Tensors that others see, likewise.
    """

    key: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def content_of(index: GraphIndex, nodes: Iterable[str]) -> Content:
    """Put a subgraph in canonical form.

    Args:
        index: The model, with the shapes that it runs at.
        nodes: Names of the nodes.
    """
    region = Region(0, 0, RegionType.LEAF)
    region.nodes.update(index.position[name] for name in nodes)
    form = canonical_region(region, index)
    text = form.signature(shapes=True).encode()
    return Content(
        hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest(),
        tuple(index.nodes[position].name or "" for position in form.nodes),
        form.inputs,
        form.outputs,
    )


NONE = "none"
FULL = "full"
RULES = "rules"
WEIGHTS = "weights only"
ACTIVATIONS = "activations only"
WITHOUT_ONE = "full but for"

# With more ops in one subgraph, leaving out one makes too little of a difference.
_MOST_COMPUTE_OPS = 3

_SAME = "it is the same as {}"
_TOO_SLOW = "builds take so long that only the most promising schemes are tried"
_NO_WEIGHTS = "{} gains nothing from the weights of these ops alone"
_NO_ACTIVATIONS = "{} has no integer kernel for these ops without quantized weights"


@dataclass(frozen=True)
class Scheme:
    """One way to quantize a subgraph.

    Attributes:
        name: What it is called.
        places: Which nodes of the subgraph, by their places in canonical order.
        form: What of them.
    """

    name: str
    places: tuple[int, ...]
    form: Form = Form.WHOLE

    def nodes(self, content: Content) -> tuple[str, ...]:
        """The nodes that are quantized in one of the subgraph's groups."""
        return tuple(content.nodes[place] for place in self.places)

    def placement(self, content: Content, planner: QuantizationPlanner) -> Placement:
        """The placement in the model if nothing but what the subgraph reads is quantized."""
        names = self.nodes(content)
        if self.form is Form.WEIGHTS:
            return planner.placement((), names)
        left = names if self.form is Form.ACTIVATIONS else ()
        return planner.placement(names, quantized_before=content.inputs, float_weights=left)


@dataclass(frozen=True)
class Subgraph:
    """Groups of equal content: what is found out about one holds for all.

    Attributes:
        key: What it is, in every run.
        groups: Numbers of the groups, in the graph's order; the first one is profiled.
        contents: Each of them in canonical form.
        schemes: What to try beside leaving it float.
        skipped: Schemes that are not tried, and why.
    """

    key: str
    groups: tuple[int, ...]
    contents: tuple[Content, ...]
    schemes: tuple[Scheme, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> Content:
        """The group that is profiled."""
        return self.contents[0]


def find_subgraphs(
    index: GraphIndex,
    groups: Sequence[FusionGroup],
    planner: QuantizationPlanner,
    ruled: Collection[str],
    may: Collection[str],
    *,
    few: bool = False,
) -> list[Subgraph]:
    """The distinct subgraphs that something can be quantized in, in the graph's order.

    Args:
        index: The model, with the size of every tensor.
        groups: The fusion groups.
        planner: What can be quantized.
        ruled: Names of the ops that placement rules would quantize.
        may: Names of the ops that may be quantized: of units that have ranges, and were asked for.
        few: Whether only the most promising schemes are worth a build.
    """
    found: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[tuple[int, Content]]] = {}
    for group in groups:
        if not any(name in may for name in group.nodes):
            continue
        content = content_of(index, group.nodes)
        full = tuple(place for place, name in enumerate(content.nodes) if name in may)
        by_rules = tuple(place for place in full if content.nodes[place] in ruled)
        found.setdefault((content.key, full, by_rules), []).append((group.number, content))
    subgraphs = []
    for (key, full, by_rules), same in found.items():
        schemes, skipped = _schemes(same[0][1], planner, full, by_rules, few=few)
        name = f"{key}-{'.'.join(map(str, full))}-{'.'.join(map(str, by_rules))}"
        numbers, contents = zip(*same, strict=True)
        subgraphs.append(Subgraph(name, tuple(numbers), tuple(contents), schemes, skipped))
    return subgraphs


def _schemes(
    content: Content,
    planner: QuantizationPlanner,
    full: tuple[int, ...],
    ruled: tuple[int, ...],
    *,
    few: bool,
) -> tuple[tuple[Scheme, ...], dict[str, str]]:
    index, dialect = planner.index, planner.dialect
    schemes = [Scheme(FULL, full)]
    skipped: dict[str, str] = {}
    if ruled == full:
        skipped[RULES] = _SAME.format(FULL)
    elif not Scheme(RULES, ruled).placement(content, planner):
        skipped[RULES] = _SAME.format(NONE)
    else:
        schemes.append(Scheme(RULES, ruled))
    if few:
        skipped[WITHOUT_ONE] = _TOO_SLOW
    else:
        schemes += _without_one(content, planner, full, {scheme.places for scheme in schemes})
    weighted = [place for place in full if planner.weight_edges(content.nodes[place])]
    types = {place: index.node[content.nodes[place]].op_type for place in weighted}
    stored = tuple(place for place in weighted if types[place] in dialect.weights_only)
    if stored:
        schemes.append(Scheme(WEIGHTS, stored, Form.WEIGHTS))
    else:
        skipped[WEIGHTS] = _NO_WEIGHTS.format(dialect.name)
    if weighted and dialect.activations_only.issuperset(types.values()):
        schemes.append(Scheme(ACTIVATIONS, full, Form.ACTIVATIONS))
    else:
        skipped[ACTIVATIONS] = _NO_ACTIVATIONS.format(dialect.name)
    return tuple(schemes), skipped


def _without_one(
    content: Content,
    planner: QuantizationPlanner,
    full: tuple[int, ...],
    known: Collection[tuple[int, ...]],
) -> list[Scheme]:
    """All of a subgraph but one compute op, if it has few: some float kernels are as fast."""
    index = planner.index
    compute = [place for place in full if content.nodes[place] in planner.compute]
    if not 1 < len(compute) <= _MOST_COMPUTE_OPS:
        return []
    schemes = []
    for left in compute:
        places = tuple(place for place in full if place != left)
        if places not in known:
            op_type = index.node[content.nodes[left]].op_type
            schemes.append(Scheme(f"{WITHOUT_ONE} {op_type} {left}", places))
    return schemes


def placement_inside(
    placement: Placement, content: Content, planner: QuantizationPlanner
) -> Placement:
    """What a placement of the model comes to in a subgraph that is cut out of it.

    Args:
        placement: With nothing quantized but ops of the subgraph.
        content: The subgraph.
        planner: Of the model.
    """
    inside = frozenset(content.nodes)
    position = {tensor: number for number, tensor in enumerate(content.outputs)}
    edges = set()
    for edge in planner.index.effective(placement):
        if edge.node in inside:
            edges.add(edge)
        elif edge.tensor in position:
            edges.add(Edge(edge.tensor, "", position[edge.tensor]))
    return Placement(frozenset(edges))


# Ops through which a quantized result stays one until the next kernel reads it.
_PASSING = frozenset({"Clip", "Relu"})
# What a subgraph costs in a model may be more than what it costs alone by a part like this.
_NEAR = 1.25


@dataclass(frozen=True)
class QuantizableGroup:
    """A fusion group with the way in which it would be quantized.

    Attributes:
        group: Number of the fusion group.
        subgraph: Number of its subgraph.
        content: The group in canonical form.
        scheme: How it is quantized, if it is.
        rival: Another way that costs hardly more, if there is one.
        times: The subgraph's times.
        inputs: Those of its inputs that it then reads quantized.
        outputs: Those of its outputs that it then makes quantized, or could at no cost.
        is_passthrough: Whether nothing in it computes: it is quantized only if what it reads is.
    """

    group: int
    subgraph: int
    content: Content
    scheme: Scheme
    rival: Scheme | None
    times: SubgraphTimes
    inputs: frozenset[str]
    outputs: frozenset[str]
    is_passthrough: bool

    @property
    def as_float(self) -> SchemeTimes:
        """Its times as float."""
        return self.times.forms[0]

    @property
    def quantized(self) -> SchemeTimes:
        """Its times with the scheme."""
        found = self.times.form(self.scheme.name)
        assert found is not None
        return found

    def conversion_ms(self, tensor: str) -> float:
        """What converting a tensor at its border costs, with the change of layout."""
        return self._at_border(self.quantized.conversion_ms, tensor) + self._at_border(
            self.quantized.layout_ms, tensor
        )

    def float_layout_ms(self, tensor: str) -> float:
        """What a change of layout at its border costs as float."""
        return self._at_border(self.as_float.layout_ms, tensor)

    def _at_border(self, values: Sequence[float], tensor: str) -> float:
        """One of the numbers that `SchemeTimes` has by border."""
        borders = (*self.content.inputs, *self.content.outputs)
        return dict(zip(borders, values, strict=False)).get(tensor, 0.0)


def make_units(
    subgraphs: Sequence[Subgraph], times: Mapping[str, SubgraphTimes], planner: QuantizationPlanner
) -> list[QuantizableGroup]:
    """A unit for each group of each subgraph that could be quantized in some way.

    Args:
        subgraphs: The subgraphs.
        times: What was found out about them, by key.
        planner: What can be quantized.
    """
    units = []
    for number, subgraph in enumerate(subgraphs):
        found = times.get(subgraph.key)
        if found is None or found.form(NONE) is None:
            continue
        ranked = _ranked(subgraph, found, planner)
        if not ranked:
            continue
        scheme, rival = ranked[0], ranked[1] if len(ranked) > 1 else None
        for group, content in zip(subgraph.groups, subgraph.contents, strict=True):
            reads, makes = _borders(scheme, content, planner)
            moves = scheme.form is not Form.WEIGHTS and not any(
                name in planner.compute for name in scheme.nodes(content)
            )
            units.append(
                QuantizableGroup(group, number, content, scheme, rival, found, reads, makes, moves)
            )
    return sorted(units, key=lambda unit: unit.group)


def _ranked(subgraph: Subgraph, times: SubgraphTimes, planner: QuantizationPlanner) -> list[Scheme]:
    """The scheme that costs least, and those that may cost less in the model, best first.

    Costs are taken half way between float and quantized neighbours.
    """

    def cost_ms(scheme: Scheme) -> float:
        form, plain = times.form(scheme.name), times.forms[0]
        if form is None:
            return math.inf
        if scheme.form is Form.ACTIVATIONS and form.inside_ms >= plain.inside_ms:
            return math.inf  # the engine has left the weights as they are
        reads, makes = _borders(scheme, subgraph.content, planner)
        borders = (*subgraph.content.inputs, *subgraph.content.outputs)
        usual = times.form(FULL) or form
        converted = zip(borders, form.conversion_ms, usual.conversion_ms, strict=True)
        # Where it is quantized, a float neighbour pays; where it is float, a quantized one does.
        paid = sum(own if tensor in reads | makes else other for tensor, own, other in converted)
        return form.inside_ms + paid / 2.0

    costs = {scheme: cost_ms(scheme) for scheme in subgraph.schemes}
    ranked = sorted((s for s in costs if costs[s] < math.inf), key=costs.__getitem__)
    return [
        scheme
        for scheme in ranked
        if scheme == ranked[0]
        or (scheme.form is Form.WHOLE and costs[scheme] <= _NEAR * costs[ranked[0]])
    ]


def _borders(
    scheme: Scheme, content: Content, planner: QuantizationPlanner
) -> tuple[frozenset[str], frozenset[str]]:
    """What a group reads and makes quantized."""
    if scheme.form is Form.WEIGHTS:
        return frozenset(), frozenset()
    places = placement_inside(scheme.placement(content, planner), content, planner)
    reads = frozenset(edge.tensor for edge in places.edges if edge.node) & set(content.inputs)
    written = {edge.tensor for edge in places.edges if not edge.node}
    names = set(scheme.nodes(content))
    made = {tensor for tensor in content.outputs if _is_made_by(tensor, names, planner)}
    return reads, frozenset(written | made)


def _is_made_by(tensor: str, names: Collection[str], planner: QuantizationPlanner) -> bool:
    """Whether a tensor is the result of a quantized op whose kernel can write either form."""
    index = planner.index
    node = index.value[tensor].producer()
    while node is not None and node.name not in names and node.op_type in _PASSING:
        source = node.inputs[0]
        node = source.producer() if source is not None else None
    if node is None or node.name not in names:
        return False
    return role_rule(planner.dialect, node).output is not Output.REQUIRED


@dataclass(frozen=True)
class Choices:
    """Units as the groups of a search: parts of them, so that other choices can be said, too.

    Attributes:
        groups: What a `Space` is made of.
        of_unit: By unit, the groups that are quantized with its scheme.
        around: By unit, those and the others in its place, which other schemes quantize.
        of_rival: By unit, the groups that are quantized with the scheme's rival; empty if it has
            none.
    """

    groups: tuple[Group, ...] = ()
    of_unit: tuple[State, ...] = ()
    around: tuple[State, ...] = ()
    of_rival: tuple[State, ...] = ()

    def state(self, units: Iterable[int]) -> State:
        """The groups of some units, each with its scheme."""
        return frozenset().union(*(self.of_unit[number] for number in units))

    def units(self, state: State) -> State:
        """The units of which anything is quantized in a choice."""
        return frozenset(n for n, groups in enumerate(self.around) if groups & state)

    def otherwise(self, state: State) -> State:
        """Those of them that are quantized in another way than by their scheme."""
        pairs = zip(self.of_unit, self.around, strict=True)
        return frozenset(
            n for n, (own, groups) in enumerate(pairs) if groups & state and groups & state != own
        )

    def with_schemes(self, state: State, units: Iterable[int]) -> State:
        """A choice in which units are quantized by their schemes, however they were before."""
        chosen = list(units)
        others = state.difference(*(self.around[number] for number in chosen))
        return others | self.state(chosen)

    def with_rivals(self, state: State, units: Iterable[int]) -> State:
        """A choice in which units are quantized by the rivals of their schemes."""
        chosen = list(units)
        others = state.difference(*(self.around[number] for number in chosen))
        return others.union(*(self.of_rival[number] for number in chosen))

    def flipped(self, state: State, units: Iterable[int]) -> State:
        """A choice in which units that are quantized are float, and the others have their scheme.

        All else stays what it is.
        """
        quantized = self.units(state)
        changed = set(state)
        for number in units:
            if number in quantized:
                changed -= self.around[number]
            else:
                changed |= self.of_unit[number]
        return frozenset(changed)


def make_choices(
    units: Sequence[QuantizableGroup],
    subgraphs: Sequence[Subgraph],
    times: Mapping[str, SubgraphTimes],
    planner: QuantizationPlanner,
    ruled: Collection[str],
) -> Choices:
    """Cut each unit's group into parts that its scheme, the rules and everything consist of.

    Args:
        units: The units.
        subgraphs: The subgraphs that they are groups of.
        times: What was found out about subgraphs. The groups of those that nothing is known of, or
            that could not be timed alone, are choices, too, that belong to no unit.
        planner: What can be quantized.
        ruled: Names of the ops that placement rules would quantize.
    """
    groups: list[Group] = []
    of_unit: list[State] = []
    around: list[State] = []
    of_rival: list[State] = []
    for unit in units:
        first = len(groups)
        key, scheme = unit.times.key, unit.scheme
        is_whole = scheme.form is Form.WHOLE
        best = frozenset(scheme.nodes(unit.content)) if is_whole else frozenset()
        rival = frozenset(unit.rival.nodes(unit.content)) if unit.rival is not None else frozenset()
        parts = _parts(subgraphs[unit.subgraph], unit.content, planner, (best, rival, ruled))
        groups += (_group(key, role, names, planner) for role, names in enumerate(parts))
        if not is_whole:
            names = scheme.nodes(unit.content)
            groups.append(_group(key, len(parts), names, planner, scheme.form))
        added = range(first, len(groups))
        own = (
            n for n in added if groups[n].form is not Form.WHOLE or best.issuperset(groups[n].nodes)
        )
        of_unit.append(frozenset(own))
        around.append(frozenset(added))
        others = (n for n in added if groups[n].form is Form.WHOLE and groups[n].nodes[0] in rival)
        of_rival.append(frozenset(others))
    for subgraph in subgraphs:
        found = times.get(subgraph.key)
        if found is not None and found.form(NONE) is not None:
            continue
        for content in subgraph.contents:
            parts = _parts(subgraph, content, planner, (ruled,))
            groups += (_group(subgraph.key, n, names, planner) for n, names in enumerate(parts))
    return Choices(tuple(groups), tuple(of_unit), tuple(around), tuple(of_rival))


def _parts(
    subgraph: Subgraph,
    content: Content,
    planner: QuantizationPlanner,
    sets: Sequence[Collection[str]],
) -> list[tuple[str, ...]]:
    """What can be quantized in a group, cut so that each set of ops consists of parts."""
    full = next(scheme for scheme in subgraph.schemes if scheme.name == FULL).nodes(content)
    parts: dict[tuple[bool, ...], list[str]] = {}
    for name in sorted(full, key=planner.index.position.__getitem__):
        parts.setdefault(tuple(name in each for each in sets), []).append(name)
    return [tuple(names) for names in parts.values()]


def _group(
    key: str,
    role: int,
    names: Sequence[str],
    planner: QuantizationPlanner,
    form: Form = Form.WHOLE,
) -> Group:
    types = [planner.index.node[name].op_type for name in names]
    lead = next((each for each in types if each in WEIGHTED_OPS), types[0])
    return Group(key, role, lead, tuple(names), key, form)
