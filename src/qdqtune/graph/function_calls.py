"""Limits on the expanded size of a model's functions, checked before they are inlined.

Functions that each call others twice double in size with every level: a file of a few kilobytes can
expand to more nodes than fit in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes

from qdqtune.graph.proto_walk import nodes_within
from qdqtune.records.errors import ModelError

# Maximum depth of function calls, here and in ONNX's own checker.
_DEEPEST_CALL = 100
# Shape inference walks through every call; this many nodes take it a few seconds.
_MOST_NODES = 1 << 17
# Beyond that, a file may expand to this many times its own number of nodes.
_TIMES_WRITTEN = 4
# The inliner's search for a free name takes as many steps as there were earlier calls.
_MOST_INLINED_CALLS = 1 << 12
_TRILLION = 10**12

Function = tuple[str, str, str]
_Calls = dict[Function, Counter[Function]]


def check_calls(proto: onnx.ModelProto, file: Path) -> None:
    """Make sure that the functions of a model can be traversed and expanded.

    Args:
        proto: The model.
        file: The model's file.

    Raises:
        ModelError: If functions are recursive, or expand to more nodes than can be handled.
    """
    names = [(each.domain, each.name, each.overload) for each in proto.functions]
    if not names:
        return
    calls: _Calls = {name: Counter() for name in names}
    written = Counter(dict.fromkeys(names, 0))
    for name, function in zip(names, proto.functions, strict=True):
        written[name] = _count(function.node, calls[name], calls)
    order = _callees_first(calls, file)
    from_graph: Counter[Function] = Counter()
    nodes = _count(proto.graph.node, from_graph, calls)
    total = nodes + _expanded(from_graph, written, calls, order)
    if total > max(_MOST_NODES, _TIMES_WRITTEN * (nodes + written.total())):
        shown = f"{total:,}" if total < _TRILLION else "more than a trillion"
        raise ModelError(
            f"{file} has functions that call each other so often that they expand to {shown} "
            f"nodes; {nodes + written.total():,} are in the file.",
            "Export it without functions, or with fewer calls inside of them.",
        )


def inline_functions(model: ir.Model) -> None:
    """Inline every function call, in place.

    Args:
        model: A model that was loaded from a file, so that its functions have been checked.

    Raises:
        ModelError: If a function is called too often.
    """
    calls: _Calls = {name: Counter() for name in model.functions}
    for name, function in model.functions.items():
        calls[name].update(n.op_identifier() for n in ir.traversal.RecursiveGraphIterator(function))
    times = Counter(
        node.op_identifier() for node in ir.traversal.RecursiveGraphIterator(model.graph)
    )
    for name in reversed(_callees_first(calls, Path("The model"))):
        for callee, count in calls[name].items():
            times[callee] += times[name] * count
    called, count = max(((name, times[name]) for name in calls), key=lambda each: each[1])
    if count > _MOST_INLINED_CALLS:
        raise ModelError(
            f"The function {called[1]!r} is called {count} times, and has to be inlined each time.",
            "Inline it first: onnx.inliner.inline_local_functions(model).",
        )
    passes.InlinePass()(model)


def _count(
    nodes: Sequence[onnx.NodeProto], called: Counter[Function], known: Mapping[Function, object]
) -> int:
    """Count nodes, including bodies, and add up the functions that they call."""
    count = 0
    for node in nodes_within(nodes):
        count += 1
        callee = (node.domain, node.op_type, node.overload)
        if callee in known:
            called[callee] += 1
    return count


def _expanded(
    roots: Counter[Function], written: Counter[Function], calls: _Calls, order: list[Function]
) -> int:
    """Return the number of nodes that calls expand to."""
    size: dict[Function, int] = {}
    for name in order:
        size[name] = written[name] + sum(size[each] * n for each, n in calls[name].items())
    return sum(size[name] * count for name, count in roots.items())


def _callees_first(calls: _Calls, file: Path) -> list[Function]:
    """Return the functions, each after those that it calls.

    Raises:
        ModelError: If functions are recursive, or calls are nested too deeply.
    """
    order: list[Function] = []
    waiting = {name: {each for each in callees if each in calls} for name, callees in calls.items()}
    depth = 0
    while waiting:
        leaves = sorted(name for name, callees in waiting.items() if not callees)
        depth += 1
        if not leaves:
            names = ", ".join(repr(name) for _, name, _ in sorted(waiting)[:3])
            raise ModelError(
                f"{file} has functions that call themselves: {names}.",
                "Export it again, or see what `onnx.checker.check_model` says about it.",
            )
        if depth > _DEEPEST_CALL:
            raise ModelError(
                f"{file} has functions nested too deeply: more than {_DEEPEST_CALL} that call each "
                "other in a row.",
                "Inline them: onnx.inliner.inline_local_functions(model).",
            )
        order += leaves
        gone = set(leaves)
        waiting = {name: each - gone for name, each in waiting.items() if name not in gone}
    return order
