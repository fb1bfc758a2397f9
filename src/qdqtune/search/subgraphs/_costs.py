"""The costs of an assembly: from the times of subgraphs, corrected by layers of whole models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from qdqtune.engines.layers._mapper import nodes_of_layers
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import DEQUANTIZE, QDQ_OPS, QUANTIZE
from qdqtune.records._layers import MappedLayer
from qdqtune.records._measurement import LayerTime
from qdqtune.search.subgraphs._assembly import Costs, Crossing
from qdqtune.search.subgraphs._fusion_groups import FusionGroup
from qdqtune.search.subgraphs._quantizable_groups import QuantizableGroup

# How far apart what a subgraph costs alone and in the model may be.
_MOST_APART = 10.0


@dataclass(frozen=True)
class ObservedCosts:
    """What a model with some units quantized was seen to spend its time on.

    Attributes:
        quantized: Numbers of the units of which anything was quantized in it.
        otherwise: Those of them that were so in another way than by their scheme.
        unit_ms: By unit.
        rest_ms: All the rest, but for conversions.
        quantize_ms: By tensor.
        dequantize_ms: By tensor.
    """

    quantized: frozenset[int]
    unit_ms: Mapping[int, float]
    rest_ms: float = 0.0
    quantize_ms: Mapping[str, float] = field(default_factory=dict)
    dequantize_ms: Mapping[str, float] = field(default_factory=dict)
    otherwise: frozenset[int] = frozenset()


def costs_of(
    units: Sequence[QuantizableGroup],
    groups: Sequence[FusionGroup],
    index: GraphIndex,
    plain: ObservedCosts,
) -> Costs:
    """The costs of an assembly, as the subgraphs alone tell them.

    What a unit costs as float is taken from the float model, if that was seen; how much less it is
    when quantized from the subgraphs. Only so both are of the same machine: a subgraph alone finds
    its weights in the cache.

    Args:
        units: The units.
        groups: All fusion groups.
        index: The model.
        plain: The float model.
    """
    is_known = any(plain.unit_ms.values())
    as_float: list[float] = []
    quantized: list[float | None] = []
    for number, unit in enumerate(units):
        alone, inside = unit.as_float.inside_ms, unit.quantized.inside_ms
        seen = plain.unit_ms.get(number, 0.0)
        if not seen and not (is_known and unit.is_passthrough):  # moves may really be for nothing
            seen = alone
        # A time that the engine hardly told must not make the other a thousand times as long.
        scale = seen / alone if seen > 0.0 and alone > 0.0 else 1.0
        scale = min(max(scale, 1.0 / _MOST_APART), _MOST_APART)
        as_float.append(seen)
        # What only moves values follows its neighbours, also into the layout of their kernels;
        # alone it may run as something else. Seen on a CPU: a MaxPool of uint8 that took 50 times
        # as long as between integer Convs.
        quantized.append(min(inside * scale, seen) if unit.is_passthrough else inside * scale)
    group_of = {name: group.number for group in groups for name in group.nodes}
    unit_of = {unit.group: number for number, unit in enumerate(units)}
    crossings = _crossings(units, index, group_of, unit_of)
    follows = _follows(units, index, group_of, unit_of)
    return Costs(
        tuple(as_float),
        tuple(quantized),
        tuple(crossings),
        tuple((number, leader) for number, leader in follows.items() if leader is not None),
        frozenset(number for number, leader in follows.items() if leader is None),
        plain.rest_ms,
    )


def refined(costs: Costs, seen: Sequence[ObservedCosts], own: ObservedCosts | None = None) -> Costs:
    """The costs with what was seen in whole models in the place of what subgraphs told.

    Args:
        costs: As the subgraphs told them.
        seen: Whole models, the latest first.
        own: The one that is to be improved: it goes before the others, and units that are quantized
            otherwise in it cost what they cost there.
    """
    models = (own, *seen) if own is not None else tuple(seen)
    as_float, quantized = list(costs.float_ms), list(costs.quantized_ms)
    for number in range(len(as_float)):
        for is_quantized, found in ((False, as_float), (True, quantized)):
            times = [
                model.unit_ms[number]
                for model in models
                if (number in model.quantized) is is_quantized
                and model.unit_ms.get(number)
                and (number not in model.otherwise or model is own)
            ]
            if times and found[number] is not None:
                found[number] = times[0]
    crossings = [_seen_crossing(crossing, models) for crossing in costs.crossings]
    return replace(
        costs,
        float_ms=tuple(as_float),
        quantized_ms=tuple(quantized),
        crossings=tuple(crossings),
    )


def _seen_crossing(crossing: Crossing, models: Sequence[ObservedCosts]) -> Crossing:
    """What converting a tensor was seen to cost: nothing where other layers took it along."""
    quantize_ms = [
        model.quantize_ms.get(crossing.tensor, 0.0)
        for model in models
        if crossing.is_quantized_in(model.quantized)
    ]
    dequantize_ms = [
        model.dequantize_ms.get(crossing.tensor, 0.0)
        for model in models
        if crossing.is_dequantized_in(model.quantized)
    ]
    return replace(
        crossing,
        quantize_ms=quantize_ms[0] if quantize_ms else crossing.quantize_ms,
        dequantize_ms=dequantize_ms[0] if dequantize_ms else crossing.dequantize_ms,
    )


def _crossings(
    units: Sequence[QuantizableGroup],
    index: GraphIndex,
    group_of: Mapping[str, int],
    unit_of: Mapping[int, int],
) -> list[Crossing]:
    tensors = dict.fromkeys(t for unit in units for t in (*unit.content.inputs, *unit.outputs))
    found = []
    for tensor in tensors:
        if not index.is_float(tensor):
            continue
        maker = index.value[tensor].producer()
        home = group_of.get(maker.name or "") if maker is not None else None
        producer = unit_of.get(home) if home is not None else None
        if producer is not None and tensor not in units[producer].outputs:
            producer = None  # float, whatever the unit is
        readers = {group_of.get(edge.node, -1) for edge in index.readers(tensor)} - {home}
        as_float = index.read_by_body(tensor)
        consumers: set[int] = set()
        for reader in readers:
            unit = unit_of.get(reader)
            if unit is not None and tensor in units[unit].inputs:
                consumers.add(unit)
            else:
                as_float = True
        if consumers or producer is not None:
            found.append(_crossing(units, tensor, producer, frozenset(consumers), as_float, home,
                                   unit_of))  # fmt: skip
    return found


def _crossing(
    units: Sequence[QuantizableGroup],
    tensor: str,
    producer: int | None,
    consumers: frozenset[int],
    as_float: bool,
    home: int | None,
    unit_of: Mapping[int, int],
) -> Crossing:
    """What converting a tensor costs, by what was seen at the borders of the subgraphs around it.

    A change of layout is paid with the conversion: floats leave the layout of the float kernels,
    and quantized values enter that of the others.
    """
    maker = units[unit_of[home]] if home is not None and home in unit_of else None
    q_ms = [
        units[n].at_border(units[n].quantized.conversion_ms, tensor)
        + units[n].at_border(units[n].quantized.layout_ms, tensor)
        for n in sorted(consumers)
    ]
    quantize_ms = max(q_ms, default=0.0)
    if quantize_ms > 0.0 and maker is not None:
        quantize_ms += maker.at_border(maker.as_float.layout_ms, tensor)
    dequantize_ms = 0.0
    if producer is not None:
        unit = units[producer]
        dequantize_ms = unit.at_border(unit.quantized.conversion_ms, tensor)
        dequantize_ms += unit.at_border(unit.quantized.layout_ms, tensor)
        dequantize_ms += max(
            (units[n].at_border(units[n].as_float.layout_ms, tensor) for n in sorted(consumers)),
            default=0.0,
        )
    return Crossing(tensor, producer, consumers, as_float, quantize_ms, dequantize_ms)


def _follows(
    units: Sequence[QuantizableGroup],
    index: GraphIndex,
    group_of: Mapping[str, int],
    unit_of: Mapping[int, int],
) -> dict[int, int | None]:
    """Units that only move values, and whose result they move; None if it is always float."""
    found: dict[int, int | None] = {}
    for number, unit in enumerate(units):
        if not unit.is_passthrough:
            continue
        leaders: set[int | None] = set()
        for tensor in unit.inputs:
            maker = index.value[tensor].producer()
            leader = unit_of.get(group_of.get(maker.name or "", -1)) if maker is not None else None
            is_made = leader is not None and tensor in units[leader].outputs
            leaders.add(leader if is_made else None)
        if len(leaders) <= 1:
            found[number] = next(iter(leaders), None)
    return found


def look_at(
    index: GraphIndex,
    layers: Sequence[LayerTime],
    unit_of: Mapping[str, int],
    quantized: frozenset[int],
    otherwise: frozenset[int] = frozenset(),
    weights: Sequence[float] = (),
) -> ObservedCosts:
    """Add up the times of a model's layers by what they are for.

    Args:
        index: The model as it was opened, with its Q and DQ.
        layers: What the engine told about it.
        unit_of: Node name to the unit that it belongs to.
        quantized: Units of which anything is quantized in it.
        otherwise: Those that are so in another way than by their scheme.
        weights: By which a layer is divided among several units; equally without.
    """
    times: dict[int, float] = {}
    conversions: dict[str, dict[str, float]] = {QUANTIZE: {}, DEQUANTIZE: {}}
    rest_ms = 0.0
    for layer in nodes_of_layers(index, layers):
        kind, tensor = _conversion(index, layer)
        if tensor:
            spent = conversions[kind]
            spent[tensor] = spent.get(tensor, 0.0) + layer.ms
            continue
        shares = _shares(index, layer, unit_of, weights)
        if not shares:
            rest_ms += layer.ms
        for unit, share in shares.items():
            times[unit] = times.get(unit, 0.0) + layer.ms * share
    return ObservedCosts(
        quantized, times, rest_ms, conversions[QUANTIZE], conversions[DEQUANTIZE], otherwise
    )


def _conversion(index: GraphIndex, layer: MappedLayer) -> tuple[str, str]:
    """Which way a layer converts, and what; both empty if it does something else as well."""
    if not layer.executes or not layer.nodes or not QDQ_OPS.issuperset(layer.node_types):
        return "", ""
    nodes = [index.node[name] for name in layer.nodes]
    for node in nodes:
        if node.op_type == QUANTIZE and not _is_constant(index, node):
            return QUANTIZE, _given_name(index, node.inputs[0])
    for node in nodes:
        source = node.inputs[0].producer() if node.inputs[0] is not None else None
        if source is not None:
            return DEQUANTIZE, _given_name(index, source.inputs[0])
    return "", ""


def _shares(
    index: GraphIndex,
    layer: MappedLayer,
    unit_of: Mapping[str, int],
    weights: Sequence[float],
) -> dict[int, float]:
    names = {name for name, op in zip(layer.nodes, layer.node_types, strict=True)
             if op not in QDQ_OPS}  # fmt: skip
    if not names:  # a weight that is turned to floats in every run
        readers = (e.node for n in layer.nodes for v in index.node[n].outputs
                   for e in index.readers(_name(v)))  # fmt: skip
        names = set(readers)
    units = sorted({unit_of[name] for name in names if name in unit_of})
    worth = {unit: weights[unit] if weights else 1.0 for unit in units}
    total = sum(worth.values())
    if not total:
        return {unit: 1.0 / len(units) for unit in units}
    return {unit: each / total for unit, each in worth.items()}


def _is_constant(index: GraphIndex, node: ir.Node) -> bool:
    name = _name(node.inputs[0])
    return not name or index.is_constant(name)


def _given_name(index: GraphIndex, value: ir.Value | None) -> str:
    """What a tensor is called in the float model: a graph's output gives its name to its DQ."""
    name = _name(value)
    given = name.removesuffix("_unquantized")
    return given if given in index.value else name


def _name(value: ir.Value | None) -> str:
    return (value.name or "") if value is not None else ""
