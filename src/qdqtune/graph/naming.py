"""Unique names for nodes and values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import onnx_ir as ir


class FreeNames:
    """Generates unused names; reusing a base needs no second search.

    Args:
        taken: Names in use.
    """

    def __init__(self, taken: Iterable[str | None]) -> None:
        self.taken = set(taken)
        self._copies: defaultdict[str, int] = defaultdict(lambda: 1)

    def new(self, base: str) -> str:
        """Return an unused name based on this one, and reserve it."""
        name = base
        while name in self.taken:
            self._copies[base] += 1
            name = f"{base}_{self._copies[base]}"
        self.taken.add(name)
        return name


def value_names(model: ir.Model) -> set[str | None]:
    """Return the names of all values in the main graph and its bodies."""
    return {value.name for graph in model.graphs() for value in _values(graph)}


def name_nodes(model: ir.Model) -> bool:
    """Give every node of every graph a unique name; names that are already unique stay.

    An unnamed node is named after its op and its first output, so that the name doesn't depend on
    the number of other nodes.

    Returns:
        Whether anything was renamed.
    """
    names = FreeNames(())
    unnamed: list[ir.Node] = []
    for node in (node for graph in model.graphs() for node in graph):
        if node.name and node.name not in names.taken:
            names.taken.add(node.name)
        else:
            unnamed.append(node)
    for node in unnamed:
        node.name = names.new(node.name or f"{node.op_type}_{_first_output(node)}")
    return bool(unnamed)


def name_apart_from_bodies(model: ir.Model) -> None:
    """Rename values of the main graph whose names control-flow bodies use for their own values.

    A pass that sees only the main graph may have generated such a name.
    """
    graphs = (graph for graph in model.graphs() if graph is not model.graph)
    inner = {value.name for graph in graphs for value in _values(graph)}
    if not inner:
        return
    graph = model.graph
    own = [*graph.initializers.values(), *_results(graph)]
    names = FreeNames(inner.union(value.name for value in (*graph.inputs, *own)))
    for value in own:
        if value.name in inner and value.name and not value.is_graph_output():
            value.name = names.new(value.name)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from (*graph.inputs, *graph.initializers.values(), *_results(graph))


def _results(graph: ir.Graph) -> Iterator[ir.Value]:
    for node in graph:
        yield from node.outputs


def _first_output(node: ir.Node) -> str:
    return next((value.name for value in node.outputs if value.name), "none")
