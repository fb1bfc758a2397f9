"""The patterns of a model, the edges that schemes quantize, and schemes for whole models."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import onnx_ir as ir

from qdqtune.engines.layers._latency import estimated_shares
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._errors import InvalidSchemeError
from qdqtune.records._placement import Edge
from qdqtune.rules._order import draft_placement
from qdqtune.search._space import Space, State, group_ops
from qdqtune.search.patterns._insertion_points import (
    InsertionPoint,
    ResolvedInsertionPoint,
    points_in,
    to_placement,
)
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.search.patterns._region_pattern import (
    InsertionScheme,
    RegionPattern,
    group_regions,
    scheme_in,
)
from qdqtune.search.regions._canonical import CanonicalRegion
from qdqtune.search.regions._region import Region
from qdqtune.search.strategies._registry import make_strategy
from qdqtune.search.strategies._strategy import Limits, Score, SearchTask
from qdqtune.workflows.tuning._preflight import seeds_of

_log = logging.getLogger(__name__)


class EdgeClosure:
    """Expands insertion points to quantized edges, in one model and one dialect.

    A reader with a point becomes an integer kernel, with everything that the dialect needs for it;
    so does a weighted op that reads a tensor with a point. A point that the dialect can't use has
    no effect. The closure of a union is the union of the closures.

    Args:
        index: The graph.
        dialect: The dialect.
        quant_type: One of the dialect's quant types.

    Attributes:
        planner: Knows what each op needs to be quantized.
        quant_type: The quant type.
    """

    def __init__(self, index: GraphIndex, dialect: Dialect, quant_type: str) -> None:
        self.quant_type = quant_type
        self.planner = QuantizationPlanner(index, dialect, quant_type)
        self._index = index
        self._kernels = {
            name: index.effective(places) for name, places in self.planner.units.items()
        }

    @property
    def why_nothing(self) -> str:
        """The most common reason why no op can be quantized; empty if one can."""
        if self._kernels:
            return ""
        dialect, left_float = self.planner.dialect, self.planner.left_float
        known = {
            name: reason
            for name, reason in left_float.items()
            if self._index.node[name].op_type in dialect.rules
        }
        reasons = Counter((known or left_float).values()).most_common(1)
        return reasons[0][0] if reasons else f"{dialect.name} has no integer kernel for it"

    def kernels(self, names: Iterable[str]) -> frozenset[Edge]:
        """Return the edges that make ops integer kernels; none for ops that can't be."""
        return frozenset[Edge]().union(*(self._kernels.get(name, ()) for name in names))

    def edges(self, resolved: Iterable[ResolvedInsertionPoint]) -> frozenset[Edge]:
        """Return every edge that sees a quantized value because of these places.

        Raises:
            InvalidSchemeError: If the model has no such place.
        """
        asked = to_placement(self._index, resolved)
        found: set[Edge] = set()
        for edge in asked.edges:
            if edge.node in self._kernels:
                found.add(edge)
                found |= self._kernels[edge.node]
        for tensor in filter(self._is_useful, asked.outputs):
            for edge in self._index.readers(tensor):
                found.add(edge)
                # A weighted op gains nothing from one operand.
                if edge.node in self._kernels and is_op(self._index.node[edge.node], *WEIGHTED_OPS):
                    found |= self._kernels[edge.node]
        return frozenset(found)

    def _is_useful(self, tensor: str) -> bool:
        """Whether an integer kernel produces or reads a tensor, perhaps through an activation."""
        producer = self._index.value[tensor].producer()
        if producer is not None and producer.op_type in self.planner.dialect.fused_activations:
            first = producer.inputs[0]
            producer = first.producer() if first is not None else None
        made = producer is not None and producer.name in self._kernels
        return made or any(edge.node in self._kernels for edge in self._index.readers(tensor))


class TunedPattern:
    """One structure with shapes, wherever it occurs in a model.

    Args:
        forms: The regions of the pattern.
        index: The graph.
        closure: Expands places to edges in the dialect.

    Attributes:
        pattern: The structure with shapes.
        plain: The structure alone.
    """

    def __init__(
        self, forms: Sequence[CanonicalRegion], index: GraphIndex, closure: EdgeClosure
    ) -> None:
        self.pattern = RegionPattern.of_form(forms[0], shapes=True)
        self.plain = RegionPattern.of_form(forms[0], shapes=False)
        self._forms = forms
        self._index = index
        self._closure = closure
        self._edges: dict[frozenset[InsertionPoint], frozenset[Edge]] = {}

    @property
    def nodes(self) -> set[str]:
        """Names of the nodes in all its regions."""
        nodes = self._index.nodes
        return {nodes[position].name or "" for form in self._forms for position in form.nodes}

    @cached_property
    def points(self) -> tuple[InsertionPoint, ...]:
        """Every point that has an effect in at least one of the regions."""
        found = dict.fromkeys(p for form in self._forms for p in points_in(form, self._index))
        return tuple(point for point in found if self.edges(InsertionScheme.of([point])))

    def resolved(self, scheme: InsertionScheme) -> set[ResolvedInsertionPoint]:
        """Return the places of a scheme in all regions of the pattern.

        Raises:
            InvalidSchemeError: If the pattern has no such points.
        """
        return {
            place
            for form in self._forms
            for point in scheme.points()
            for place in point.resolve_in(form, self._index)
        }

    def quantized(self, scheme: InsertionScheme) -> set[ResolvedInsertionPoint]:
        """Return those places of a scheme that have an effect in the dialect.

        Raises:
            InvalidSchemeError: If the pattern has no such points.
        """
        return {place for place in self.resolved(scheme) if self._closure.edges([place])}

    def edges(self, scheme: InsertionScheme) -> frozenset[Edge]:
        """Return the edges that see a quantized value because of a scheme.

        Raises:
            InvalidSchemeError: If the pattern has no such points.
        """
        key = frozenset(scheme.points())
        if key not in self._edges:
            self._edges[key] = self._closure.edges(self.resolved(scheme))
        return self._edges[key]

    def fits(self, scheme: InsertionScheme) -> bool:
        """Whether this pattern has all the points of a scheme."""
        try:
            self.edges(scheme)
        except InvalidSchemeError:
            return False
        return True

    def fitting(self, schemes: Iterable[InsertionScheme]) -> list[InsertionScheme]:
        """Return the schemes whose points this pattern has; others are dropped with a warning."""
        found = []
        for scheme in schemes:
            try:
                self.edges(scheme)
            except InvalidSchemeError as error:
                name = self.pattern.get_short_signature()
                _log.warning("a scheme for %s is left out: %s", name, error.what)
            else:
                found.append(scheme)
        return found

    def from_tensors(self, tensors: Collection[str]) -> list[InsertionScheme]:
        """Return schemes that quantize these tensors, one for each way that regions name them."""
        named = (scheme_in(form, self._index, tensors) for form in self._forms)
        return list({scheme.hash: scheme for scheme in named if not scheme.is_empty}.values())


def patterns_of(
    regions: Iterable[Region], index: GraphIndex, closure: EdgeClosure
) -> dict[Region, TunedPattern]:
    """Return the pattern of each region; regions with the same structure and shapes share one.

    Raises:
        AutotunerError: If a region doesn't fit the graph.
    """
    listed = list(regions)
    found: dict[Region, TunedPattern] = {}
    for forms in group_regions(listed, index):
        tuned = TunedPattern(forms, index, closure)
        found.update((form.region, tuned) for form in forms)
    return {region: found[region] for region in listed}


#: Node names and op types to quantize, inputs to leave float, op types with quantized outputs.
OrtSettings = tuple[list[str], list[str], list[tuple[ir.Node, ir.Node, str]], list[str]]

# The op types that such a quantizer supports for fp8.
_FP8_OPS = frozenset({"Add", "Conv", "Gemm", "MatMul"})


def ort_settings(index: GraphIndex, edges: Collection[Edge], quant_type: str) -> OrtSettings:
    """Describe a placement by nodes, and the edges that such quantizers must exclude.

    Args:
        index: The graph.
        edges: Every edge that sees a quantized value.
        quant_type: The quant type.

    Returns:
        Names of the nodes with quantized inputs; their op types; inputs of those nodes that stay
        float nevertheless, as producer, reader and tensor; op types of nodes with a quantized
        result but no quantized input.
    """
    wanted = set(edges)
    readers = {edge.node for edge in wanted if edge.node}
    if quant_type == "fp8":
        readers = {name for name in readers if index.node[name].op_type in _FP8_OPS}
    nodes = [node for node in index.nodes if node.name in readers]
    makers = [index.value[tensor].producer() for tensor in sorted({e.tensor for e in wanted})]
    outputs = {node.op_type for node in makers if node is not None and node.name not in readers}
    left_float = []
    for node in nodes:
        for position, value in enumerate(node.inputs):
            name = value.name or "" if value is not None else ""
            producer = index.value[name].producer() if name else None
            is_quantized = Edge(name, node.name or "", position) in wanted
            if producer is not None and not is_quantized and index.is_float(name):
                left_float.append((producer, node, name))
    op_types = sorted({node.op_type for node in nodes})
    return [node.name or "" for node in nodes], op_types, left_float, sorted(outputs)


Schemes = Mapping[TunedPattern, InsertionScheme]
"""The scheme of each pattern that has one."""

# Latencies are measured one after the other, not interleaved.
_RELATIVE_ERROR = 0.01
# A pattern has 30 schemes in the guides: most of them are left for its own points.
_MOST_CANDIDATES = 12


def edges_of(schemes: Schemes) -> frozenset[Edge]:
    """Return every edge that sees a quantized value."""
    return frozenset[Edge]().union(*(tuned.edges(each) for tuned, each in schemes.items()))


def whole_model_schemes(
    patterns: Collection[TunedPattern],
    closure: EdgeClosure,
    cache: PatternCache,
    seed: int,
    measured: Mapping[frozenset[Edge], float],
) -> Iterator[Schemes]:
    """Yield whole models to measure, each once, as the search of region mode requests them.

    Args:
        patterns: The patterns of the regions; nodes in none of them stay float.
        closure: Expands places to edges in the dialect.
        cache: Known schemes of patterns.
        seed: The random seed.
        measured: Latencies by quantized edges, infinite for failures; must include the float model
            and every model that was yielded before.
    """
    planner = closure.planner
    ruled = draft_placement(planner, closure.quant_type).chosen
    grouping = replace(group_ops(planner.index, planner, cache), ruled=ruled)
    inside = {name for tuned in patterns for name in tuned.nodes}
    groups = [group for group in grouping.groups if inside.issuperset(group.nodes)]
    space = Space(planner, groups, estimated_shares(planner.index))
    limits = Limits(benchmarks=_MOST_CANDIDATES)
    seeds = seeds_of(space, {}, grouping)
    strategy = make_strategy(SearchTask(space, seeds, limits, seed))
    points = {tuned: [(p, tuned.edges(InsertionScheme.of([p]))) for p in tuned.points]
              for tuned in patterns}  # fmt: skip

    def schemes_of(state: State) -> Schemes:
        wanted = closure.kernels(planner.quantized(space.placement(state)))
        chosen = {
            tuned: InsertionScheme.of(point for point, edges in own if edges <= wanted)
            for tuned, own in points.items()
        }
        return {tuned: scheme for tuned, scheme in chosen.items() if not scheme.is_empty}

    for trial in strategy.trials():
        reference_ms = measured[edges_of(schemes_of(trial.reference))]
        scores = []
        for state in trial.candidates:
            schemes = schemes_of(state)
            edges = edges_of(schemes)
            if edges not in measured:
                yield schemes
            latency_ms = measured.get(edges, math.inf)
            scores.append(
                Score(math.log(reference_ms / latency_ms), _RELATIVE_ERROR)
                if math.isfinite(latency_ms)
                else Score.failed("it could not be measured")
            )
        strategy.tell(trial, scores)
