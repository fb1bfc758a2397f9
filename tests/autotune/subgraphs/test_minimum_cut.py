"""The source's side of a minimum cut, against all cuts of small networks."""

from __future__ import annotations

import itertools
import random
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtune.search.subgraphs._minimum_cut import SINK, SOURCE, Network

Arc = tuple[int, int, int]


def side_of(size: int, arcs: list[Arc]) -> set[int]:
    network = Network(1.0)
    for _ in range(size):
        network.node()
    for start, end, cost in arcs:
        network.connect(start, end, float(cost))
    return network.sources_side()


def cost_of(side: set[int], arcs: list[Arc]) -> int:
    return sum(cost for start, end, cost in arcs if start in side and end not in side)


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(0, 24))
@settings(deadline=None)
def test_it_is_the_smallest_side_of_all_cheapest_cuts(seed: int, size: int, count: int) -> None:
    rng = random.Random(seed)
    nodes = range(size + 2)
    arcs = [(*rng.sample(nodes, 2), rng.choice((0, 1, 1, 2, 5, 9))) for _ in range(count)]
    sides = [
        {SOURCE, *chosen}
        for length in range(size + 1)
        for chosen in itertools.combinations(range(2, size + 2), length)
    ]
    least = min(cost_of(side, arcs) for side in sides)

    expected = set.intersection(*(side for side in sides if cost_of(side, arcs) == least))

    assert side_of(size, arcs) == expected


def test_what_is_forbidden_costs_more_than_all_the_rest() -> None:
    network = Network(1000.0)
    one, other = network.node(), network.node()
    network.connect(SOURCE, one, 100.0)
    network.connect(other, SINK, 300.0)
    network.forbid(one, other)

    assert network.sources_side() == {SOURCE}
    network.forbid(SOURCE, one)
    assert network.sources_side() == {SOURCE, one, other}


def test_a_long_chain_needs_no_recursion() -> None:
    size = 2 * sys.getrecursionlimit()
    chain = [(SOURCE, 2, 9), *((node, node + 1, 9) for node in range(2, size + 1))]

    assert side_of(size, [*chain, (size + 1, SINK, 3)]) == set(range(size + 2)) - {SINK}
