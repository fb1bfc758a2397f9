"""What is profiled: subgraphs that are distinct by content.

The schemes that each is tried with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._placement import Edge, Placement
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
