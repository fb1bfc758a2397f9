"""Names that can be relied on."""

from __future__ import annotations

import onnx_ir as ir


def name_nodes(model: ir.Model) -> bool:
    """Give every node of every graph a name of its own; good names stay as they are.

    An unnamed node is called after its op and its first output, so that the name doesn't depend
    on how many other nodes there are.

    Returns:
        Whether anything was renamed.
    """
    nodes = [node for graph in model.graphs() for node in graph]
    taken: set[str] = set()
    unnamed: list[ir.Node] = []
    for node in nodes:
        if node.name and node.name not in taken:
            taken.add(node.name)
        else:
            unnamed.append(node)
    for node in unnamed:
        base = node.name or f"{node.op_type}_{_first_output(node)}"
        name, copies = base, 1
        while name in taken:
            copies += 1
            name = f"{base}_{copies}"
        taken.add(name)
        node.name = name
    return bool(unnamed)


def _first_output(node: ir.Node) -> str:
    return next((value.name for value in node.outputs if value.name), "none")
