"""Where the time of a whole model goes, by units: added up from what an engine tells of its layers.

Conversions are told apart from the work of units, and so are the changes of layout that come with
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from qdqtune.engines.layers._mapper import nodes_of_layers
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import DEQUANTIZE, QDQ_OPS, QUANTIZE, uses_behind
from qdqtune.graph._weights import value_behind
from qdqtune.qdq._dynamic import find_dynamic_ops
from qdqtune.records._layers import BETWEEN, MappedLayer
from qdqtune.records._measurement import LayerTime


@dataclass(frozen=True)
class ObservedCosts:
    """What a model with some units quantized was seen to spend its time on.

    Attributes:
        quantized: The units of which anything was quantized in it, by the numbers of their forms.
        otherwise: Those of them that were so in another way than by their scheme.
        unit_ms: By unit.
        rest_ms: All the rest, but for conversions.
        quantize_ms: By tensor.
        dequantize_ms: By tensor.
        divided_ms: How much of it was in layers of several units that are compiled as a whole: what
            each of these has of it is a guess.
    """

    quantized: frozenset[int]
    unit_ms: Mapping[int, float]
    rest_ms: float = 0.0
    quantize_ms: Mapping[str, float] = field(default_factory=dict)
    dequantize_ms: Mapping[str, float] = field(default_factory=dict)
    otherwise: frozenset[int] = frozenset()
    divided_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        """Everything together."""
        conversions = (*self.quantize_ms.values(), *self.dequantize_ms.values())
        return self.rest_ms + sum(self.unit_ms.values()) + sum(conversions)


def look_at(
    index: GraphIndex,
    layers: Sequence[LayerTime],
    unit_of: Mapping[str, int],
    quantized: frozenset[int],
    otherwise: frozenset[int] = frozenset(),
    weights: Sequence[float] = (),
    compiled: Collection[int] = (),
) -> ObservedCosts:
    """Add up the times of a model's layers by what they are for.

    Args:
        index: The model as it was opened, with its Q and DQ.
        layers: What the engine told about it.
        unit_of: Node name to the unit that it belongs to.
        quantized: Units of which anything is quantized in it, by the numbers of their forms.
        otherwise: Those that are so in another way than by their scheme.
        weights: By which a layer is divided among several units; equally without.
        compiled: Units that the engine compiles with others: in a layer of several, float ones cost
            what they weigh, and the others the rest.
    """
    times: dict[int, float] = {}
    conversions: dict[str, dict[str, float]] = {QUANTIZE: {}, DEQUANTIZE: {}}
    rest_ms = divided_ms = 0.0
    homes = _homes(index, unit_of)
    copies = _Copies(index, layers, unit_of)
    for layer in nodes_of_layers(index, layers):
        kind, tensor = copies.conversion(layer) if layer.how == BETWEEN else ("", "")
        if not tensor:
            kind, tensor = _conversion(index, layer)
        if tensor and (inside := _unit_around(index, tensor, unit_of)) is not None:
            times[inside] = times.get(inside, 0.0) + layer.ms
            continue
        if tensor:
            spent = conversions[kind]
            spent[tensor] = spent.get(tensor, 0.0) + layer.ms
            continue
        shares = _shares(index, layer, homes, weights)
        if not shares:
            rest_ms += layer.ms
            continue
        if len(shares) > 1 and shares.keys() <= set(compiled):
            shares = _shares_of_quantized(shares, layer.ms, weights, quantized)
            divided_ms += layer.ms
        for unit, share in shares.items():
            times[unit] = times.get(unit, 0.0) + layer.ms * share
    return ObservedCosts(
        quantized, times, rest_ms, conversions[QUANTIZE], conversions[DEQUANTIZE], otherwise,
        divided_ms,
    )  # fmt: skip


def _unit_around(index: GraphIndex, tensor: str, unit_of: Mapping[str, int]) -> int | None:
    """The unit that makes a tensor and alone reads it; None if there is none."""
    value = index.value.get(tensor)
    maker = value.producer() if value is not None else None
    if value is None or maker is None:
        return None
    unit, readers = unit_of.get(maker.name or ""), uses_behind(value, *QDQ_OPS)
    others = {unit_of.get(each.name or "") for each, _ in readers if each.op_type not in QDQ_OPS}
    return unit if others <= {unit} else None


def _homes(index: GraphIndex, unit_of: Mapping[str, int]) -> dict[str, set[int]]:
    """The units that each node works for: several share the quantization of what they all read."""
    homes = {name: {unit} for name, unit in unit_of.items()}
    for op in find_dynamic_ops(index.model.graph):
        for node in op.nodes if op.name in unit_of else ():
            homes.setdefault(node.name or "", set()).add(unit_of[op.name])
    return homes


def _conversion(index: GraphIndex, layer: MappedLayer) -> tuple[str, str]:
    """Which way a layer converts, and what; both empty if it does something else as well."""
    is_known = layer.executes or layer.how == BETWEEN
    if not is_known or not layer.nodes or not QDQ_OPS.issuperset(layer.node_types):
        return "", ""
    nodes = [index.node[name] for name in layer.nodes]
    for node in nodes:
        name = _name(node.inputs[0])
        if node.op_type == QUANTIZE and name and not index.is_constant(name):
            return QUANTIZE, _given_name(index, node.inputs[0])
    for node in nodes:
        source = node.inputs[0].producer() if node.inputs[0] is not None else None
        if source is not None:
            return DEQUANTIZE, _given_name(index, source.inputs[0])
    return "", ""


class _Copies:
    """Which changes of layout are due to a conversion: those between float and integer kernels.

    Args:
        index: The model as it was opened.
        layers: What the engine told about it.
        unit_of: Node name to the unit that it belongs to.
    """

    def __init__(
        self, index: GraphIndex, layers: Sequence[LayerTime], unit_of: Mapping[str, int]
    ) -> None:
        self._index = index
        self._read = {layer.name: layer.inputs for layer in layers}
        self._unit_of = unit_of
        self._quantized = {
            unit_of.get(name)
            for name, node in index.node.items()
            if node.op_type not in QDQ_OPS and any(map(self._is_converted, node.inputs))
        } - {None}

    def conversion(self, layer: MappedLayer) -> tuple[str, str]:
        """Which way the values that a layer copies for another are converted, and their name.

        Both are empty if they are not: it belongs to the kernel that it serves.
        """
        read = self._read.get(layer.name, ())
        copied = self._index.value.get(read[0]) if len(read) == 1 else None
        value = value_behind(copied, *QDQ_OPS)
        if value is None or QDQ_OPS.issuperset(layer.node_types):
            return "", ""
        maker = value.producer()
        is_read_quantized = self._any_quantized(layer.nodes)
        is_made_quantized = maker is not None and self._any_quantized([maker.name or ""])
        if is_read_quantized == is_made_quantized:
            return "", ""
        return QUANTIZE if is_read_quantized else DEQUANTIZE, _given_name(self._index, value)

    def _any_quantized(self, names: Iterable[str]) -> bool:
        """Whether anything is quantized in the unit of one of these nodes."""
        return any(self._unit_of.get(name) in self._quantized for name in names)

    def _is_converted(self, value: ir.Value | None) -> bool:
        """Whether a value is an activation that was quantized."""
        node = value.producer() if value is not None else None
        source = node.inputs[0] if node is not None and node.op_type == DEQUANTIZE else None
        return source is not None and not self._index.is_constant(_name(source))


def _shares(
    index: GraphIndex,
    layer: MappedLayer,
    homes: Mapping[str, Collection[int]],
    weights: Sequence[float],
) -> dict[int, float]:
    names = {name for name, op in zip(layer.nodes, layer.node_types, strict=True)
             if op not in QDQ_OPS}  # fmt: skip
    if not names:  # a weight that is turned to floats in every run
        readers = (e.node for n in layer.nodes for v in index.node[n].outputs
                   for e in index.readers(_name(v)))  # fmt: skip
        names = set(readers)
    units = sorted({unit for name in names for unit in homes.get(name, ())})
    worth = {unit: weights[unit] if weights else 1.0 for unit in units}
    total = sum(worth.values())
    if not total:
        return {unit: 1.0 / len(units) for unit in units}
    return {unit: each / total for unit, each in worth.items()}


def _shares_of_quantized(
    shares: Mapping[int, float], ms: float, weights: Sequence[float], quantized: Collection[int]
) -> dict[int, float]:
    """How a layer is divided if its float units cost what they weigh, and the others the rest."""
    count = len(weights)
    changed = {unit for unit in shares if unit in quantized or unit + count in quantized}
    left = 1.0 - sum(weights[unit] for unit in shares if unit not in changed) / ms if ms else 0.0
    whole = sum(shares[unit] for unit in changed)
    if not whole or left <= 0.0:
        return dict(shares)
    return {
        unit: left * share / whole if unit in changed else weights[unit] / ms
        for unit, share in shares.items()
    }


def _given_name(index: GraphIndex, value: ir.Value | None) -> str:
    """What a tensor is called in the float model: a graph's output gives its name to its DQ."""
    name = _name(value)
    given = name.removesuffix("_unquantized")
    return given if given in index.value else name


def _name(value: ir.Value | None) -> str:
    return (value.name or "") if value is not None else ""
