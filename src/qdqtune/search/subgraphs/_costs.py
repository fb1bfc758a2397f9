"""The costs of subgraphs: their times, corrected by what was seen in whole models.

There is a cost for each form of every subgraph, and one for each tensor and direction in which its
values have to be converted. A borderless subgraph reads and writes floats, such as one whose
products are quantized at run time. A choice is a set of numbers: a subgraph's own if it is
quantized, and that plus the number of all subgraphs if it is borderless.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import COPY_OPS
from qdqtune.records._tuning import IN_PLACE
from qdqtune.search._space import State
from qdqtune.search.subgraphs._fusion_groups import FusionGroup
from qdqtune.search.subgraphs._observed_costs import ObservedCosts
from qdqtune.search.subgraphs._quantizable_groups import QuantizableGroup


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


def gain_of(costs: Costs, state: Iterable[int], reference: Iterable[int] = ()) -> float:
    """The logarithm of how much faster a choice should be than another, by the costs alone."""
    before, after = costs.total_ms(frozenset(reference)), costs.total_ms(frozenset(state))
    is_known = 0.0 < before < math.inf and 0.0 < after < math.inf
    return math.log(before / after) if is_known else 0.0
