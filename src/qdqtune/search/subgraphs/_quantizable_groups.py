"""The choices of subgraph mode: each fusion group that can be quantized, in its best way.

What is profiled are the subgraphs that are distinct by content, with a few schemes each.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._dialect import Output
from qdqtune.qdq._op_units import role_rule
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._placement import Edge, Placement
from qdqtune.records._tuning import SchemeTimes, SubgraphTimes
from qdqtune.search._space import Form
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
DYNAMIC = "dynamic"
DYNAMIC_AND_FULL = "dynamic and full"
UNFUSED = "unfused"
DYNAMIC_AND_UNFUSED = "dynamic and unfused"

# With more ops in one subgraph, leaving out one makes too little of a difference.
_MOST_COMPUTE_OPS = 3

_SAME = "it is the same as {}"
_TOO_SLOW = "builds take so long that only the most promising schemes are tried"
_NO_WEIGHTS = "{} gains nothing from the weights of these ops alone"
_NO_ACTIVATIONS = "{} has no integer kernel for these ops without quantized weights"
_NO_DYNAMIC = "{} quantizes no input of these ops at run time"
_NO_UNFUSED = "{} fuses no sum with a layer normalization in it, or gains from it"
_NO_REST = "nothing else in it can be quantized"


@dataclass(frozen=True)
class Scheme:
    """One way to quantize a subgraph.

    Attributes:
        name: What it is called.
        places: Which nodes of the subgraph, by their places in canonical order.
        forms: What of each of them.
    """

    name: str
    places: tuple[int, ...]
    forms: tuple[Form, ...]

    @classmethod
    def of(cls, name: str, forms: Mapping[Form, Collection[int]]) -> Scheme:
        """A scheme from the places of each form."""
        found = {place: form for form, places in forms.items() for place in places}
        return cls(name, tuple(sorted(found)), tuple(found[place] for place in sorted(found)))

    @property
    def is_borderless(self) -> bool:
        """Whether it reads and writes floats: its neighbours don't matter."""
        return not any(form.needs_ranges for form in self.forms)

    def nodes(self, content: Content, *forms: Form) -> tuple[str, ...]:
        """The nodes that have one of these forms in one of the subgraph's groups; all without."""
        pairs = zip(self.places, self.forms, strict=True)
        return tuple(content.nodes[place] for place, form in pairs if not forms or form in forms)

    def placement(self, content: Content, planner: QuantizationPlanner) -> Placement:
        """The placement in the model if nothing but what the subgraph reads is quantized."""
        return planner.placement(
            self.nodes(content, Form.WHOLE, Form.ACTIVATIONS),
            self.nodes(content, Form.WEIGHTS),
            quantized_before=content.inputs,
            float_weights=self.nodes(content, Form.ACTIVATIONS),
            dynamic=self.nodes(content, Form.DYNAMIC),
            unfused=self.nodes(content, Form.UNFUSED),
        )


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
    may: Mapping[Form, Collection[str]],
    *,
    few: bool = False,
) -> list[Subgraph]:
    """The distinct subgraphs that something can be quantized in, in the graph's order.

    Args:
        index: The model, with the size of every tensor.
        groups: The fusion groups.
        planner: What can be quantized.
        ruled: Names of the ops that placement rules would quantize.
        may: Names of the ops that were asked for and may be quantized as a whole (those have
            ranges), be dynamic or be unfused.
        few: Whether only the most promising schemes are worth a build.
    """
    found: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[tuple[int, Content]]] = {}
    allowed = frozenset().union(*may.values())
    for group in groups:
        if allowed.isdisjoint(group.nodes):
            continue
        content = content_of(index, group.nodes)
        whole = may.get(Form.WHOLE, ())
        full = tuple(place for place, name in enumerate(content.nodes) if name in whole)
        by_rules = tuple(place for place in full if content.nodes[place] in ruled)
        found.setdefault((content.key, full, by_rules), []).append((group.number, content))
    subgraphs = []
    for (key, full, by_rules), same in found.items():
        numbers, contents = zip(*same, strict=True)
        drafts = _SchemeDrafts(contents, planner, full, by_rules, may)
        schemes, skipped = drafts.all(few=few)
        # It has been this since before there were other forms; they follow from the content.
        name = f"{key}-{'.'.join(map(str, full))}-{'.'.join(map(str, by_rules))}"
        if schemes:
            subgraphs.append(Subgraph(name, tuple(numbers), contents, schemes, skipped))
    return subgraphs


class _SchemeDrafts:
    """The schemes of one subgraph.

    Args:
        contents: The groups that it stands for.
        planner: What can be quantized.
        full: Places of the ops that may be quantized as a whole.
        ruled: Those that placement rules would quantize.
        may: As `find_subgraphs` takes it.
    """

    def __init__(
        self,
        contents: Sequence[Content],
        planner: QuantizationPlanner,
        full: tuple[int, ...],
        ruled: tuple[int, ...],
        may: Mapping[Form, Collection[str]],
    ) -> None:
        self._content = contents[0]
        self._planner = planner
        self._full = full
        self._ruled = ruled
        # Where the engine quantizes inputs by itself, that is the scheme of weights.
        dynamic = frozenset(planner.dynamic).intersection(may.get(Form.DYNAMIC, ()))
        self._dynamic = _common(contents, dynamic)
        sums = [_fused_inside(planner.index, each, may.get(Form.UNFUSED, ())) for each in contents]
        self._unfused = _common(contents, frozenset().union(*sums))

    def all(self, *, few: bool) -> tuple[tuple[Scheme, ...], dict[str, str]]:
        """What to try, and what not, with the reason."""
        schemes: list[Scheme] = []
        skipped: dict[str, str] = {}
        parts = (self._whole(few=few), self._parts_of_ops(), self._at_run_time(few=few))
        for name, found in (each for part in parts for each in part):
            if isinstance(found, str):
                skipped[name] = found
            else:
                schemes.append(found)
        return tuple(schemes), skipped

    def _whole(self, *, few: bool) -> Iterator[tuple[str, Scheme | str]]:
        """Ops as a whole: all, those of the rules, and all but one."""
        if not self._full:
            return
        yield FULL, Scheme.of(FULL, {Form.WHOLE: self._full})
        by_rules = Scheme.of(RULES, {Form.WHOLE: self._ruled})
        known = {self._full}
        if self._ruled == self._full:
            yield RULES, _SAME.format(FULL)
        elif not by_rules.placement(self._content, self._planner):
            yield RULES, _SAME.format(NONE)
        else:
            yield RULES, by_rules
            known.add(self._ruled)
        if few:
            yield WITHOUT_ONE, _TOO_SLOW
            return
        for scheme in _without_one(self._content, self._planner, self._full, known):
            yield scheme.name, scheme

    def _parts_of_ops(self) -> Iterator[tuple[str, Scheme | str]]:
        """Only the weights of ops, and all but them."""
        content, planner, dialect = self._content, self._planner, self._planner.dialect
        weighted = [place for place in self._full if planner.weight_edges(content.nodes[place])]
        types = {place: planner.index.node[content.nodes[place]].op_type for place in weighted}
        stored = tuple(place for place in weighted if types[place] in dialect.weights_only)
        if stored:
            yield WEIGHTS, Scheme.of(WEIGHTS, {Form.WEIGHTS: stored})
        else:
            yield WEIGHTS, _NO_WEIGHTS.format(dialect.name)
        if weighted and dialect.activations_only.issuperset(types.values()):
            yield ACTIVATIONS, Scheme.of(ACTIVATIONS, {Form.ACTIVATIONS: self._full})
        else:
            yield ACTIVATIONS, _NO_ACTIVATIONS.format(dialect.name)

    def _at_run_time(self, *, few: bool) -> Iterator[tuple[str, Scheme | str]]:
        """Dynamic products, alone and with the rest as a whole, and sums that are not fused."""
        dynamic, unfused, dialect = self._dynamic, self._unfused, self._planner.dialect
        rest = tuple(place for place in self._full if place not in dynamic)
        if not dynamic:
            yield DYNAMIC, _NO_DYNAMIC.format(dialect.name)
        else:
            yield DYNAMIC, Scheme.of(DYNAMIC, {Form.DYNAMIC: dynamic})
            mixed = Scheme.of(DYNAMIC_AND_FULL, {Form.DYNAMIC: dynamic, Form.WHOLE: rest})
            if not any(self._content.nodes[place] in self._planner.compute for place in rest):
                yield DYNAMIC_AND_FULL, _NO_REST
            else:
                yield DYNAMIC_AND_FULL, _TOO_SLOW if few else mixed
        if not unfused:
            yield UNFUSED, _NO_UNFUSED.format(dialect.name)
            return
        yield UNFUSED, Scheme.of(UNFUSED, {Form.UNFUSED: unfused})
        if dynamic:
            both = {Form.DYNAMIC: dynamic, Form.UNFUSED: unfused}
            yield DYNAMIC_AND_UNFUSED, Scheme.of(DYNAMIC_AND_UNFUSED, both)


def _common(contents: Sequence[Content], names: Collection[str]) -> tuple[int, ...]:
    """The places whose nodes are among these names in every group."""
    places = range(len(contents[0].nodes))
    return tuple(p for p in places if all(content.nodes[p] in names for content in contents))


def _fused_inside(index: GraphIndex, content: Content, sums: Collection[str]) -> frozenset[str]:
    """Those sums of a subgraph that are read in it: fused with what is outside, they can't tell."""
    inside = set(content.nodes)
    return frozenset(
        name
        for name in inside.intersection(sums)
        if any(user.name in inside for user, _ in index.node[name].outputs[0].uses())
    )


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
            schemes.append(Scheme.of(f"{WITHOUT_ONE} {op_type} {left}", {Form.WHOLE: places}))
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
    dynamic, unfused = placement.dynamic & inside, placement.unfused & inside
    return Placement(frozenset(edges), frozenset(), dynamic, unfused)


# Forms in which ops read and write quantized values.
_STATIC = tuple(form for form in Form if form.needs_ranges)
# Ops through which a quantized result stays one until the next kernel reads it.
_PASSING = frozenset({"Clip", "Relu"})
# What a subgraph costs in a model may be more than what it costs alone by a part like this.
_NEAR = 1.25


@dataclass(frozen=True)
class QuantizableGroup:
    """A fusion group with the ways in which it would be quantized.

    Attributes:
        group: Number of the fusion group.
        subgraph: Number of its subgraph.
        content: The group in canonical form.
        times: The subgraph's times.
        scheme: How it is quantized at its borders, if it is; None if that is not possible.
        rival: Another such way that costs hardly more, if there is one.
        borderless: The best way in which it reads and writes floats, if there is one.
        borderless_rival: Another such way that costs hardly more, if there is one.
        inputs: Those of its inputs that it reads quantized with its scheme.
        outputs: Those of its outputs that it then makes quantized, or could at no cost.
        is_passthrough: Whether nothing in it computes: it is quantized only if what it reads is.
    """

    group: int
    subgraph: int
    content: Content
    times: SubgraphTimes
    scheme: Scheme | None = None
    rival: Scheme | None = None
    borderless: Scheme | None = None
    borderless_rival: Scheme | None = None
    inputs: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()
    is_passthrough: bool = False

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """All the ways in which it may be quantized."""
        found = (self.scheme, self.rival, self.borderless, self.borderless_rival)
        return tuple(scheme for scheme in found if scheme is not None)

    @property
    def as_float(self) -> SchemeTimes:
        """Its times as float."""
        return self.times.forms[0]

    def times_with(self, scheme: Scheme | None) -> SchemeTimes | None:
        """Its times with one of its schemes."""
        return self.times.form(scheme.name) if scheme is not None else None

    def conversion_ms(self, tensor: str) -> float:
        """What converting a tensor at its border costs with its scheme, with a change of layout."""
        quantized = self.times_with(self.scheme)
        if quantized is None:
            return 0.0
        return self._at_border(quantized.conversion_ms, tensor) + self._at_border(
            quantized.layout_ms, tensor
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
        times: What was found out about them, by key. Schemes that have none are not used: an
            earlier version may not have known them.
        planner: What can be quantized.
    """
    units = []
    for number, subgraph in enumerate(subgraphs):
        found = times.get(subgraph.key)
        if found is None or found.form(NONE) is None:
            continue
        ranked = _ranked(subgraph, found, planner)
        scheme, rival = _first_two(each for each in ranked if not each.is_borderless)
        alone, alone_rival = _first_two(each for each in ranked if each.is_borderless)
        for group, content in zip(subgraph.groups, subgraph.contents, strict=True):
            unit = QuantizableGroup(
                group, number, content, found, scheme, rival, alone, alone_rival
            )
            if scheme is not None:
                reads, makes = _borders(scheme, content, planner)
                moves = planner.compute.keys().isdisjoint(scheme.nodes(content, *_STATIC))
                unit = replace(unit, inputs=reads, outputs=makes, is_passthrough=moves)
            if unit.schemes:
                units.append(unit)
    return sorted(units, key=lambda unit: unit.group)


def _first_two(schemes: Iterable[Scheme]) -> tuple[Scheme | None, Scheme | None]:
    first, second, *_ = (*schemes, None, None)
    return first, second


def _ranked(subgraph: Subgraph, times: SubgraphTimes, planner: QuantizationPlanner) -> list[Scheme]:
    """Of each kind, the scheme that costs least, and those that may cost less in the model.

    The best come first. Costs are taken half way between float and quantized neighbours.
    """

    def cost_ms(scheme: Scheme) -> float:
        form, plain = times.form(scheme.name), times.forms[0]
        if form is None:
            return math.inf
        if Form.ACTIVATIONS in scheme.forms and form.inside_ms >= plain.inside_ms:
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
    best: dict[bool, Scheme] = {}
    for scheme in ranked:
        best.setdefault(scheme.is_borderless, scheme)

    def may_cost_less(scheme: Scheme) -> bool:
        is_near = costs[scheme] <= _NEAR * costs[best[scheme.is_borderless]]
        return is_near and Form.ACTIVATIONS not in scheme.forms

    return [scheme for scheme in ranked if scheme in best.values() or may_cost_less(scheme)]


def _borders(
    scheme: Scheme, content: Content, planner: QuantizationPlanner
) -> tuple[frozenset[str], frozenset[str]]:
    """What a group reads and makes quantized."""
    if scheme.is_borderless:
        return frozenset(), frozenset()
    places = placement_inside(scheme.placement(content, planner), content, planner)
    reads = frozenset(edge.tensor for edge in places.edges if edge.node) & set(content.inputs)
    written = {edge.tensor for edge in places.edges if not edge.node}
    names = set(scheme.nodes(content, *_STATIC))
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
