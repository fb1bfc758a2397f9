"""Where paths meet again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qdqtune.search.regions._region_search import post_dominators

DEPTH = 20_000


@st.composite
def dags(draw: st.DrawFn) -> list[list[int]]:
    size = draw(st.integers(1, 12))
    return [
        sorted(draw(st.sets(st.integers(node + 1, size - 1), max_size=3)))
        if node < size - 1
        else []
        for node in range(size)
    ]


def by_definition(successors: list[list[int]]) -> list[int]:
    """Sets of everything that all paths pass; the first of them in topological order."""
    exit_ = len(successors)
    passed: dict[int, set[int]] = {exit_: {exit_}}
    for node in range(exit_ - 1, -1, -1):
        common = set.intersection(*(passed[reader] for reader in successors[node] or [exit_]))
        passed[node] = common | {node}
    return [min(passed[node] - {node}) for node in range(exit_)]


@given(dags())
def test_against_the_definition(successors: list[list[int]]) -> None:
    assert post_dominators(successors) == by_definition(successors)


def test_long_skips_into_a_long_chain() -> None:
    successors = [[node + 1, DEPTH] for node in range(DEPTH)] + [[]]
    meeting = post_dominators(successors)
    assert meeting[0] == DEPTH
    assert meeting[DEPTH - 1] == DEPTH
    assert meeting[DEPTH] == DEPTH + 1
