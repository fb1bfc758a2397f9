"""`inspect`: show a model as the search sees it, without running or writing anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from qdqtune._command_configs import InspectConfig
from qdqtune.graph._files import load_model
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._input_shapes import resolve_shapes
from qdqtune.graph._shapes import at_shapes, infer_shapes
from qdqtune.options import configured
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq._selection import unknown
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Edge
from qdqtune.records._results import (
    Inspection,
    PatternRecord,
    RegionRecord,
    TensorAnswer,
    TensorPlace,
)
from qdqtune.search.patterns._insertion_points import (
    NodeInputInsertionPoint,
    RegionOutputInsertionPoint,
    has_quantizable_operations,
    why_not,
    why_not_output,
)
from qdqtune.search.patterns._region_pattern import RegionPattern
from qdqtune.search.regions._canonical import CanonicalRegion, canonical_region
from qdqtune.search.regions._region import Region, walk
from qdqtune.search.regions._region_search import CombinedRegionSearch
from qdqtune.workflows._arguments import AnyModel, as_file, choose_dialect, name_of
from qdqtune.workflows._source_model import open_source


@configured(InspectConfig)
def inspect(model: AnyModel, config: InspectConfig) -> Inspection:
    """Report a model's regions and patterns, what can be quantized in it, and why the rest can't.

    Args:
        model: A path, a proto or an `onnx_ir.Model`; Q/DQ are removed first.
        config: The settings; any of its fields can be given as a keyword instead.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    quant_type = config.quant_type
    _, dialect_choice = choose_dialect(config.engine, config.dialect)
    opset = dialect_choice.format_of(quant_type).least_opset
    with as_file(model) as path:
        source = open_source(path, opset, float_types=dialect_choice.float_types)
        with at_shapes(source.model, resolve_shapes(source.model, config.input_request)):
            index = GraphIndex(source.model)
            planner = QuantizationPlanner(index, dialect_choice, quant_type)
            answer = _answer_of(config.why, planner, path) if config.why is not None else None
            regions = CombinedRegionSearch(index, config.max_sequence_size).search_regions()
            tree = _Tree(regions, index, by_shape=config.by_shape)
            known = {*planner.units, *planner.left_float}
            return Inspection(
                model=name_of(model),
                dialect=dialect_choice.name,
                quant_type=quant_type,
                nodes=len(index.nodes),
                pairs=source.reading.pairs if source.reading is not None else 0,
                by_shape=config.by_shape,
                regions=tree.regions,
                patterns=tree.patterns,
                quantizable=_by_op_type(planner),
                fused=sum(node.name not in known for node in index.nodes),
                left_float=_by_reason(planner),
                why=answer,
                converted_from=source.converted_from,
            )


def regions_of(
    model: str | Path, max_sequence_size: int = 10
) -> tuple[list[Region], tuple[RegionRecord, ...]]:
    """Return the regions of a model and their records, independent of the engine.

    Args:
        model: A float model, or one with Q/DQ, which are removed first.
        max_sequence_size: Maximum number of nodes in a sequence inside a composite.

    Returns:
        The outermost regions, and the records of all regions, parents before children.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    source = open_source(model)
    infer_shapes(source.model)
    index = GraphIndex(source.model)
    regions = CombinedRegionSearch(index, max_sequence_size).search_regions()
    return regions, _Tree(regions, index, by_shape=False).regions


class _Tree:
    """The records of a tree of regions."""

    def __init__(self, regions: Sequence[Region], index: GraphIndex, *, by_shape: bool) -> None:
        self._index = index
        self._by_shape = by_shape
        self._numbers: dict[str, int] = {}
        self._firsts: list[CanonicalRegion] = []
        self._variants: list[Counter[str]] = []
        self.regions = tuple(self._record(region) for region in walk(regions))
        ordered = sorted(range(len(self._firsts)), key=lambda each: -self._count(each))
        self.patterns = tuple(self._pattern(number) for number in ordered)

    def _record(self, region: Region) -> RegionRecord:
        nodes = [self._index.nodes[position] for position in region.get_nodes(sort=True)]
        return RegionRecord(
            id=region.id,
            type=region.type.value,
            level=region.level,
            parent=region.parent.id if region.parent is not None else None,
            children=tuple(child.id for child in region.children),
            nodes=tuple(node.name or "" for node in nodes),
            op_types=tuple(node.op_type for node in nodes),
            size=region.get_size_of_region_and_descendants(),
            inputs=tuple(region.inputs),
            outputs=tuple(region.outputs),
            pattern=None if region.children else self._number(region),
            quantizable=has_quantizable_operations(region, self._index),
        )

    def _number(self, region: Region) -> int:
        form = canonical_region(region, self._index)
        number = self._numbers.setdefault(form.signature(shapes=self._by_shape), len(self._firsts))
        if number == len(self._firsts):
            self._firsts.append(form)
            self._variants.append(Counter())
        self._variants[number][form.signature(shapes=True)] += 1
        return number

    def _count(self, number: int) -> int:
        return self._variants[number].total()

    def _pattern(self, number: int) -> PatternRecord:
        form = self._firsts[number]
        points = [
            *NodeInputInsertionPoint.collect_in(form, self._index),
            *RegionOutputInsertionPoint.collect_in(form, self._index),
        ]
        pattern = RegionPattern(form.signature(shapes=self._by_shape), len(form.nodes))
        return PatternRecord(
            number=number,
            signature=pattern.signature,
            hash=pattern.get_hash(),
            regions=self._count(number),
            op_types=tuple(self._index.nodes[position].op_type for position in form.nodes),
            points=len(points),
            variants=len(self._variants[number]),
        )


def _by_op_type(planner: QuantizationPlanner) -> dict[str, tuple[int, int]]:
    nodes = planner.index.nodes
    present = Counter(node.op_type for node in nodes)
    can = Counter(node.op_type for node in nodes if node.name in planner.units)
    return {op_type: (can[op_type], count) for op_type, count in present.most_common()}


def _by_reason(planner: QuantizationPlanner) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for name, reason in planner.left_float.items():
        found.setdefault(reason, []).append(name)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return {reason: tuple(names) for reason, names in ordered}


def _answer_of(tensor: str, planner: QuantizationPlanner, path: Path) -> TensorAnswer:
    """Where a tensor could be quantized, and why not elsewhere.

    Args:
        tensor: Its name.
        planner: What the dialect can quantize in the model.
        path: The model's file, in which there may be more tensors than in the folded model.

    Raises:
        UsageError: If there is no such tensor.
    """
    index = planner.index
    if tensor not in index.value:
        raise _missing(tensor, index, path)
    dtype = index.dtype(tensor)
    return TensorAnswer(
        tensor=tensor,
        dtype=dtype.name.lower() if dtype is not None else "",
        dims=index.shape(tensor),
        constant=index.is_constant(tensor),
        maker=_maker(tensor, planner),
        readers=tuple(_reader(edge, planner) for edge in index.readers(tensor)),
    )


def _missing(tensor: str, index: GraphIndex, path: Path) -> UsageError:
    if tensor in GraphIndex(load_model(path)).value:
        return UsageError(
            f"The tensor {tensor!r} is not in the model that is tuned: it is folded into others, "
            "or stands between a Q and a DQ.",
            "Ask about what is before or behind it: `qdqtune inspect MODEL` lists the tensors at "
            "the borders of regions.",
        )
    return unknown("tensor", tensor, index.value)


def _maker(tensor: str, planner: QuantizationPlanner) -> TensorPlace:
    index = planner.index
    value = index.value[tensor]
    producer = value.producer()
    if producer is None:
        return TensorPlace("", "", 0, "no node makes it: a pair can stand at its readers")
    name = producer.name or ""
    position = list(producer.outputs).index(value)
    places = planner.units.get(name)
    return TensorPlace(
        node=name,
        op_type=producer.op_type,
        position=position,
        reason=why_not_output(index, index.position[name], position),
        dialect_reason=planner.left_float.get(name, ""),
        with_op=places is not None and tensor in places.outputs,
    )


def _reader(edge: Edge, planner: QuantizationPlanner) -> TensorPlace:
    index = planner.index
    if not edge.node:
        return TensorPlace("", "", edge.position, "the graph hands it out as it is")
    places = planner.units.get(edge.node)
    return TensorPlace(
        node=edge.node,
        op_type=index.node[edge.node].op_type,
        position=edge.position,
        reason=why_not(index, index.position[edge.node], edge.position),
        dialect_reason=planner.left_float.get(edge.node, ""),
        with_op=places is not None and edge in places.edges,
    )
