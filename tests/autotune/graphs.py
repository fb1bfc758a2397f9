"""Indexes for tests, and copies of a model that are the same but look different."""

from __future__ import annotations

import random
from functools import lru_cache

import numpy as np
import onnx
import onnx_ir as ir
from benchmarks.regions import chain

from qdqtune import zoo
from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex, name_nodes
from qdqtune.search.regions._region import Region, RegionType
from tests.conftest import model_from_text

COMMUTATIVE = {"Add", "Mul"}


def index_of(model: onnx.ModelProto) -> GraphIndex:
    """The index of a model, with types and shapes worked out."""
    return GraphIndex(ir.from_proto(onnx.shape_inference.infer_shapes(model)))


def from_text(text: str, **weights: np.ndarray) -> GraphIndex:
    """The index of a model in ONNX text; node names are n0, n1, ..."""
    return index_of(model_from_text(text, **weights))


def weight(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@lru_cache
def long_chain(nodes: int) -> GraphIndex:
    return chain(nodes)


def zoo_index(name: str, **settings: int) -> GraphIndex:
    model = ir.from_proto(zoo.build(name, **settings))
    fold(model)
    name_nodes(model)
    return GraphIndex(model)


def leaf(*nodes: int, region_id: int = 0) -> Region:
    region = Region(region_id, 0, RegionType.LEAF)
    region.nodes.update(nodes)
    return region


def composite(*children: Region, region_id: int = 1000) -> Region:
    region = Region(region_id, 0, RegionType.COMPOSITE)
    for child in children:
        region.add_child(child)
    return region


def disguised(
    model: onnx.ModelProto, seed: int
) -> tuple[onnx.ModelProto, dict[str, str], dict[str, str]]:
    """The same model in another node order, with other names and operands of Adds swapped.

    Returns:
        The copy, new node names by old ones, and new tensor names by old ones.
    """
    chance = random.Random(seed)
    model = onnx.shape_inference.infer_shapes(model)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    tensors: dict[str, str] = {}
    nodes: dict[str, str] = {}

    def renamed(name: str) -> str:
        if name and name not in tensors:
            tensors[name] = f"{chance.randrange(1 << 30)}_{len(tensors)}"
        return tensors.get(name, "")

    for node in copy.graph.node:
        nodes[node.name] = f"{chance.randrange(1 << 30)}_{node.name}"
        node.name = nodes[node.name]
        inputs = [renamed(name) for name in node.input]
        if node.op_type in COMMUTATIVE and chance.random() < 0.5:
            inputs.reverse()
        node.input[:] = inputs
        node.output[:] = [renamed(name) for name in node.output]
    graph = copy.graph
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = renamed(value.name)
    shuffle(graph, chance)
    return copy, nodes, tensors


def shuffle(graph: onnx.GraphProto, chance: random.Random) -> None:
    """Put the nodes in another topological order."""
    left = list(graph.node)
    made = {value.name for value in (*graph.input, *graph.initializer)} | {""}
    order = []
    while left:
        ready = [node for node in left if made.issuperset(node.input)]
        node = chance.choice(ready)
        left.remove(node)
        order.append(node)
        made.update(node.output)
    copies = [onnx.NodeProto() for _ in order]
    for copy, node in zip(copies, order, strict=True):
        copy.CopyFrom(node)
    del graph.node[:]
    graph.node.extend(copies)
