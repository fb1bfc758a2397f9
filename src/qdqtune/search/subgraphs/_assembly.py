"""The cheapest assembly of subgraphs: each float, quantized or borderless.

With a cost for each form of every subgraph, and one for each tensor whose values have to be
converted, the best choice is a minimum cut of a small network: it is found exactly.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from qdqtune.search._space import State
from qdqtune.search.subgraphs._costs import Costs, Crossing
from qdqtune.search.subgraphs._minimum_cut import SINK, SOURCE, UNITS, Network

# Choices that are looked at for one that stays what it is.
_MOST_BRANCHES = 200
_MOST_ROUNDS = 8
# Subgraphs times branches, so that large models don't take long.
_MOST_WORK = 20_000
_MOST_ARMS = 10_000


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
