"""Immediate post-dominators of a DAG: where the paths from a node meet again."""

from __future__ import annotations

from collections.abc import Sequence


def post_dominators(successors: Sequence[Sequence[int]]) -> list[int]:
    """For every node, find the first node that all paths from it to the exit pass through.

    Nodes are in topological order. A virtual exit, number `len(successors)`, follows the nodes
    without readers. Jump pointers find each meeting point in O(log n), however long a skip is.

    Args:
        successors: By node, its readers.
    """
    exit_ = len(successors)
    parent = [exit_] * (exit_ + 1)
    depth = [0] * (exit_ + 1)
    jump = [exit_] * (exit_ + 1)
    for node in range(exit_ - 1, -1, -1):
        meeting = -1
        for reader in successors[node]:
            meeting = reader if meeting < 0 else _meet(meeting, reader, parent, depth, jump)
            if meeting == exit_:
                break
        above = meeting if meeting >= 0 else exit_
        parent[node] = above
        depth[node] = depth[above] + 1
        # Two jumps of equal length above combine into one of double length; otherwise it is a
        # single step.
        far = jump[above]
        same = depth[above] - depth[far] == depth[far] - depth[jump[far]]
        jump[node] = jump[far] if same else above
    return parent[:exit_]


def _meet(a: int, b: int, parent: list[int], depth: list[int], jump: list[int]) -> int:
    """Return the deepest common ancestor, which may be one of the two."""
    if depth[a] < depth[b]:
        a, b = b, a
    while depth[a] > depth[b]:
        a = jump[a] if depth[jump[a]] >= depth[b] else parent[a]
    while a != b:
        if jump[a] == jump[b]:
            a, b = parent[a], parent[b]
        else:
            a, b = jump[a], jump[b]
    return a
