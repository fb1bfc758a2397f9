"""The tree of regions."""

from __future__ import annotations

import pytest

from qdqtune.search.regions._region import Region, RegionType, leaves, walk

DEPTH = 20_000


def region(number: int, *nodes: int, level: int = 0) -> Region:
    made = Region(number, level, RegionType.LEAF)
    made.nodes.update(nodes)
    return made


def test_a_child_moves_to_its_new_parent() -> None:
    a, b, child = region(0), region(1), region(2, 5)
    a.add_child(child)
    b.add_child(child)
    assert a.children == []
    assert b.children == [child]
    assert child.parent is b


def test_a_child_is_taken_once() -> None:
    a, child = region(0), region(1)
    a.add_child(child)
    a.add_child(region(1))
    assert a.children == [child]


def test_circles_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    a, b, c = region(0), region(1), region(2)
    a.add_child(b)
    b.add_child(c)
    a.add_child(a)
    c.add_child(a)
    assert len(caplog.records) == 2
    assert c.children == []
    assert a.parent is None
    assert c.is_descendant_of(a)
    assert not a.is_descendant_of(c)


def test_removing_says_whether_it_was_there() -> None:
    a, b = region(0), region(1)
    a.add_child(b)
    assert a.remove_child(b)
    assert b.parent is None
    assert not a.remove_child(b)


def test_nodes_of_the_region_and_below() -> None:
    top, child = region(0, 3, 1), region(1, 7)
    top.add_child(child)
    assert top.get_nodes(sort=True) == [1, 3]
    assert top.get_region_nodes_and_descendants() == {1, 3, 7}
    assert top.get_size_of_region_and_descendants() == 3
    assert not top.contains_node(7)
    assert top.contains_node_within_region_and_descendants(7)
    assert not top.contains_node_within_region_and_descendants(8)


def test_children_sorted_by_depth_then_size() -> None:
    top = region(0)
    shallow, large, small = region(1, 1, level=1), region(2, 2, 3, level=2), region(3, 4, level=2)
    for child in (shallow, large, small):
        top.add_child(child)
    assert top.get_children() == [shallow, large, small]
    assert top.get_children(sort=True) == [small, large, shallow]


def test_merging_takes_nodes_and_children() -> None:
    a, b, child = region(0, 1), region(1, 2), region(2, 3)
    b.add_child(child)
    a.merge(b)
    assert a.nodes == {1, 2}
    assert a.children == [child]
    assert child.parent is a
    assert b.children == []


def test_depth_is_no_problem() -> None:
    top = inner = region(0)
    for number in range(1, DEPTH):
        child = region(number, number)
        inner.add_child(child)
        inner = child
    assert top.get_size_of_region_and_descendants() == DEPTH - 1
    assert len(top.get_region_nodes_and_descendants()) == DEPTH - 1
    assert inner.is_descendant_of(top)
    assert leaves([top]) == [inner]
    assert sum(1 for _ in walk([top])) == DEPTH


def test_repr() -> None:
    assert repr(region(4, 1, 2)).startswith("Region[id=4, level=0, type=LEAF, nodes=2")


def test_children_are_a_list() -> None:
    a, b, c = region(0), region(1, 5), region(2, 6, 7)
    a.children.append(b)
    a.children.insert(0, c)
    assert a.children == [c, b] == list(a.children)
    assert b.parent is a
    assert b in a.children
    assert a.get_region_nodes_and_descendants() == {5, 6, 7}
    for child in a.children:  # over what was there when it began
        a.children.remove(child)
    assert a.children == []
    assert b.parent is None
    a.children = [b, c]
    a.children.sort(key=lambda child: -child.id)
    assert a.children[0] is c
    assert a.children[:1] == [c]
    del a.children[0]
    assert c.parent is None
    a.children[0] = c
    assert (a.children, b.parent, c.parent) == ([c], None, a)
    assert repr(a.children) == repr([c])


def test_children_of_others_move_and_circles_are_refused_in_the_list(
    caplog: pytest.LogCaptureFixture,
) -> None:
    a, b, child = region(0), region(1), region(2)
    a.children = [child]
    b.children += [child]
    assert (a.children, b.children, child.parent) == ([], [child], b)
    child.children.append(b)
    assert len(caplog.records) == 1
    assert child.children == []
