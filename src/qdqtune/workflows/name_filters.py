"""Regular expressions that select the nodes to quantize, or not to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from qdqtune.config import NameFilters
from qdqtune.graph.index import GraphIndex
from qdqtune.qdq.selection import unknown
from qdqtune.records.errors import UsageError
from qdqtune.rules.placement_draft import Constraints

_NODE = "node"


def constraints_of(filters: NameFilters, index: GraphIndex) -> Constraints:
    """Apply filters to a model.

    An expression must match a whole name. If an expression for nodes matches none that way, it
    selects the names that begin with a match.

    Raises:
        UsageError: If one is not a regular expression, or matches nothing.
    """
    never = _matching(_NODE, filters.nodes_to_exclude, index.node)
    never |= _of_types(index, filters.op_types_to_exclude)
    only = _matching(_NODE, filters.nodes_to_quantize, index.node)
    only |= _of_types(index, filters.op_types_to_quantize)
    asked = filters.nodes_to_quantize or filters.op_types_to_quantize
    return Constraints(frozenset(only) if asked else None, frozenset(never))


def _of_types(index: GraphIndex, expressions: Sequence[str]) -> set[str]:
    types = _matching("op type", expressions, {node.op_type for node in index.nodes})
    return {node.name or "" for node in index.nodes if node.op_type in types}


def _matching(kind: str, expressions: Sequence[str], names: Iterable[str]) -> set[str]:
    known = sorted(names)
    found: set[str] = set()
    for text in expressions:
        if text in known:  # an exact name, even if it contains special characters
            found.add(text)
            continue
        try:
            expression = re.compile(text)
        except re.error as error:
            raise UsageError(
                f"{text!r} is not a regular expression: {error}.",
                "Put a backslash before characters that stand for themselves, such as ( or +.",
            ) from None
        matching = {name for name in known if expression.fullmatch(name)}
        if not matching and kind == _NODE:
            matching = {name for name in known if expression.match(name)}
        if not matching:
            raise unknown(kind, text, known)
        found |= matching
    return found
