"""The costs of subgraphs, and their cheapest assembly: each float, quantized or borderless.

Costs are the times of subgraphs, corrected by layers of whole models. With a cost for each form of
every subgraph, and one for each tensor and direction in which its values have to be converted, the
best choice is a minimum cut of a small network: it is found exactly.

A borderless subgraph reads and writes floats, such as one whose products are quantized at run time.
A choice is a set of numbers: a subgraph's own if it is quantized, and that plus the number of all
subgraphs if it is borderless.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx_ir as ir

from qdqtune.engines.layers._mapper import nodes_of_layers
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import COPY_OPS, DEQUANTIZE, QDQ_OPS, QUANTIZE
from qdqtune.qdq._dynamic import find_dynamic_ops
from qdqtune.records._layers import BETWEEN, MappedLayer
from qdqtune.records._measurement import LayerTime
from qdqtune.records._tuning import IN_PLACE
from qdqtune.search._space import State
from qdqtune.search.subgraphs._fusion_groups import FusionGroup
from qdqtune.search.subgraphs._minimum_cut import SINK, SOURCE, UNITS, Network
from qdqtune.search.subgraphs._quantizable_groups import QuantizableGroup

# Choices that are looked at for one that stays what it is.
_MOST_BRANCHES = 200
_MOST_ROUNDS = 8
# Subgraphs times branches, so that large models don't take long.
_MOST_WORK = 20_000
_MOST_ARMS = 10_000


@dataclass(frozen=True)
class Crossing:
    """A tensor that goes from one subgraph to others.

    Attributes:
        tensor: Its name.
        producer: The subgraph that makes it; None if the model is given it, as float.
        consumers: The other subgraphs that read it.
        is_read_as_float: Whether something that is never quantized reads it, too.
        quantize_ms: What it costs to quantize it once.
        dequantize_ms: What it costs to turn it back to float once.
        fused_by: The subgraph that makes it, if its integer kernels write either floats or integers
            at no cost: both only with a conversion. None if the engine's kernels don't.
        fused_ms: What it costs to quantize it once in such a kernel; no more than elsewhere.
    """

    tensor: str
    producer: int | None
    consumers: frozenset[int]
    is_read_as_float: bool = False
    quantize_ms: float = 0.0
    dequantize_ms: float = 0.0
    fused_by: int | None = None
    fused_ms: float = 0.0

    def is_fused_in(self, state: Collection[int]) -> bool:
        """Whether the kernel that makes it quantizes it, as everybody reads it quantized."""
        is_made_so = self.fused_by is not None and self.fused_by in state
        return is_made_so and not self.is_read_as_float and self.consumers <= set(state)

    def is_quantized_in(self, state: Collection[int]) -> bool:
        """Whether somebody reads it quantized, and the kernel that makes it doesn't do that."""
        if self.fused_by is None:
            is_float = self.producer is None or self.producer not in state
        else:
            is_float = not self.is_fused_in(state)
        return is_float and any(number in state for number in self.consumers)

    def is_dequantized_in(self, state: Collection[int]) -> bool:
        """Whether it is made quantized, and somebody reads it as float."""
        if self.producer is None or self.producer not in state:
            return False
        return self.is_read_as_float or any(number not in state for number in self.consumers)

    def cost_ms(self, state: Collection[int]) -> float:
        """What its conversions cost with these subgraphs quantized."""
        spent = self.quantize_ms if self.is_quantized_in(state) else 0.0
        if self.consumers and self.is_fused_in(state):
            spent = self.fused_ms
        return spent + (self.dequantize_ms if self.is_dequantized_in(state) else 0.0)


@dataclass(frozen=True)
class Costs:
    """What is known of all subgraphs of a model.

    Attributes:
        float_ms: Milliseconds of each subgraph as float.
        quantized_ms: The same quantized, without conversions at its borders; None if it can't be.
        crossings: What goes between them.
        follows: Subgraphs that are quantized only if another one is: the subgraph, and that one.
        moves: Subgraphs that only move or pick values, and the one whose kernels may quantize them
            before that.
        never: Subgraphs that stay float even if they are chosen.
        rest_ms: What the rest of the model costs, if nothing was seen.
        borderless_ms: Milliseconds of each subgraph in its borderless form; None if it has none.
            Empty if no subgraph has one.
        rests: What the rest was seen to cost in whole models, with what was quantized in them: what
            moves values takes less time if they are small.
    """

    float_ms: tuple[float, ...]
    quantized_ms: tuple[float | None, ...]
    crossings: tuple[Crossing, ...] = ()
    follows: tuple[tuple[int, int], ...] = ()
    never: frozenset[int] = frozenset()
    rest_ms: float = 0.0
    borderless_ms: tuple[float | None, ...] = ()
    rests: tuple[tuple[State, float], ...] = ()
    moves: tuple[tuple[int, int], ...] = ()

    def form_ms(self, number: int) -> float | None:
        """What a subgraph costs in the form that a number stands for; None if it has none."""
        count = len(self.float_ms)
        if number < count:
            return self.quantized_ms[number]
        return self.borderless_ms[number - count] if self.borderless_ms else None

    def total_ms(self, state: Collection[int]) -> float:
        """What the whole model costs with this choice; infinite if there is no such model."""
        state = self._taken(state)
        count = len(self.float_ms)
        if len({number % count for number in state}) < len(state):  # one of them in two forms
            return math.inf
        total = self._rest_in(state)
        for unit, as_float in enumerate(self.float_ms):
            number = form_in(state, unit, count)
            cost = as_float if number is None else self.form_ms(number)
            total += math.inf if cost is None else cost
        return total + sum(crossing.cost_ms(state) for crossing in self.crossings)

    def _rest_in(self, state: State) -> float:
        """What the rest should cost: as in the models seen, the more alike they are, the more."""
        count = len(self.float_ms)
        weights = []
        for seen, ms in self.rests:
            apart = sum(self.float_ms[number % count] for number in seen ^ state)
            if not apart:
                return ms
            weights.append(1.0 / apart)
        if not weights:
            return self.rest_ms
        parts = (weight * ms for weight, (_, ms) in zip(weights, self.rests, strict=True))
        return sum(parts) / sum(weights)

    def _taken(self, state: Collection[int]) -> frozenset[int]:
        """What is quantized of a choice: not those that have nobody to follow.

        What only moves values between quantized subgraphs is, too, if kernels quantize what they
        write: they then do it before the move.
        """
        taken = frozenset(state) - self.never
        while lost := {one for one, leader in self.follows if one in taken and leader not in taken}:
            taken -= lost
        while moved := {one for one, leader in self.moves
                        if leader in taken and one not in taken and self._is_moved_in(one, taken)
                        }:  # fmt: skip
            taken |= moved
        return taken

    def _is_moved_in(self, unit: int, state: Collection[int]) -> bool:
        """Whether all results of a subgraph that moves values are read quantized."""
        made = self._made_by.get(unit, ())
        return (
            bool(made)
            and self.form_ms(unit) is not None
            and all(
                crossing.consumers and crossing.is_fused_in({unit, *state}) for crossing in made
            )
        )

    @cached_property
    def _made_by(self) -> Mapping[int, Sequence[Crossing]]:
        """What subgraphs make whose kernels may quantize it, by subgraph."""
        found: dict[int, list[Crossing]] = {}
        for crossing in self.crossings:
            if crossing.fused_by is not None:
                found.setdefault(crossing.fused_by, []).append(crossing)
        return found


# How far apart what a subgraph costs alone and in the model may be.
_MOST_APART = 10.0


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
    borderless: list[float | None] = []
    for number, unit in enumerate(units):
        alone = unit.as_float.inside_ms
        seen = plain.unit_ms.get(number, 0.0)
        if not seen and not (is_known and unit.is_passthrough):  # moves may really be for nothing
            seen = alone
        # A time that the engine hardly told must not make the other a thousand times as long.
        scale = seen / alone if seen > 0.0 and alone > 0.0 else 1.0
        scale = min(max(scale, 1.0 / _MOST_APART), _MOST_APART)
        as_float.append(seen)
        ways = (unit.times_with(unit.scheme), unit.times_with(unit.borderless))
        inside, apart = (None if way is None else way.inside_ms * scale for way in ways)
        # What only moves values follows its neighbours, also into the layout of their kernels;
        # alone it may run as something else. Seen on a CPU: a MaxPool of uint8 that took 50 times
        # as long as between integer Convs.
        if inside is not None and unit.is_passthrough:
            inside = min(inside, seen)
        quantized.append(inside)
        borderless.append(apart)
    borders = _Borders(units, groups, index)
    follows = borders.follows()
    return Costs(
        tuple(as_float),
        tuple(quantized),
        tuple(borders.crossings()),
        tuple((number, leader) for number, leader in follows.items() if leader is not None),
        frozenset(number for number, leader in follows.items() if leader is None),
        plain.rest_ms,
        tuple(borderless) if any(unit.borderless for unit in units) else (),
        moves=tuple(borders.moves()),
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
    count = len(costs.float_ms)
    as_float, quantized = list(costs.float_ms), list(costs.quantized_ms)
    borderless = list(costs.borderless_ms)

    def times(unit: int, number: int | None) -> list[float]:
        """What a unit was seen to cost in the form that a number stands for; None for float."""
        return [
            model.unit_ms[unit]
            for model in models
            if form_in(model.quantized, unit, count) == number
            and model.unit_ms.get(unit)
            and (number not in model.otherwise or model is own)
        ]

    for unit in range(count):
        as_float[unit] = next(iter(times(unit, None)), as_float[unit])
        if quantized[unit] is not None:
            quantized[unit] = next(iter(times(unit, unit)), quantized[unit])
        if borderless and borderless[unit] is not None:
            borderless[unit] = next(iter(times(unit, unit + count)), borderless[unit])
    return replace(
        costs,
        float_ms=tuple(as_float),
        quantized_ms=tuple(quantized),
        crossings=tuple(_seen_crossing(crossing, models) for crossing in costs.crossings),
        borderless_ms=tuple(borderless),
        rests=tuple((model.quantized, model.rest_ms) for model in models),
    )


def form_in(state: Collection[int], unit: int, count: int) -> int | None:
    """The number of the form that one of so many units has in a choice; None if it is float."""
    return next((number for number in (unit, unit + count) if number in state), None)


def _seen_crossing(crossing: Crossing, models: Sequence[ObservedCosts]) -> Crossing:
    """What converting a tensor was seen to cost: nothing where other layers took it along."""
    for model in reversed(models):  # the first is the last word
        ms = model.quantize_ms.get(crossing.tensor, 0.0)
        if crossing.is_quantized_in(model.quantized):
            fused_ms = min(ms, crossing.fused_ms)
            crossing = replace(crossing, quantize_ms=ms, fused_ms=fused_ms)
        elif crossing.is_fused_in(model.quantized):
            quantize_ms = max(ms, crossing.quantize_ms)
            crossing = replace(crossing, quantize_ms=quantize_ms, fused_ms=ms)
        if crossing.is_dequantized_in(model.quantized):
            ms = model.dequantize_ms.get(crossing.tensor, 0.0)
            crossing = replace(crossing, dequantize_ms=ms)
    return crossing


class _Borders:
    """Which units make and read the tensors between them."""

    def __init__(
        self, units: Sequence[QuantizableGroup], groups: Sequence[FusionGroup], index: GraphIndex
    ) -> None:
        self._units = units
        self._index = index
        self._group_of = {name: group.number for group in groups for name in group.nodes}
        self._unit_of: Mapping[int | None, int] = {unit.group: n for n, unit in enumerate(units)}

    def _home(self, tensor: str) -> int | None:
        """The group that makes a tensor."""
        maker = self._index.value[tensor].producer()
        return self._group_of.get(maker.name or "") if maker is not None else None

    def _producer(self, tensor: str) -> int | None:
        """The unit that makes a tensor, unless that is float whatever the unit is."""
        unit = self._unit_of.get(self._home(tensor))
        return unit if unit is not None and tensor in self._units[unit].outputs else None

    def crossings(self) -> Iterator[Crossing]:
        """What goes between units."""
        units = self._units
        for tensor in dict.fromkeys(t for u in units for t in (*u.content.inputs, *u.outputs)):
            if not self._index.is_float(tensor):
                continue
            producer = self._producer(tensor)
            edges = self._index.readers(tensor)
            readers = {self._group_of.get(edge.node, -1) for edge in edges} - {self._home(tensor)}
            known = {self._unit_of.get(reader) for reader in readers}
            consumers = frozenset(n for n in known if n is not None and tensor in units[n].inputs)
            as_float = self._index.read_by_body(tensor) or len(consumers) < len(readers)
            if consumers or producer is not None:
                yield self._crossing(tensor, producer, consumers, as_float)

    def _crossing(
        self, tensor: str, producer: int | None, consumers: frozenset[int], as_float: bool
    ) -> Crossing:
        """What converting a tensor costs, by what was seen at the borders of the subgraphs around.

        A change of layout is paid with the conversion: floats leave the layout of the float
        kernels, and quantized values enter that of the others.
        """
        readers = [self._units[number] for number in sorted(consumers)]
        maker = self._unit_of.get(self._home(tensor))
        quantize_ms = max((unit.conversion_ms(tensor) for unit in readers), default=0.0)
        if quantize_ms > 0.0 and maker is not None:
            quantize_ms += self._units[maker].float_layout_ms(tensor)
        dequantize_ms = 0.0
        if producer is not None:
            dequantize_ms = self._units[producer].conversion_ms(tensor)
            dequantize_ms += max((unit.float_layout_ms(tensor) for unit in readers), default=0.0)
        return Crossing(
            tensor, producer, consumers, as_float, quantize_ms, dequantize_ms,
            self._fused_by(tensor),
        )  # fmt: skip

    def _fused_by(self, tensor: str) -> int | None:
        """The unit whose kernels may quantize a tensor, before it is moved, too."""
        node = self._index.value[tensor].producer()
        while node is not None:
            unit = self._unit_of.get(self._group_of.get(node.name or ""))
            if unit is not None:
                return unit if self._units[unit].times.how == IN_PLACE else None
            source = node.inputs[0] if node.op_type in COPY_OPS else None
            node = source.producer() if source is not None else None
        return None

    def moves(self) -> Iterator[tuple[int, int]]:
        """Units that only move or pick values, and those that may quantize them before."""
        for number, unit in enumerate(self._units):
            leaders = {self._fused_by(tensor) for tensor in unit.inputs}
            types = {self._index.node[name].op_type for name in unit.content.nodes}
            if types <= COPY_OPS | {"MaxPool"} and len(leaders) == 1:
                leader = leaders.pop()
                if leader is not None:
                    yield number, leader

    def follows(self) -> dict[int, int | None]:
        """Units that only move values, and whose result they move; None if no unit makes it."""
        found: dict[int, int | None] = {}
        for number, unit in enumerate(self._units):
            leaders = {self._unit_of.get(self._home(tensor)) for tensor in unit.inputs}
            if unit.is_passthrough and len(leaders) <= 1:
                found[number] = next(iter(leaders), None)
        return found


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
    unit = unit_of.get(maker.name or "") if maker is not None else None
    waiting = [reader for reader, _ in value.uses()] if value is not None else []
    while unit is not None and waiting:
        reader = waiting.pop()
        if reader.op_type in QDQ_OPS:
            waiting += [each for each, _ in reader.outputs[0].uses()]
        elif unit_of.get(reader.name or "") != unit:
            return None
    return unit


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
        value = self._index.value.get(read[0]) if len(read) == 1 else None
        if value is None or QDQ_OPS.issuperset(layer.node_types):
            return "", ""
        while (node := value.producer()) is not None and node.op_type in QDQ_OPS:
            value = node.inputs[0]
            if value is None:
                return "", ""
        served = {self._unit_of.get(name) for name in layer.nodes}
        is_read_quantized = not self._quantized.isdisjoint(served)
        is_made_quantized = node is not None and self._unit_of.get(node.name or "") in (
            self._quantized
        )
        if is_read_quantized == is_made_quantized:
            return "", ""
        return QUANTIZE if is_read_quantized else DEQUANTIZE, _given_name(self._index, value)

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


def assemble(costs: Costs, fixed: Mapping[int, bool] | None = None) -> State:
    """The subgraphs that are to be quantized or borderless so that the model costs least.

    It is exact with three forms of a subgraph, too: at the borders, float and borderless ones are
    the same, so each costs the smaller of both wherever it is not quantized, and what remains is
    the choice between two. That is a minimum cut, as no two subgraphs gain by being different.

    Of choices that cost the same, the one with the fewest quantized subgraphs is taken.

    Args:
        costs: What everything costs.
        fixed: Numbers that are part of the choice, or are not, whatever it costs.
    """
    fixed = fixed or {}
    count = len(costs.float_ms)
    network = Network(_scale(costs))
    subgraphs = [network.node() for _ in range(count)]
    apart = [_not_quantized(costs, number, fixed) for number in range(count)]
    for number, subgraph in enumerate(subgraphs):
        quantized = costs.quantized_ms[number]
        # A subgraph on the source's side is quantized: cut off from the sink, it costs that.
        if quantized is None or number in costs.never:
            network.forbid(subgraph, SINK)
        else:
            network.connect(subgraph, SINK, quantized)
        network.connect(SOURCE, subgraph, apart[number][0])
    for number, is_part in fixed.items():
        subgraph = subgraphs[number % count]
        if is_part and number < count:
            network.forbid(SOURCE, subgraph)
        elif is_part or number < count:
            network.forbid(subgraph, SINK)
    for subgraph, leader in costs.follows:
        network.forbid(subgraphs[subgraph], subgraphs[leader])
    for crossing in costs.crossings:
        _add_crossing(network, subgraphs, crossing)
    reached = network.sources_side()
    return frozenset(
        number if subgraph in reached else number + count
        for number, subgraph in enumerate(subgraphs)
        if subgraph in reached or apart[number][1]
    )


def _not_quantized(costs: Costs, unit: int, fixed: Mapping[int, bool]) -> tuple[float, bool]:
    """What a subgraph costs at least if it is not quantized, and whether it is borderless then."""
    number = unit + len(costs.float_ms)
    as_float, borderless = costs.float_ms[unit], costs.form_ms(number)
    if borderless is None or not fixed.get(number, borderless < as_float):
        return as_float, False
    return borderless, True


def _add_crossing(network: Network, subgraphs: Sequence[int], crossing: Crossing) -> None:
    """Each direction has a node of its own: it is paid once, however many read the tensor."""
    maker = SINK if crossing.producer is None else subgraphs[crossing.producer]
    if crossing.consumers and crossing.quantize_ms > 0.0:
        wanted = network.node()  # with the quantized subgraphs as soon as one of the readers is
        for reader in crossing.consumers:
            network.forbid(subgraphs[reader], wanted)
        if crossing.fused_by is None:
            network.connect(wanted, maker, crossing.quantize_ms)
        else:
            saved_ms = crossing.quantize_ms - crossing.fused_ms
            saved_ms = 0.0 if crossing.is_read_as_float else saved_ms
            fused = network.node()  # with the quantized subgraphs only if all around it are
            for around in {crossing.fused_by, *crossing.consumers}:
                network.forbid(fused, subgraphs[around])
            network.connect(wanted, fused, saved_ms)
            network.connect(wanted, SINK, crossing.quantize_ms - saved_ms)
    if crossing.producer is None or crossing.dequantize_ms <= 0.0:
        return
    if crossing.is_read_as_float:
        network.connect(maker, SINK, crossing.dequantize_ms)
    elif crossing.consumers:
        unwanted = network.node()  # with the float subgraphs as soon as one of the readers is
        for reader in crossing.consumers:
            network.forbid(unwanted, subgraphs[reader])
        network.connect(maker, unwanted, crossing.dequantize_ms)


def _scale(costs: Costs) -> float:
    """Whole units per millisecond, so that everything together fits into what a solver counts."""
    forms = (*costs.quantized_ms, *costs.borderless_ms)
    whole = sum(costs.float_ms) + sum(ms for ms in forms if ms is not None)
    whole += sum(each.quantize_ms + each.dequantize_ms for each in costs.crossings)
    # A power of two: what is equal stays equal.
    return 2.0 ** math.floor(math.log2(UNITS / whole)) if whole > 0.0 else 1.0


def gain_of(costs: Costs, state: Iterable[int], reference: Iterable[int] = ()) -> float:
    """The logarithm of how much faster a choice should be than another, by the costs alone."""
    before, after = costs.total_ms(frozenset(reference)), costs.total_ms(frozenset(state))
    is_known = 0.0 < before < math.inf and 0.0 < after < math.inf
    return math.log(before / after) if is_known else 0.0


def assemble_closed(
    costs: Costs, closed: Callable[[State], State], fixed: Mapping[int, bool] | None = None
) -> State:
    """The cheapest choice that the engine takes as it is meant.

    A subgraph between quantized ones may become quantized with them, whether or not it was chosen.
    Choices of that kind are excluded one after the other, the cheapest first, until one is found
    that stays what it is.

    Args:
        costs: What everything costs.
        closed: What a choice becomes in the engine.
        fixed: As `assemble` takes it.
    """
    best, least = _settled(costs, closed, dict(fixed or {}))
    waiting: list[tuple[float, int, dict[int, bool]]] = [(0.0, 0, dict(fixed or {}))]
    most = max(1, min(_MOST_BRANCHES, _MOST_WORK // (len(costs.float_ms) + 1)))
    for count in range(1, most):
        if not waiting or waiting[0][0] >= least:
            break
        branch = heapq.heappop(waiting)[2]
        state = assemble(costs, branch)
        bound = costs.total_ms(state)
        real = closed(state)
        if bound < least and costs.total_ms(real) < least:
            best, least = real, costs.total_ms(real)
        if bound >= least or real == state:
            continue
        for number, more in enumerate(_branches(costs, state, real, branch)):
            heapq.heappush(waiting, (bound, count * _MOST_ARMS + number, more))
    return best


def _settled(
    costs: Costs, closed: Callable[[State], State], fixed: dict[int, bool]
) -> tuple[State, float]:
    """A good choice that stays what it is: what becomes another is let be that, all at once."""
    best: State = frozenset()
    least = math.inf
    for _ in range(_MOST_ROUNDS):
        state = assemble(costs, fixed)
        real = closed(state)
        if costs.total_ms(real) < least:
            best, least = real, costs.total_ms(real)
        changed = [number for number in state ^ real if number not in fixed]
        if not changed:
            break
        fixed = {**fixed, **{number: number in real for number in changed}}
    return best, least


def _branches(
    costs: Costs, state: State, real: State, fixed: Mapping[int, bool]
) -> Iterator[dict[int, bool]]:
    """Ways to exclude a choice that becomes another one, and none that doesn't."""
    changed = [number for number in sorted(state ^ real) if number not in fixed]
    if not changed:
        return
    count = len(costs.float_ms)
    subgraph = max(changed, key=lambda number: costs.float_ms[number % count])
    if subgraph in state:  # left float by the engine
        yield {**fixed, subgraph: False}
        return
    yield {**fixed, subgraph: True}
    for crossing in costs.crossings:
        made_by = set() if crossing.producer is None else {crossing.producer}
        around = crossing.consumers | made_by
        for near in sorted(around - {subgraph}) if subgraph in around else ():
            if near in state and near not in fixed:
                yield {**fixed, subgraph: False, near: False}
