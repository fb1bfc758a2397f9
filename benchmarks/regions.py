"""Regions and patterns of long graphs: `python -m benchmarks.regions [--nodes 100000]`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.search.regions._canonical import canonical_region
from qdqtune.search.regions._region import leaves, walk
from qdqtune.search.regions._region_search import CombinedRegionSearch

_SHAPE = ir.Shape((1, 8, 4, 4))


class _Graph:
    """Collects nodes; every tensor has the same type and shape."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.input = self.tensor("x")

    def tensor(self, name: str) -> ir.Value:
        return ir.Value(name=name, shape=_SHAPE, type=ir.TensorType(ir.DataType.FLOAT))

    def node(self, op: str, *inputs: ir.Value, outputs: int = 1) -> tuple[ir.Value, ...]:
        number = len(self.nodes)
        made = [self.tensor(f"t{number}_{output}") for output in range(outputs)]
        self.nodes.append(ir.Node("", op, inputs, outputs=made, name=f"n{number}"))
        return tuple(made)

    def index(self, last: ir.Value) -> GraphIndex:
        graph = ir.Graph([self.input], [last], nodes=self.nodes, opset_imports={"": 17})
        return GraphIndex(ir.Model(graph, ir_version=8))


def chain(nodes: int) -> GraphIndex:
    graph = _Graph()
    x = graph.input
    while len(graph.nodes) < nodes:
        (x,) = graph.node(("Relu", "Sigmoid", "MaxPool")[len(graph.nodes) % 3], x)
    return graph.index(x)


def residual_stack(nodes: int) -> GraphIndex:
    graph = _Graph()
    x = graph.input
    while len(graph.nodes) < nodes:
        (y,) = graph.node("Relu", x)
        (y,) = graph.node("Sigmoid", y)
        (x,) = graph.node("Add", x, y)
        (x,) = graph.node("Relu", x)
    return graph.index(x)


def split_concat_chain(nodes: int) -> GraphIndex:
    graph = _Graph()
    x = graph.input
    while len(graph.nodes) < nodes:
        a, b = graph.node("Split", x, outputs=2)
        (a,) = graph.node("Relu", a)
        (x,) = graph.node("Concat", a, b)
    return graph.index(x)


def long_skips(nodes: int) -> GraphIndex:
    """Half the nodes in a row, then each of them read again, the last one first."""
    graph = _Graph()
    kept = [graph.input]
    while len(graph.nodes) < nodes // 2:
        kept += graph.node("Relu", kept[-1])
    x = kept[-1]
    while len(graph.nodes) < nodes:
        (x,) = graph.node("Add", kept.pop(), x)
    return graph.index(x)


GRAPHS: tuple[Callable[[int], GraphIndex], ...] = (
    chain,
    residual_stack,
    split_concat_chain,
    long_skips,
)


def seconds(index: GraphIndex) -> tuple[float, float, int, int]:
    """CPU time to find the regions and for all patterns, and how many there are of each."""
    start = time.process_time()
    regions = CombinedRegionSearch(index).search_regions()
    found = time.process_time()
    patterns = {canonical_region(region, index).signature(shapes=True) for region in walk(regions)}
    return found - start, time.process_time() - found, len(leaves(regions)), len(patterns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100_000)
    options = parser.parse_args()
    for build in GRAPHS:
        small = min(seconds(build(options.nodes // 10))[0] for _ in range(3))
        large, patterns_s, leaf_count, pattern_count = seconds(build(options.nodes))
        print(
            f"{build.__name__}: {options.nodes} nodes in {large:.2f} s, {large / small:.1f} times "
            f"a tenth of them; {leaf_count} leaves; {pattern_count} patterns in {patterns_s:.2f} s"
        )


if __name__ == "__main__":
    main()
