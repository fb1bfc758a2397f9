"""The subgraphs of a model that an engine runs as one: its layers, made disjoint and complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from qdqtune.autotune.regions.wiring import wiring_of
from qdqtune.autotune.subgraphs.convex import Flow
from qdqtune.autotune.subgraphs.layer_claims import settle
from qdqtune.autotune.subgraphs.node_roles import Role, roles_of
from qdqtune.autotune.subgraphs.unclaimed_nodes import place_the_rest
from qdqtune.graph.index import GraphIndex
from qdqtune.records.layers import MappedLayer

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
