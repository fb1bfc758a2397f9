"""Nodes that no layer mentions: they go with their neighbours, or are subgraphs of their own."""

from __future__ import annotations

from collections.abc import Sequence

from qdqtune.autotune.subgraphs.convex import Flow
from qdqtune.autotune.subgraphs.layer_claims import MOST_NODES
from qdqtune.autotune.subgraphs.node_roles import Role

_FOLLOWING = frozenset({Role.POINTWISE, Role.ASIDE})


def place_the_rest(flow: Flow, roles: Sequence[Role], subgraphs: list[set[int]]) -> None:
    """Give every node a subgraph, in place; subgraphs that are convex stay so.

    Integers computed for shapes are one subgraph as far as they hang together. Ops that follow
    others join the subgraph that makes their input, or else the only one that reads their result.
    Ops that lead are new subgraphs, and so is what is left.
    """
    rest = _Rest(flow, roles, subgraphs)
    order = sorted(range(len(roles)), key=flow.rank.__getitem__)
    free = [node for node in order if node not in rest.subgraph_of]
    for component in flow.connected([node for node in free if roles[node] is Role.SHAPE]):
        for part in flow.parts(component):
            rest.start(part)
    for node in free:
        if roles[node] in _FOLLOWING:
            rest.follow_maker(node)
        elif roles[node] is not Role.CONSTANT and node not in rest.subgraph_of:
            rest.start({node})
    for node in reversed(free):
        if node not in rest.subgraph_of and not rest.go_with_reader(node):
            rest.start({node})


class _Rest:
    """Which subgraph has which node, while the free ones get theirs."""

    def __init__(self, flow: Flow, roles: Sequence[Role], subgraphs: list[set[int]]) -> None:
        self._flow = flow
        self._roles = roles
        self._subgraphs = subgraphs
        self._room = [MOST_NODES] * len(subgraphs)
        self.subgraph_of = {
            node: subgraph for subgraph, nodes in enumerate(subgraphs) for node in nodes
        }

    def start(self, nodes: set[int]) -> None:
        """Begin a new subgraph."""
        self.subgraph_of.update((node, len(self._subgraphs)) for node in nodes)
        self._subgraphs.append(nodes)
        self._room.append(MOST_NODES - len(nodes))

    def follow_maker(self, node: int) -> None:
        """Join the subgraph that makes the input; of several, the one that is done last."""
        makers = [m for m in self._flow.predecessors[node] if self._roles[m] is not Role.CONSTANT]
        if not makers or any(maker not in self.subgraph_of for maker in makers):
            return
        near = {self.subgraph_of[maker] for maker in makers}
        if len(near) == 1 or self._roles[node] is Role.POINTWISE:
            self._join(node, self.subgraph_of[max(makers)])

    def go_with_reader(self, node: int) -> bool:
        """Join the subgraph that reads the result, if it is the only one."""
        readers = self._flow.successors[node]
        if not readers or any(reader not in self.subgraph_of for reader in readers):
            return False
        near = {self.subgraph_of[reader] for reader in readers}
        return len(near) == 1 and self._join(node, near.pop())

    def _join(self, node: int, subgraph: int) -> bool:
        nodes = self._subgraphs[subgraph]
        if self._room[subgraph] <= 0 or not self._flow.can_join(node, nodes):
            return False
        nodes.add(node)
        self._room[subgraph] -= 1
        self.subgraph_of[node] = subgraph
        return True
