"""The subgraphs of a model that an engine runs as one: its layers, made disjoint and complete.

Each can be cut out of the graph and run alone: no path leaves it and comes back.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import onnx_ir as ir

from qdqtune.engines.layers._naming import TRANSPARENT, Kind, kind_of
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import COPY_OPS, POINTWISE_OPS, is_standard
from qdqtune.records._layers import MappedLayer
from qdqtune.search.regions._wiring import Wiring, wiring_of

# A search for ways back gives up here, or at some times the size of the set; what an engine really
# fuses lies close together.
_MOST_VISITED = 500
_MOST_PER_NODE = 4


class Flow:
    """The ways through a graph, and which sets of nodes can be cut out of it.

    Args:
        predecessors: By node: the nodes that it reads.
        successors: By node: the nodes that read it.

    Attributes:
        rank: By node: its place in an order of execution that has every node near its readers,
            however far apart the graph lists them.
    """

    def __init__(
        self, predecessors: Sequence[Sequence[int]], successors: Sequence[Sequence[int]]
    ) -> None:
        self.predecessors = predecessors
        self.successors = successors
        self.rank = _ranks(predecessors, successors)

    def between(self, nodes: Collection[int]) -> set[int] | None:
        """The nodes that have to be taken in so that no path leaves the set and comes back.

        Returns:
            None if the set lies so far apart that it was not looked for.
        """
        last = max(self.rank[node] for node in nodes)
        most = max(_MOST_VISITED, _MOST_PER_NODE * len(nodes))
        outside: set[int] = set()
        waiting = deque(nodes)
        while waiting:
            for reader in self.successors[waiting.popleft()]:
                if reader in outside or reader in nodes or self.rank[reader] > last:
                    continue
                if len(outside) == most:
                    return None
                outside.add(reader)
                waiting.append(reader)
        found: set[int] = set()
        for node in sorted(outside, key=self.rank.__getitem__, reverse=True):
            if any(reader in nodes or reader in found for reader in self.successors[node]):
                found.add(node)
        return found

    def can_join(self, node: int, nodes: Collection[int]) -> bool:
        """Whether a convex set stays convex with a node that reads it or is read by it.

        Where a large set makes that hard to say, it is denied.
        """
        readers = self.successors[node]
        if readers and all(reader in nodes for reader in readers):
            return True
        makers = [maker for maker in self.predecessors[node] if self.predecessors[maker]]
        if makers and all(maker in nodes for maker in makers):
            return True
        return len(nodes) <= _MOST_VISITED and self.between({*nodes, node}) == set()

    def parts(self, nodes: Iterable[int]) -> Iterator[set[int]]:
        """Divide a set into convex ones; one that is convex already stays whole."""
        waiting = [set(nodes)]
        while waiting:
            part = waiting.pop()
            between = self.between(part) if len(part) > 1 else set()
            if between is None:
                waiting.extend(self._at_widest_gap(part))
            elif between:
                yield from self._by_returns(part, between)
            else:
                yield part

    def connected(self, nodes: Collection[int]) -> Iterator[set[int]]:
        """The subgraphs of a set that hang together by its own edges."""
        left = set(nodes)
        for start in sorted(left):
            if start not in left:
                continue
            left.remove(start)
            subgraph, waiting = {start}, [start]
            while waiting:
                node = waiting.pop()
                for near in (*self.predecessors[node], *self.successors[node]):
                    if near in left:
                        left.remove(near)
                        subgraph.add(near)
                        waiting.append(near)
            yield subgraph

    def _at_widest_gap(self, nodes: set[int]) -> tuple[set[int], set[int]]:
        ordered = sorted(nodes, key=self.rank.__getitem__)
        gaps = [self.rank[b] - self.rank[a] for a, b in pairwise(ordered)]
        cut = 1 + gaps.index(max(gaps))
        return set(ordered[:cut]), set(ordered[cut:])

    def _by_returns(self, nodes: set[int], between: set[int]) -> Iterator[set[int]]:
        """Divide by how often a path to a node can have left the set: that only ever grows."""
        returns: dict[int, int] = {}
        for node in sorted(nodes | between, key=self.rank.__getitem__):
            returns[node] = max(
                (
                    returns[maker] + (maker in nodes and node not in nodes)
                    for maker in self.predecessors[node]
                    if maker in returns
                ),
                default=0,
            )
        by_returns: dict[int, set[int]] = {}
        for node in nodes:
            by_returns.setdefault(returns[node], set()).add(node)
        for _, part in sorted(by_returns.items()):
            yield from self.connected(part)


def _ranks(predecessors: Sequence[Sequence[int]], successors: Sequence[Sequence[int]]) -> list[int]:
    """Every node right after what it reads, as deep as possible."""
    rank = [-1] * len(predecessors)
    count = 0
    for end in (node for node, readers in enumerate(successors) if not readers):
        stack = [(end, iter(predecessors[end]))]
        while stack:
            node, makers = stack[-1]
            for maker in makers:
                if rank[maker] < 0:
                    stack.append((maker, iter(predecessors[maker])))
                    break
            else:
                stack.pop()
                if rank[node] < 0:
                    rank[node] = count
                    count += 1
    return rank


class Role(enum.Enum):
    """What a node is in a fused layer."""

    LEAD = "lead"  # a convolution, a matrix product: what a layer is there for
    WORK = "work"  # any other op that a layer can be there for
    POINTWISE = "pointwise"  # goes along with what makes its input
    ASIDE = "aside"  # computes nothing
    SHAPE = "shape"  # computes integers
    CONSTANT = "constant"  # computes the same for every input of the model


COMPUTING = frozenset({Role.LEAD, Role.WORK, Role.POINTWISE})
"""Roles of nodes by which two layers belong together."""

_WHOLE_TYPES = frozenset({ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64})
_LEAD_KINDS = frozenset({Kind.CONVOLUTION, Kind.PRODUCT})
_LEAD_OPS = frozenset({"Einsum", "GRU", "LSTM", "RNN"})


def roles_of(index: GraphIndex, wiring: Wiring) -> list[Role]:
    """The role of every node, by position."""
    roles: list[Role] = []
    given = {value.name or "" for value in index.model.graph.inputs}
    for position, node in enumerate(index.nodes):
        makers = wiring.predecessors[position]
        fixed = all(roles[maker] is Role.CONSTANT for maker in makers)
        if fixed and not any(read.tensor in given for read in wiring.reads[position]):
            roles.append(Role.CONSTANT)
        else:
            roles.append(_role(index, node))
    return roles


def _role(index: GraphIndex, node: ir.Node) -> Role:
    kind = kind_of(node.op_type)
    if kind in _LEAD_KINDS or node.op_type in _LEAD_OPS:
        return Role.LEAD
    if _is_whole(index, node):
        return Role.SHAPE
    if kind in TRANSPARENT or (node.op_type in COPY_OPS and is_standard(node)):
        return Role.ASIDE
    return Role.POINTWISE if node.op_type in POINTWISE_OPS else Role.WORK


def _is_whole(index: GraphIndex, node: ir.Node) -> bool:
    """Whether all that comes out is sizes, indices, or true and false."""
    kinds = {index.dtype(value.name) for value in node.outputs if value.name}
    return bool(kinds) and kinds <= _WHOLE_TYPES


MOST_NODES = 64
"""No layers become a larger subgraph than that, and no layer grows by more."""

# A node that more layers mention tells nothing of what belongs together.
_MOST_LAYERS = 4
_MOST_LEADS = 4


def settle(
    flow: Flow, roles: Sequence[Role], claims: Sequence[Collection[int]]
) -> list[tuple[set[int], list[int]]]:
    """Make subgraphs that share nothing of layers that may.

    Layers with a common op that computes are one subgraph, as long as each doesn't bring along ops
    of its own that lead a layer. Any other node goes where its neighbours are.

    Args:
        flow: The graph.
        roles: By node.
        claims: By layer: the nodes that it mentions.

    Returns:
        Subgraphs and the layers that each was made of. A layer that others took all nodes of has no
        nodes in its subgraph.
    """
    holders: dict[int, list[int]] = {}
    for layer, nodes in enumerate(claims):
        for node in nodes:
            holders.setdefault(node, []).append(layer)
    merged = _Merged(roles, claims)
    shared = [node for node, layers in holders.items() if len(layers) > 1]
    bridges = [n for n in shared if roles[n] in COMPUTING and len(holders[n]) <= _MOST_LAYERS]
    for node in sorted(bridges, key=lambda node: (roles[node] is not Role.LEAD, node)):
        first, *others = holders[node]
        for other in others:
            merged.join(first, other)
    wanted = {
        node: tuple(dict.fromkeys(merged.root(layer) for layer in layers))
        for node, layers in holders.items()
    }
    subgraphs: dict[int, tuple[set[int], list[int]]] = {}
    for layer in range(len(claims)):
        subgraphs.setdefault(merged.root(layer), (set(), []))[1].append(layer)
    for node, owner in _owners(flow, roles, wanted).items():
        subgraphs[owner][0].add(node)
    return list(subgraphs.values())


class _Merged:
    """Layers that became one, by the first of them."""

    def __init__(self, roles: Sequence[Role], claims: Sequence[Collection[int]]) -> None:
        self._first = list(range(len(claims)))
        self._nodes = [set(nodes) for nodes in claims]
        self._apart: set[tuple[int, int]] = set()
        self._leads = [{node for node in nodes if roles[node] is Role.LEAD} for nodes in claims]

    def root(self, layer: int) -> int:
        """The first of the layers that this one is one with."""
        while self._first[layer] != layer:
            self._first[layer] = self._first[self._first[layer]]
            layer = self._first[layer]
        return layer

    def join(self, one: int, other: int) -> None:
        """Make two layers one, unless that would glue together too much."""
        one, other = sorted((self.root(one), self.root(other)))
        if one == other or (one, other) in self._apart:
            return
        if not self._fit(one, other):
            self._apart.add((one, other))
            return
        self._first[other] = one
        self._nodes[one] |= self._nodes[other]
        self._leads[one] |= self._leads[other]

    def _fit(self, one: int, other: int) -> bool:
        a, b = self._leads[one], self._leads[other]
        if not (a <= b or b <= a) and (a.isdisjoint(b) or len(a | b) > _MOST_LEADS):
            return False
        small, large = sorted((self._nodes[one], self._nodes[other]), key=len)
        more = sum(node not in large for node in small)
        return more == 0 or len(large) + more <= MOST_NODES


def _owners(
    flow: Flow, roles: Sequence[Role], wanted: dict[int, tuple[int, ...]]
) -> dict[int, int]:
    """Who gets each node: the subgraph with most of its neighbours."""
    owner = {node: subgraphs[0] for node, subgraphs in wanted.items() if len(subgraphs) == 1}
    open_nodes = sorted(wanted.keys() - owner.keys(), key=flow.rank.__getitem__)
    for nodes in (open_nodes, open_nodes[::-1]):
        for node in nodes:
            if node not in owner:
                best = _nearest(flow, roles, node, wanted[node], owner)
                if best is not None:
                    owner[node] = best
    for node in open_nodes:
        owner.setdefault(node, wanted[node][0])
    return owner


def _nearest(
    flow: Flow,
    roles: Sequence[Role],
    node: int,
    subgraphs: Sequence[int],
    owner: dict[int, int],
) -> int | None:
    """The subgraph with most neighbours; of those alike, one that a constant's reader is in."""
    makers = [owner[maker] for maker in flow.predecessors[node] if maker in owner]
    readers = [owner[reader] for reader in flow.successors[node] if reader in owner]
    near = readers if roles[node] is Role.CONSTANT else makers
    best = max(
        subgraphs,
        key=lambda subgraph: (
            makers.count(subgraph) + readers.count(subgraph),
            near.count(subgraph),
            -subgraph,
        ),
    )
    return best if best in makers or best in readers else None


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


# A layer that is not convex takes in so many nodes between; else it is divided.
_MOST_TAKEN = 8
_MOST_ROUNDS = 3


@dataclass(frozen=True)
class FusionGroup:
    """Nodes that an engine runs as one, or that are taken as such.

    No path leaves a group and comes back, so that it can be cut out and run alone.

    Attributes:
        number: Its place in the graph's order, by its first node.
        nodes: Names, in the graph's order.
        layers: Positions of the engine's layers that it comes from.
    """

    number: int
    nodes: tuple[str, ...]
    layers: tuple[int, ...] = ()

    @property
    def is_structural(self) -> bool:
        """Whether the graph alone, and no layer, says that the nodes belong together."""
        return not self.layers


def fusion_groups(index: GraphIndex, layers: Sequence[MappedLayer]) -> tuple[FusionGroup, ...]:
    """Divide a model into subgraphs along an engine's layers.

    Layers that share ops which compute are one group; a layer that a path leaves and comes back to
    takes in what little lies between, or is divided. Nodes without a layer go with a neighbour
    where that is clear, and are groups of their own elsewhere.

    Args:
        index: The model.
        layers: What an engine made of it; a node may be in several layers, or in none.

    Returns:
        Groups that have every node once, in the graph's order.
    """
    wiring = wiring_of(index)
    flow = Flow(wiring.predecessors, wiring.successors)
    roles = roles_of(index, wiring)
    mentioned = [
        {index.position[name] for name in layer.nodes if name in index.position} for layer in layers
    ]
    claims = [
        nodes if layer.executes else set() for nodes, layer in zip(mentioned, layers, strict=True)
    ]
    settled = settle(flow, roles, claims)
    subgraphs = _closed(flow, roles, [nodes for nodes, _ in settled if nodes])
    subgraphs = [part for nodes in subgraphs for part in flow.parts(nodes)]
    place_the_rest(flow, roles, subgraphs)
    subgraphs.sort(key=min)
    for nodes, made_of in settled:
        for layer in made_of:
            claims[layer] = claims[layer] & nodes  # less what others got
    from_layers = _layers_of_subgraphs(subgraphs, claims, mentioned)
    return tuple(
        FusionGroup(
            number,
            tuple(index.nodes[node].name or "" for node in sorted(nodes)),
            tuple(from_layers[number]),
        )
        for number, nodes in enumerate(subgraphs)
    )


def _closed(flow: Flow, roles: Sequence[Role], subgraphs: list[set[int]]) -> list[set[int]]:
    """Merge what little lies between: free nodes, and whole subgraphs without a lead."""
    subgraphs.sort(key=min)
    subgraph_of = {node: number for number, nodes in enumerate(subgraphs) for node in nodes}
    for number, nodes in enumerate(subgraphs):
        grown, taken = set(nodes), set[int]()
        for _ in range(_MOST_ROUNDS):
            between = flow.between(grown) if len(grown) > 1 else None
            if not between or len(between) > _MOST_TAKEN:
                break
            taken |= {subgraph_of[node] for node in between if node in subgraph_of}
            grown = grown.union(between, *(subgraphs[other] for other in taken))
        more = grown - nodes
        if not more or len(more) > _MOST_TAKEN or any(roles[node] is Role.LEAD for node in more):
            continue
        if flow.between(grown) != set():
            continue
        for other in taken - {number}:
            subgraphs[other] = set()
        subgraphs[number] = grown
        subgraph_of.update(dict.fromkeys(grown, number))
    return [nodes for nodes in subgraphs if nodes]


def _layers_of_subgraphs(
    subgraphs: Sequence[set[int]], claims: Sequence[set[int]], mentioned: Sequence[set[int]]
) -> list[list[int]]:
    """By subgraph: the layers that it has nodes of, or that only serve it."""
    subgraph_of = {node: number for number, nodes in enumerate(subgraphs) for node in nodes}
    found: list[list[int]] = [[] for _ in subgraphs]
    for layer, (own, all_nodes) in enumerate(zip(claims, mentioned, strict=True)):
        counts = Counter(subgraph_of[node] for node in own or all_nodes)
        if not own and counts:
            counts = Counter({max(sorted(counts), key=counts.__getitem__): 1})
        for number in counts:
            found[number].append(layer)
    return found
