"""From regions to choices: ops that play the same part in like regions are one group."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import onnx_ir as ir

from qdqtune.autotune.errors import InvalidSchemeError
from qdqtune.autotune.patterns.pattern_cache import PatternCache
from qdqtune.autotune.patterns.pattern_views import PatternView, view_pattern
from qdqtune.autotune.patterns.resolved import to_placement
from qdqtune.autotune.regions.canonical import CanonicalRegion, canonical_region
from qdqtune.autotune.regions.region import Region, leaves
from qdqtune.autotune.regions.region_search import CombinedRegionSearch
from qdqtune.autotune.search.space import Group
from qdqtune.graph.index import GraphIndex
from qdqtune.qdq.quantization_planner import QuantizationPlanner
from qdqtune.records.placement import Edge

_logger = logging.getLogger(__name__)


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
    """

    groups: tuple[Group, ...] = ()
    regions: int = 0
    views: tuple[PatternView, ...] = ()
    cached: frozenset[Edge] = frozenset()
    cached_patterns: int = 0
    ruled: frozenset[str] = frozenset()

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
    index: GraphIndex, planner: QuantizationPlanner, cache: PatternCache | None = None
) -> Grouping:
    """Find the choices that a dialect leaves in a model.

    Regions with the same structure and shapes share a pattern, and the ops in one place of it are
    one group: all the insertion points of that place, in every region of the pattern.

    Args:
        index: The model, with shapes.
        planner: What can be quantized in it.
        cache: What other runs found.
    """
    regions = CombinedRegionSearch(index).search_regions()
    numbers: dict[str, int] = {}
    forms: list[list[CanonicalRegion]] = []
    firsts: list[Region] = []
    found: dict[tuple[int, int], list[int]] = {}
    parts = list(leaves(regions))
    for region in parts:
        form = canonical_region(region, index)
        number = numbers.setdefault(form.signature(shapes=True), len(numbers))
        if number == len(forms):
            forms.append([])
            firsts.append(region)
        forms[number].append(form)
        for role, position in enumerate(form.nodes):
            name = index.nodes[position].name or ""
            if name in planner.units:
                found.setdefault((number, role), []).append(position)
    signatures = list(numbers)
    groups = [
        Group(
            signatures[number],
            role,
            index.nodes[positions[0]].op_type,
            tuple(index.nodes[position].name or "" for position in sorted(positions)),
            _group_key(index, index.nodes[positions[0]]),
        )
        for (number, role), positions in sorted(found.items(), key=lambda item: min(item[1]))
    ]
    views = tuple(
        view_pattern(first, alike, index) for first, alike in zip(firsts, forms, strict=True)
    )
    cached: set[Edge] = set()
    cached_patterns = 0
    if cache is not None:
        cached_patterns = cache.occurring(view.pattern for view in views)
        for view, alike in zip(views, forms, strict=True):
            for form in alike:
                cached |= _cached_edges(cache, view, form, index)
    return Grouping(tuple(groups), len(parts), views, frozenset(cached), cached_patterns)


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
