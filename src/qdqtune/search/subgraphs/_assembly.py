"""The cheapest assembly of subgraphs: each float or quantized, conversions paid where they meet.

With a cost for both forms of every subgraph, and one for each tensor and direction in which its
values have to be converted, the best choice is a minimum cut of a small network: it is found
exactly.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from qdqtune.search._space import State

# What all costs together come to in whole numbers, which is what the solver counts in.
_UNITS = 1 << 29
_SOURCE, _SINK, _FIRST = 0, 1, 2
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
    """

    tensor: str
    producer: int | None
    consumers: frozenset[int]
    is_read_as_float: bool = False
    quantize_ms: float = 0.0
    dequantize_ms: float = 0.0

    def is_quantized_in(self, state: Collection[int]) -> bool:
        """Whether it is made as float, and somebody reads it quantized."""
        is_float = self.producer is None or self.producer not in state
        return is_float and any(number in state for number in self.consumers)

    def is_dequantized_in(self, state: Collection[int]) -> bool:
        """Whether it is made quantized, and somebody reads it as float."""
        if self.producer is None or self.producer not in state:
            return False
        return self.is_read_as_float or any(number not in state for number in self.consumers)

    def cost_ms(self, state: Collection[int]) -> float:
        """What its conversions cost with these subgraphs quantized."""
        if self.is_quantized_in(state):
            return self.quantize_ms
        return self.dequantize_ms if self.is_dequantized_in(state) else 0.0


@dataclass(frozen=True)
class Costs:
    """What is known of all subgraphs of a model.

    Attributes:
        float_ms: Milliseconds of each subgraph as float.
        quantized_ms: The same quantized, without conversions at its borders; None if it can't be.
        crossings: What goes between them.
        follows: Subgraphs that are quantized only if another one is: the subgraph, and that one.
        never: Subgraphs that stay float even if they are chosen.
        rest_ms: What the rest of the model costs, whatever is chosen.
    """

    float_ms: tuple[float, ...]
    quantized_ms: tuple[float | None, ...]
    crossings: tuple[Crossing, ...] = ()
    follows: tuple[tuple[int, int], ...] = ()
    never: frozenset[int] = frozenset()
    rest_ms: float = 0.0

    def total_ms(self, state: Collection[int]) -> float:
        """What the whole model costs with these subgraphs quantized; infinite if one can't be."""
        state = self._taken(state)
        subgraphs = zip(self.float_ms, self.quantized_ms, strict=True)
        total = self.rest_ms
        for number, (as_float, quantized) in enumerate(subgraphs):
            cost = as_float if number not in state else quantized
            total += math.inf if cost is None else cost
        return total + sum(crossing.cost_ms(state) for crossing in self.crossings)

    def _taken(self, state: Collection[int]) -> frozenset[int]:
        """What is quantized of a choice: not those that have nobody to follow."""
        taken = frozenset(state) - self.never
        while lost := {one for one, leader in self.follows if one in taken and leader not in taken}:
            taken -= lost
        return taken


def assemble(costs: Costs, fixed: Mapping[int, bool] | None = None) -> State:
    """The subgraphs that are to be quantized so that the model costs least.

    Of choices that cost the same, the one with the fewest quantized subgraphs is taken.

    Args:
        costs: What everything costs.
        fixed: Subgraphs that are quantized, or are not, whatever it costs.
    """
    scale = _scale(costs)
    network = _Network()
    subgraphs = [network.node() for _ in costs.float_ms]
    for number, subgraph in enumerate(subgraphs):
        quantized = costs.quantized_ms[number]
        # A subgraph on the source's side is quantized: cut off from the sink, it costs that.
        if quantized is None or number in costs.never:
            network.forbid(subgraph, _SINK)
        else:
            network.connect(subgraph, _SINK, _whole(quantized * scale))
        network.connect(_SOURCE, subgraph, _whole(costs.float_ms[number] * scale))
    for subgraph, is_quantized in (fixed or {}).items():
        network.forbid(
            *((_SOURCE, subgraphs[subgraph]) if is_quantized else (subgraphs[subgraph], _SINK))
        )
    for subgraph, leader in costs.follows:
        network.forbid(subgraphs[subgraph], subgraphs[leader])
    for crossing in costs.crossings:
        _add_crossing(network, subgraphs, crossing, scale)
    reached = network.sources_side()
    return frozenset(number for number, subgraph in enumerate(subgraphs) if subgraph in reached)


def _add_crossing(
    network: _Network, subgraphs: Sequence[int], crossing: Crossing, scale: float
) -> None:
    """Each direction has a node of its own: it is paid once, however many read the tensor."""
    maker = _SINK if crossing.producer is None else subgraphs[crossing.producer]
    if crossing.consumers and crossing.quantize_ms > 0.0:
        wanted = network.node()  # with the quantized subgraphs as soon as one of the readers is
        for reader in crossing.consumers:
            network.forbid(subgraphs[reader], wanted)
        network.connect(wanted, maker, _whole(crossing.quantize_ms * scale))
    if crossing.producer is None or crossing.dequantize_ms <= 0.0:
        return
    if crossing.is_read_as_float:
        network.connect(maker, _SINK, _whole(crossing.dequantize_ms * scale))
    elif crossing.consumers:
        unwanted = network.node()  # with the float subgraphs as soon as one of the readers is
        for reader in crossing.consumers:
            network.forbid(unwanted, subgraphs[reader])
        network.connect(maker, unwanted, _whole(crossing.dequantize_ms * scale))


class _Network:
    """Capacities between numbered nodes; the source's side will be what is quantized."""

    def __init__(self) -> None:
        self._size = _FIRST
        self._from: list[int] = []
        self._to: list[int] = []
        self._capacity: list[int] = []

    def node(self) -> int:
        """One more node."""
        self._size += 1
        return self._size - 1

    def connect(self, start: int, end: int, capacity: int) -> None:
        """Let it cost something to have one node on the source's side and the other not."""
        self._from.append(start)
        self._to.append(end)
        self._capacity.append(capacity)

    def forbid(self, start: int, end: int) -> None:
        """Let it cost more than everything else together."""
        self.connect(start, end, 2 * _UNITS)

    def sources_side(self) -> set[int]:
        """The nodes that are on the source's side of every minimum cut."""
        shape = (self._size, self._size)
        arcs = (np.array(self._from), np.array(self._to))
        capacities = np.array(self._capacity, dtype=np.int64)
        summed = coo_array((capacities, arcs), shape=shape).tocsr()
        summed.data = np.minimum(summed.data, 2 * _UNITS).astype(np.int32)
        flow = maximum_flow(summed.astype(np.int32), _SOURCE, _SINK).flow
        residual = (summed - flow).tocsr()
        residual.data = np.where(residual.data > 0, 1, 0)
        residual.eliminate_zeros()
        order = breadth_first_order(residual, _SOURCE, return_predecessors=False)
        return {int(node) for node in order}


def _scale(costs: Costs) -> float:
    """Whole units per millisecond, so that everything together fits into what a solver counts."""
    whole = sum(costs.float_ms) + sum(ms for ms in costs.quantized_ms if ms is not None)
    whole += sum(each.quantize_ms + each.dequantize_ms for each in costs.crossings)
    # A power of two: what is equal stays equal.
    return 2.0 ** math.floor(math.log2(_UNITS / whole)) if whole > 0.0 else 1.0


def _whole(units: float) -> int:
    return max(0, round(units))


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
    subgraph = max(changed, key=lambda number: costs.float_ms[number])
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
