"""A drawn graph: nodes never overlap, and every edge goes on in reading direction."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from qdqtune.graph._layout import lay_out


@st.composite
def acyclic(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    count = draw(st.integers(1, 40))
    pair = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    pairs = draw(st.lists(pair, max_size=80))
    return count, sorted({(min(each), max(each)) for each in pairs if each[0] != each[1]})


@given(acyclic())
def test_nodes_do_not_overlap_and_stay_inside(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = graph
    layout = lay_out(count, edges)
    assert len(layout.nodes) == count
    assert len(layout.bends) == len(edges)
    rows: dict[float, list[float]] = {}
    for x, y in layout.nodes:
        assert 0.49 <= x <= layout.width - 0.49
        assert 0.0 < y < layout.height
        rows.setdefault(y, []).append(x)
    for places in rows.values():
        ordered = sorted(places)
        gaps = (after - before for before, after in itertools.pairwise(ordered))
        assert all(gap >= 0.98 for gap in gaps)


@given(acyclic())
def test_an_edge_goes_down_unless_it_begins_a_column(
    graph: tuple[int, list[tuple[int, int]]],
) -> None:
    layout = lay_out(*graph)
    for source, target in graph[1]:
        (x, y), (to_x, to_y) = layout.nodes[source], layout.nodes[target]
        assert to_y > y or to_x > x


@given(acyclic())
def test_a_layout_is_repeatable(graph: tuple[int, list[tuple[int, int]]]) -> None:
    assert lay_out(*graph) == lay_out(*graph)


def test_a_long_chain_is_folded_into_columns_of_a_page_s_shape() -> None:
    layout = lay_out(400, [(n, n + 1) for n in range(399)])
    assert 1.0 < layout.width * 112 / (layout.height * 44) < 3.0


def test_a_chain_runs_straight_down() -> None:
    layout = lay_out(4, [(0, 1), (1, 2), (2, 3)])
    assert len({x for x, _ in layout.nodes}) == 1
    assert not any(layout.bends)


def test_nothing_is_drawn_of_nothing() -> None:
    assert lay_out(0, []).nodes == ()
