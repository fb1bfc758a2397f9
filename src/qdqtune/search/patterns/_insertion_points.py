"""Insertion points for Q/DQ pairs, relative to a pattern and resolved in one model.

Also which inputs and outputs can benefit from a pair on any engine, and why others can't.
"""

from __future__ import annotations

import contextlib
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import onnx
import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import DEQUANTIZE, QDQ_OPS, WEIGHTED_OPS, is_op, is_standard
from qdqtune.qdq.dialects import dialects
from qdqtune.records._errors import InvalidSchemeError
from qdqtune.records._placement import Edge, Placement
from qdqtune.search.regions._canonical import CanonicalRegion, canonical_region
from qdqtune.search.regions._region import Region

#: Smaller tensors cost more to quantize than they can save.
LEAST_ELEMENTS = 8


@functools.cache
def _fused_activations() -> frozenset[str]:
    return frozenset[str]().union(*(each.fused_activations for each in dialects().values()))


@functools.cache
def _kernel_inputs() -> dict[str, frozenset[int] | None]:
    """By op type: the inputs that some engine's integer kernel reads quantized; None for all."""
    found: dict[str, frozenset[int] | None] = {}
    for dialect in dialects().values():
        for op_type, rule in dialect.rules.items():
            known = found.get(op_type, frozenset())
            both = None if known is None or rule.inputs is None else known.union(rule.inputs)
            found[op_type] = both
    return found


# Ops that read a table of weights, which may be worth storing quantized.
_TABLE_OPS = ("Gather",)


def activation_input(index: GraphIndex, node: ir.Node) -> int:
    """Return the input of a weighted op that carries the point; the other operand is included."""
    first = node.inputs[0] if node.inputs else None
    return 1 if first is not None and index.is_constant(first.name or "") else 0


def why_not(index: GraphIndex, node_position: int, input_position: int) -> str:
    """Return why a node's input is not an insertion point; empty if it is one.

    Args:
        index: The graph.
        node_position: Position of the node in the index.
        input_position: Position of the input, as in the model.
    """
    if not 0 <= node_position < len(index.nodes):
        return f"there is no node {node_position}"
    node = index.nodes[node_position]
    value = node.inputs[input_position] if 0 <= input_position < len(node.inputs) else None
    if value is None or not value.name:
        return f"{node.op_type} has no input {input_position} here"
    if not is_standard(node) or node.op_type not in _kernel_inputs():
        return f"no engine has an integer kernel for {node.op_type}"
    weighted = node.op_type in WEIGHTED_OPS
    if weighted and input_position == 2:
        return "a bias becomes an integer together with the op"
    positions = _kernel_inputs()[node.op_type]
    if positions is not None and input_position not in positions:
        return f"{node.op_type} reads its input {input_position} as it is"
    if weighted and input_position != activation_input(index, node):
        return f"it comes along with input {activation_input(index, node)}"
    if index.is_constant(value.name) and not (is_op(node, *_TABLE_OPS) and input_position == 0):
        return "a constant doesn't pay on its own"
    return _why_not_tensor(index, value)


def why_not_output(index: GraphIndex, node_position: int, output_position: int) -> str:
    """Return why a node's output is not an insertion point; empty if it is one."""
    if not 0 <= node_position < len(index.nodes):
        return f"there is no node {node_position}"
    node = index.nodes[node_position]
    value = node.outputs[output_position] if 0 <= output_position < len(node.outputs) else None
    if value is None or not value.name:
        return f"{node.op_type} has no output {output_position} here"
    reason = _why_not_tensor(index, value)
    if reason:
        return reason
    readers = [edge for edge in index.readers(value.name) if edge.node]
    if not readers:
        return "no node reads it"
    has_kernel = is_standard(node) and node.op_type in _kernel_inputs()
    if has_kernel and all(is_op(index.node[e.node], *_fused_activations()) for e in readers):
        return "it would part the op from the activation that fuses into it"
    if not has_kernel and all(_reason(index, e.node, e.position) for e in readers):
        return "neither its maker nor a reader has an integer kernel"
    return ""


def _reason(index: GraphIndex, node: str, position: int) -> str:
    """Like `why_not`, but accepts the other operand of a weighted op, which is read as well."""
    if is_op(index.node[node], *WEIGHTED_OPS) and position < 2:
        return ""
    return why_not(index, index.position[node], position)


def _why_not_tensor(index: GraphIndex, value: ir.Value) -> str:
    name = value.name or ""
    if not index.is_float(name):
        dtype = index.dtype(name)
        kind = dtype.name.lower() if dtype is not None else "of unknown type"
        return f"the tensor is {kind}, not float"
    if is_op(value.producer(), DEQUANTIZE):
        return "it is quantized already"
    if is_op(value.producer(), "Constant", "ConstantOfShape"):
        return "a constant doesn't pay on its own"
    shape = index.shape(name)
    if shape is not None and None not in shape:
        elements = math.prod(dim for dim in shape if dim is not None)
        if elements < LEAST_ELEMENTS:
            return f"it has {elements} elements only"
    return ""


_RESOLVED_ELSEWHERE = "Was it resolved in another model?"


@dataclass(frozen=True)
class ResolvedInsertionPoint:
    """An insertion point in one model.

    Attributes:
        tensor_name: The tensor.
        node_index: Position in the index of the node that reads it; None for all readers.
        input_index: The input of that node.
    """

    tensor_name: str
    node_index: int | None = None
    input_index: int | None = None


def to_placement(index: GraphIndex, resolved: Iterable[ResolvedInsertionPoint]) -> Placement:
    """Return the placement that quantizes exactly these points.

    Raises:
        InvalidSchemeError: If the model has no such point.
    """
    edges: set[Edge] = set()
    outputs: set[str] = set()
    for point in resolved:
        if point.node_index is not None:
            edges.add(_edge(index, point))
        elif point.tensor_name not in index.value:
            raise InvalidSchemeError(f"{point}: the model has no such tensor.", _RESOLVED_ELSEWHERE)
        elif index.is_constant(point.tensor_name):  # no node produces it, so its readers are meant
            edges.update(edge for edge in index.readers(point.tensor_name) if edge.node)
        else:
            outputs.add(point.tensor_name)
    return Placement(frozenset(edges), frozenset(outputs))


def merge_resolved_insertion_points(
    graph: GraphIndex, resolved: Iterable[ResolvedInsertionPoint]
) -> set[ResolvedInsertionPoint]:
    """Replace the points of all edges of a tensor with one point for the tensor.

    Raises:
        InvalidSchemeError: If the model has no such point.
    """
    points = set(resolved)
    whole = {point.tensor_name for point in points if point.node_index is None}
    edges: dict[str, set[Edge]] = {}
    for point in points:
        if point.node_index is not None:
            edges.setdefault(point.tensor_name, set()).add(_edge(graph, point))
    for tensor, covered in edges.items():
        if covered.issuperset(graph.readers(tensor)) and not graph.is_constant(tensor):
            whole.add(tensor)
    kept = {point for point in points if point.tensor_name not in whole}
    return kept | {ResolvedInsertionPoint(tensor) for tensor in whole}


def _edge(index: GraphIndex, point: ResolvedInsertionPoint) -> Edge:
    position = -1 if point.input_index is None else point.input_index
    node = point.node_index
    if node is not None and 0 <= node < len(index.nodes):
        edge = Edge(point.tensor_name, index.nodes[node].name or "", position)
        if index.has(edge):
            return edge
    raise InvalidSchemeError(f"{point}: the model has no such reader.", _RESOLVED_ELSEWHERE)


_FOREIGN = "The scheme belongs to another pattern, or its file was changed."

Point = TypeVar("Point", bound="InsertionPoint")


class InsertionPoint(ABC):
    """An insertion point for a Q/DQ pair, relative to a pattern."""

    def resolve(self, region: Region, graph: GraphIndex) -> set[ResolvedInsertionPoint]:
        """Return its insertion points in one model; none if it can't pay off in this region.

        Raises:
            InvalidSchemeError: If the region's pattern has no such point.
        """
        return self.resolve_in(canonical_region(region, graph), graph)

    @abstractmethod
    def resolve_in(self, form: CanonicalRegion, index: GraphIndex) -> set[ResolvedInsertionPoint]:
        """Like `resolve`, for a region whose canonical form is already known."""

    @classmethod
    def collect_from_region(cls: type[Point], region: Region, graph: GraphIndex) -> list[Point]:
        """Collect all points of this kind that can pay off in a region, in canonical order."""
        return cls.collect_in(canonical_region(region, graph), graph)

    @classmethod
    def collect_in(cls: type[Point], form: CanonicalRegion, index: GraphIndex) -> list[Point]:
        """Like `collect_from_region`, for a region whose canonical form is already known."""
        return [point for point in cls.all_in(form) if point.resolve_in(form, index)]

    @classmethod
    @abstractmethod
    def all_in(cls: type[Point], form: CanonicalRegion) -> Iterable[Point]:
        """All points of this kind in a region, in canonical order, whether or not they pay off."""

    @property
    def key(self) -> tuple[int, ...]:
        """Its numbers, which sort; -1 where there is none."""
        return tuple(-1 if value is None else value for value in vars(self).values())

    def to_dict(self) -> dict[str, Any]:
        """Return the serialized form."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls: type[Point], body: Mapping[str, Any]) -> Point:
        """Parse the serialized form.

        Raises:
            InvalidSchemeError: If it is invalid.
        """
        with contextlib.suppress(TypeError):  # of names that are missing, or that there are not
            if isinstance(body, Mapping) and all(map(_is_place, body.values())):
                return cls(**body)
        names = [each.name for each in fields(cls)]  # type: ignore[arg-type]
        raise InvalidSchemeError(
            f"{body!r} is not an insertion point.", f"It has whole numbers for {names}."
        )


def _is_place(value: object) -> bool:
    return value is None or type(value) is int


@dataclass(frozen=True)
class NodeInputInsertionPoint(InsertionPoint):
    """One input of one of the region's own nodes.

    Attributes:
        node_index: The node, in canonical order.
        input_index: Its input, in canonical order.
    """

    node_index: int
    input_index: int

    def resolve_in(self, form: CanonicalRegion, index: GraphIndex) -> set[ResolvedInsertionPoint]:
        """Return the input, and the other operand of a weighted op."""
        node = _at(form.nodes, self.node_index, "node", self)
        position = _at(form.input_positions(self.node_index), self.input_index, "input", self)
        return edge_with_operand(index, node, position)

    @classmethod
    def all_in(cls, form: CanonicalRegion) -> Iterator[NodeInputInsertionPoint]:
        """Inputs of its own nodes."""
        for node_index in form.own_nodes:
            for input_index in range(len(form.input_positions(node_index))):
                yield cls(node_index, input_index)


@dataclass(frozen=True)
class ChildRegionInputInsertionPoint(InsertionPoint):
    """An input of a child: every edge in the child that reads the tensor and can pay off.

    Attributes:
        region_index: The child, in canonical order.
        input_index: Its input, in the order of the parent's pattern.
    """

    region_index: int
    input_index: int

    def resolve_in(self, form: CanonicalRegion, index: GraphIndex) -> set[ResolvedInsertionPoint]:
        """Return the edges into the child, with the other operands of weighted ops."""
        child = _at(form.children, self.region_index, "child", self)
        tensor = _at(child.inputs, self.input_index, "input", self)
        edges = form.edges_into_child(self.region_index, tensor)
        return set().union(*(edge_with_operand(index, node, position) for node, position in edges))

    @classmethod
    def all_in(cls, form: CanonicalRegion) -> Iterator[ChildRegionInputInsertionPoint]:
        """Inputs of children; a LEAF has none."""
        for region_index, child in enumerate(form.children):
            for input_index in range(len(child.inputs)):
                yield cls(region_index, input_index)


@dataclass(frozen=True)
class RegionOutputInsertionPoint(InsertionPoint):
    """A tensor that leaves the region, for all its consumers.

    Attributes:
        region_index: The child that produces it, in canonical order, if a child does.
        node_index: Otherwise the node that produces it, in canonical order.
        output_index: Which output of the child, or of the node.
    """

    region_index: int | None
    node_index: int | None
    output_index: int

    def resolve_in(self, form: CanonicalRegion, index: GraphIndex) -> set[ResolvedInsertionPoint]:
        """Return the tensor as a whole."""
        tensor = self._tensor(form, index)
        producer = index.value[tensor].producer()
        if tensor not in form.outputs or producer is None:
            raise InvalidSchemeError(f"{self} names a tensor that nobody outside sees.", _FOREIGN)
        output = list(producer.outputs).index(index.value[tensor])
        if why_not_output(index, index.position[producer.name or ""], output):
            return set()
        return {ResolvedInsertionPoint(tensor)}

    def _tensor(self, form: CanonicalRegion, index: GraphIndex) -> str:
        if (self.region_index is None) == (self.node_index is None):
            raise InvalidSchemeError(f"{self} needs either a child or a node.", _FOREIGN)
        if self.region_index is not None:
            child = _at(form.children, self.region_index, "child", self)
            return _at(child.outputs, self.output_index, "output", self)
        node = index.nodes[_at(form.nodes, self.node_index, "node", self)]
        names = tuple(value.name or "" for value in node.outputs)
        name = _at(names, self.output_index, "output", self)
        if not name:
            raise InvalidSchemeError(f"{self} names an output that is left out.", _FOREIGN)
        return name

    @classmethod
    def all_in(cls, form: CanonicalRegion) -> Iterator[RegionOutputInsertionPoint]:
        """Outputs of children, then those of its own nodes."""
        for region_index, child in enumerate(form.children):
            for output_index, tensor in enumerate(child.outputs):
                if tensor in form.outputs:
                    yield cls(region_index, None, output_index)
        for node_index, output_index in form.own_outputs:
            yield cls(None, node_index, output_index)


ChildRegionOutputInsertionPoint = RegionOutputInsertionPoint
"""The name of it in releases of other tools."""


POINT_KINDS: tuple[type[InsertionPoint], ...] = (
    NodeInputInsertionPoint,
    ChildRegionInputInsertionPoint,
    RegionOutputInsertionPoint,
)


def points_in(form: CanonicalRegion, index: GraphIndex) -> list[InsertionPoint]:
    """All points that can pay off in a region: node inputs, child inputs, region outputs."""
    return [point for kind in POINT_KINDS for point in kind.collect_in(form, index)]


def has_quantizable_operations(region: Region, graph: GraphIndex) -> bool:
    """Whether any node input in the region or its descendants is an insertion point."""
    return any(
        not why_not(graph, node, position)
        for node in region.get_region_nodes_and_descendants()
        for position in range(len(graph.nodes[node].inputs))
    )


def edge_with_operand(
    index: GraphIndex, node_position: int, position: int
) -> set[ResolvedInsertionPoint]:
    """Return one edge, with the other operand of a weighted op; nothing if it can't pay off."""
    if why_not(index, node_position, position):
        return set()
    node = index.nodes[node_position]
    positions = {position}
    if is_op(node, *WEIGHTED_OPS):
        positions.add(1 - activation_input(index, node))
    found = set()
    for each in positions:
        value = node.inputs[each] if each < len(node.inputs) else None
        if value is not None and value.name and index.is_float(value.name):
            found.add(ResolvedInsertionPoint(value.name, node_position, each))
    return found


_Item = TypeVar("_Item")


def _at(items: tuple[_Item, ...], place: int | None, what: str, point: InsertionPoint) -> _Item:
    if place is None or not 0 <= place < len(items):
        raise InvalidSchemeError(f"{point}: the pattern has no {what} {place} there.", _FOREIGN)
    return items[place]


def get_autotuner_quantizable_ops() -> set[str]:
    """Op types for which some engine has an integer kernel."""
    return {op_type for dialect in dialects().values() for op_type in dialect.rules}


def get_autotuner_skip_ops() -> set[str]:
    """Op types of the ONNX standard whose inputs are never insertion points."""
    standard = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    return (standard | QDQ_OPS) - get_autotuner_quantizable_ops()


def skip_invalid_insertion_points(
    graph: GraphIndex, tensor_name: str, region_or_node: Region | ir.Node
) -> bool:
    """Whether a tensor is not an insertion point for a node, or for any node of a region.

    Args:
        graph: The graph.
        tensor_name: The tensor.
        region_or_node: The consumer.
    """
    if isinstance(region_or_node, Region):
        inside = region_or_node.get_region_nodes_and_descendants()
    else:
        inside = {graph.position[region_or_node.name or ""]}
    return not _uses(graph, tensor_name, inside)


def resolve_region_io_insertion_points(
    region: Region | None, graph: GraphIndex, tensor_name: str
) -> set[ResolvedInsertionPoint]:
    """Return the edges where quantizing a tensor that enters or leaves a region can pay off.

    Args:
        region: Only its nodes are considered, unless it produces the tensor; None for the whole
            graph.
        graph: The graph.
        tensor_name: The tensor.

    Returns:
        The edges, with the other operands of weighted ops.
    """
    inside: Collection[int] = range(len(graph.nodes))
    if region is not None:
        nodes = region.get_region_nodes_and_descendants()
        value = graph.value.get(tensor_name)
        producer = value.producer() if value is not None else None
        if producer is None or graph.position[producer.name or ""] not in nodes:
            inside = nodes
    uses = _uses(graph, tensor_name, inside)
    return set().union(*(edge_with_operand(graph, node, position) for node, position in uses))


def _uses(graph: GraphIndex, tensor: str, inside: Collection[int]) -> list[tuple[int, int]]:
    """Return where these nodes read the tensor and it can pay off: node and input positions."""
    readers = graph.readers(tensor) if tensor in graph.value else ()
    edges = ((graph.position[e.node], e.position) for e in readers if e.node)
    return [edge for edge in edges if edge[0] in inside and not why_not(graph, *edge)]
