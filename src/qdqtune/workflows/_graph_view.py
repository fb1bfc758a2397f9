"""A model's graph as a report draws it: nodes with their precision, edges, and areas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._layout import lay_out
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._inputs import shape_text
from qdqtune.records._placement import Placement
from qdqtune.records._report import (
    BORDER,
    DYNAMIC,
    FLOAT,
    QUANTIZED,
    UNFUSED,
    WEIGHTS,
    EdgeView,
    GraphView,
    NodeView,
)

# Of a larger graph, a node stands for all nodes of an area, or for nodes that follow each other.
_MOST_NODES = 3000


@dataclass(frozen=True)
class NodeFacts:
    """What is known about the nodes of a model, by name.

    Attributes:
        reasons: Why each is quantized or float.
        areas: Names of regions or fusion groups, each with its nodes.
        layers: Number of each node's layer.
        sqnr_db: SQNR of results if only the node's own quantization counts.
        in_integers: Those that are float in the placement, and that the engine runs in integers.
    """

    reasons: Mapping[str, str] = field(default_factory=dict)
    areas: Sequence[tuple[str, Sequence[str]]] = ()
    layers: Mapping[str, int] = field(default_factory=dict)
    sqnr_db: Mapping[str, float] = field(default_factory=dict)
    in_integers: Set[str] = frozenset()


def forms_of(planner: QuantizationPlanner, placement: Placement) -> dict[str, str]:
    """Return the form of every node in a placement; fused activations follow what they read."""
    quantized, stored = planner.quantized(placement), planner.stored(placement)
    known = {*planner.units, *planner.left_float}
    forms: dict[str, str] = {}
    for node in planner.index.nodes:
        name = node.name or ""
        producer = node.inputs[0].producer() if node.inputs and node.inputs[0] else None
        before = forms.get(producer.name or "", FLOAT) if producer is not None else FLOAT
        if name in placement.dynamic:
            forms[name] = DYNAMIC
        elif name in placement.unfused:
            forms[name] = UNFUSED
        elif name in quantized or (name not in known and before == QUANTIZED):
            forms[name] = QUANTIZED
        else:
            forms[name] = WEIGHTS if name in stored else FLOAT
    return forms


def graph_view(planner: QuantizationPlanner, placement: Placement, facts: NodeFacts) -> GraphView:
    """Describe a model with a placement for drawing.

    Args:
        planner: Has the model, with shapes, and knows what can be quantized.
        placement: What is quantized.
        facts: What is known about its nodes.
    """
    index, forms = planner.index, forms_of(planner, placement)
    forms |= dict.fromkeys(facts.in_integers, QUANTIZED)
    reasons = {reason: n for n, reason in enumerate(dict.fromkeys(facts.reasons.values()))}
    area_of = {name: n for n, (_, names) in enumerate(facts.areas) for name in names}
    inputs = [
        value for value in index.model.graph.inputs if not index.is_constant(value.name or "")
    ]
    nodes = [
        NodeView(value.name or "", "Input", (0.0, 0.0), BORDER, shape=_shape(index, value.name))
        for value in inputs
    ]
    source_of = {value.name or "": number for number, value in enumerate(inputs)}
    for node in index.nodes:
        name, results = node.name or "", [value.name or "" for value in node.outputs]
        reason = facts.reasons.get(name)
        source_of |= dict.fromkeys(results, len(nodes))
        nodes.append(
            NodeView(
                name, node.op_type, (0.0, 0.0), forms[name],
                reasons[reason] if reason is not None else -1,
                area_of.get(name, -1), facts.layers.get(name, -1),
                _shape(index, results[0]) if results else "", facts.sqnr_db.get(name),
            )
        )  # fmt: skip
    outputs = [
        (number, NodeView(value.name or "", "Output", (0.0, 0.0), BORDER))
        for value in index.model.graph.outputs
        if (number := source_of.get(value.name or "")) is not None
    ]
    edges = _edges(index, placement, nodes, source_of)
    for source, view in outputs:
        edges[source, len(nodes)] = EdgeView(
            source, len(nodes), border=nodes[source].form == QUANTIZED
        )
        nodes.append(view)
    areas = tuple(name for name, _ in facts.areas)
    if len(nodes) > _MOST_NODES:
        nodes, edges = _contracted(nodes, edges.values(), areas)
    if len(nodes) > _MOST_NODES:
        size = -(-len(nodes) // _MOST_NODES)
        runs = [replace(node, area=number // size) for number, node in enumerate(nodes)]
        nodes, edges = _contracted(runs, edges.values(), [node.name for node in nodes[::size]])
        nodes, areas = [replace(node, area=-1) for node in nodes], ()
    layout = lay_out(len(nodes), list(edges))
    return GraphView(
        nodes=tuple(
            replace(node, place=place) for node, place in zip(nodes, layout.nodes, strict=True)
        ),
        edges=tuple(
            replace(edge, bends=bends)
            for edge, bends in zip(edges.values(), layout.bends, strict=True)
        ),
        areas=areas,
        reasons=tuple(reasons),
        width=layout.width,
        height=layout.height,
    )


def _shape(index: GraphIndex, tensor: str | None) -> str:
    dims, dtype = index.shape(tensor or ""), index.dtype(tensor or "")
    shape = shape_text(dims) if dims is not None else ""
    return f"{shape} {dtype.name.lower() if dtype is not None else ''}".strip()


def _edges(
    index: GraphIndex,
    placement: Placement,
    nodes: Sequence[NodeView],
    source_of: Mapping[str, int],
) -> dict[tuple[int, int], EdgeView]:
    """Return the edges between nodes, one for each pair of them."""
    seen = index.effective(placement)
    quantized = {(edge.tensor, edge.node) for edge in seen}
    target_of = {node.name: n for n, node in enumerate(nodes) if node.form != BORDER}
    edges: dict[tuple[int, int], EdgeView] = {}
    for node in index.nodes:
        target = target_of[node.name or ""]
        for tensor in index.reads(node):
            source = source_of.get(tensor)
            if source is None or source >= target:
                continue
            is_quantized = (tensor, node.name or "") in quantized
            comes, goes = nodes[source].form == QUANTIZED, nodes[target].form == QUANTIZED
            is_border = not comes if is_quantized else comes and not goes
            edges[source, target] = EdgeView(source, target, is_quantized, is_border)
    return edges


def _contracted(
    nodes: Sequence[NodeView], edges: Iterable[EdgeView], areas: Sequence[str]
) -> tuple[list[NodeView], dict[tuple[int, int], EdgeView]]:
    """Return a graph with one node for each area."""
    keys = [node.area if node.area >= 0 else -2 - place for place, node in enumerate(nodes)]
    members: dict[int, list[NodeView]] = {}
    for key, node in zip(keys, nodes, strict=True):
        members.setdefault(key, []).append(node)
    numbers = {key: number for number, key in enumerate(members)}
    found = []
    for key, inside in members.items():
        forms = {node.form for node in inside}
        form = QUANTIZED if QUANTIZED in forms else next(iter(sorted(forms - {FLOAT})), FLOAT)
        name = areas[key] if key >= 0 else inside[0].name
        count = sum(node.nodes for node in inside)
        label = inside[0].op_type.partition(" +")[0] + (f" +{count - 1}" if count > 1 else "")
        found.append(replace(inside[0], name=name, op_type=label, form=form, nodes=count))
    joined: dict[tuple[int, int], EdgeView] = {}
    for edge in edges:
        source, target = numbers[keys[edge.source]], numbers[keys[edge.target]]
        if source < target:
            joined[source, target] = replace(edge, source=source, target=target)
    return found, joined
