"""Scopes: the modules that nodes belong to, as exporters record them, and titles made of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import NORM_OPS, POOL_OPS, WEIGHTED_OPS, is_op
from qdqtune.search.regions._region import Region

Scope = tuple[str, ...]
"""The path of a module, such as `("encoder", "layer", "0", "attn")`."""

_Items = TypeVar("_Items", Scope, str)

#: Where torch's dynamo exporter lists the modules that a node is in, outermost first, and its own
#: name after them: `['', 'encoder', 'encoder.layer.0', 'linear']`.
NAME_SCOPES = "pkg.torch.onnx.name_scopes"

_NUMBER = re.compile(r"\d+")
_QUOTED = re.compile(r"'([^']*)'")
#: Ops that a module is about; others only accompany them.
ANCHOR_OPS = WEIGHTED_OPS | POOL_OPS | NORM_OPS | {"ReduceMean", "Resize"}

# Deeper modules count as parts of the one at this depth.
_DEEPEST = 32
# More weighted ops than this in each scope, and the scopes are no modules.
_MOST_PER_SCOPE = 4


def scope_of(node: ir.Node) -> Scope:
    """Return the module that a node belongs to; empty if that is the model, or is not known.

    Three spellings are understood: what the dynamo exporter records, paths as in
    `/layer1/layer1.0/conv1/Conv`, and dotted names as in `layer1.0.conv1`.
    """
    modules = _QUOTED.findall(node.metadata_props.get(NAME_SCOPES, ""))
    if len(modules) > 1:
        return _split(modules[-2])
    # A node without a name was named after its op and its output.
    name = (node.name or "").removeprefix(f"{node.op_type}_")
    if "/" not in name:
        return _split(name)[:-1]
    found: list[str] = []
    outer = ""
    for part in name.split("/", _DEEPEST + 1)[:-1]:
        # A container that is called repeats its name: layer1/layer1.0.
        found += _split(part.removeprefix(f"{outer}."))
        outer = part
    return tuple(found[:_DEEPEST])


def _split(text: str) -> Scope:
    return tuple(filter(None, text.split(".", _DEEPEST)))


def common_scope(nodes: Iterable[ir.Node]) -> Scope:
    """Return the innermost module that contains these nodes, or those of them that matter."""
    listed = list(nodes)
    weighted = [node for node in listed if is_op(node, *WEIGHTED_OPS)]
    anchors = weighted or [node for node in listed if is_op(node, *ANCHOR_OPS)] or listed
    scopes = [scope_of(node) for node in anchors]
    return scopes[0][: shared_length(scopes)] if scopes else ()


def shared_length(sequences: Sequence[Sequence[Any]]) -> int:
    """Return how many items at the start are the same in all of these."""
    differing = (n for n, each in enumerate(zip(*sequences, strict=False)) if len(set(each)) > 1)
    return next(differing, min(map(len, sequences), default=0))


def scope_of_region(region: Region, index: GraphIndex) -> Scope:
    """Return the innermost module that contains the ops of a region that matter."""
    nodes = region.get_region_nodes_and_descendants()
    return common_scope(index.nodes[position] for position in nodes)


def carry_scopes(nodes: Iterable[ir.Node]) -> bool:
    """Whether the scopes of a model's nodes tell modules apart."""
    scopes = [scope_of(node) for node in nodes if is_op(node, *WEIGHTED_OPS)]
    named = [scope for scope in scopes if scope]
    is_told = 2 * len(named) > len(scopes)
    return is_told and len(scopes) <= _MOST_PER_SCOPE * len(set(named)) and len(set(named)) > 1


def title_of(scopes: Collection[Scope]) -> str:
    """Return what scopes have in common, with `*` for what varies; empty if that is nothing.

    Args:
        scopes: The scopes, such as those of all regions of a pattern.
    """
    distinct = list(dict.fromkeys(scopes))
    parts: Scope
    if len({len(scope) for scope in distinct}) <= 1:
        parts = tuple(map(_alike, zip(*distinct, strict=True)))
    else:
        start, end = _ends(distinct)
        parts = (*start, "*", *end)
    title = ".".join(parts)
    return title if title.strip("*.") else ""


def _ends(sequences: Sequence[_Items]) -> tuple[_Items, _Items]:
    """Return what differing sequences start with, and what they end with."""
    start = shared_length(sequences)
    rest = [each[start:][::-1] for each in sequences]
    return sequences[0][:start], rest[0][: shared_length(rest)][::-1]


def kind_of(scope: Scope) -> str:
    """Return a scope without the numbers of layers: equal for the same module of each.

    Without numbers that stand alone, as in `layer.0`, those in names count, as in `layer_0`.
    """
    plain = ".".join("*" if part.isdecimal() else part for part in scope)
    return plain if "*" in plain else _NUMBER.sub("*", plain)


def _alike(words: Iterable[str]) -> str:
    """Return a word with `*` for the part in which these differ; numbers differ as a whole."""
    distinct = list(dict.fromkeys(words))
    if len(distinct) == 1:
        return distinct[0]
    start, end = _ends(distinct)
    return f"{start.rstrip('0123456789')}*{end.lstrip('0123456789')}"
