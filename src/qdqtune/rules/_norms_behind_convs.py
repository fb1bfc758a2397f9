"""A normalization that a Conv feeds: its input is quantized, so that the Conv writes integers."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import CONV_OPS, COPY_OPS, NORM_OPS, POOL_OPS, is_op
from qdqtune.qdq._op_units import role_rule
from qdqtune.records._placement import Edge
from qdqtune.rules._placement_draft import Draft, readers_through, rule, source_through

_PASSING = COPY_OPS | {"Cast"}
_POINTWISE = frozenset(
    {
        "Abs", "Add", "BatchNormalization", "Clip", "Div", "Elu", "Erf", "Gelu", "HardSigmoid",
        "HardSwish", "LeakyRelu", "Mul", "PRelu", "Relu", "Sigmoid", "Softplus", "Sub", "Tanh",
    }
)  # fmt: skip
_POOLS = POOL_OPS | {"ReduceMean"}
_DEPTH = 10
# A block of ConvNeXt V2 has some 40 ops, with its GELU and normalizations decomposed.
_LARGEST_BRANCH = 100


@rule(
    "norm behind Conv",
    "With Q/DQ behind it a Conv writes integers: without, it writes floats that only the "
    "normalization reads, four times the bytes.",
)
def norms_behind_convs(draft: Draft) -> None:
    partitions = _partitions(draft)
    for node in draft.index.nodes:
        for edge in _activation_edges(draft.index, node):
            source = _source(draft.index, edge.tensor)
            convs = partitions.get(source.name or "") if source is not None else None
            if convs:
                draft.add(edge, convs)


def _source(index: GraphIndex, tensor: str) -> ir.Node | None:
    """Who made what is normalized, before it was handed on and perhaps pooled."""
    source = source_through(index, tensor, _PASSING)
    if source is None or not is_op(source, *_POOLS):
        return source
    return source_through(index, index.reads(source)[0], _PASSING)


def _partitions(draft: Draft) -> dict[str, frozenset[str]]:
    """What quantized Convs make, alone or in a block: each op with the Convs behind it."""
    found: dict[str, frozenset[str]] = {}
    for node in draft.index.nodes:
        if is_op(node, *CONV_OPS):
            if draft.is_chosen(node):
                found[node.name or ""] = frozenset([node.name or ""])
        elif is_op(node, *_POINTWISE):
            sources = _fused_sources(draft, node)
            if sources and all(found.get(name) for name in sources):
                found[node.name or ""] = frozenset().union(*(found[name] for name in sources))
            elif is_op(node, "Add") and not draft.is_left(node):
                found[node.name or ""] = _block_convs(draft, node)
    return found


def _block_convs(draft: Draft, add: ir.Node) -> frozenset[str]:
    """The quantized Convs of the residual block that an Add closes, if it is made of them.

    One of them reads the very tensor that the block's result is added to, which is an integer
    tensor therefore, and nothing reaches the Add through the block but through Convs. Blocks of
    transformers begin with a normalization, or consist of MatMuls.
    """
    names = draft.index.reads(add)
    if len(names) != 2 or any(map(draft.index.is_constant, names)):
        return frozenset()
    for skipped, branch in (names, reversed(names)):
        readers = readers_through(draft.index, skipped, _PASSING)
        first = {node.name or "" for node in readers if is_op(node, *CONV_OPS)} & draft.chosen
        last = _last_convs(draft, branch, skipped) if first else frozenset()
        if last:
            return last | first
    return frozenset()


def _last_convs(draft: Draft, branch: str, skipped: str) -> frozenset[str]:
    """The quantized Convs that a tensor comes from; none if there is a way around them."""
    found: set[str] = set()
    tensors, seen = [branch], {branch}
    while tensors:
        tensor = tensors.pop()
        node = draft.index.value[tensor].producer()
        if node is None or tensor == skipped or len(seen) > _LARGEST_BRANCH:
            return frozenset()
        if is_op(node, *CONV_OPS) and draft.is_chosen(node):
            found.add(node.name or "")
            continue
        activations = {
            name
            for name in draft.index.reads(node)
            if draft.index.is_float(name) and not draft.index.is_constant(name)
        } - seen
        seen |= activations
        tensors += activations
    return frozenset(found)


def _fused_sources(draft: Draft, node: ir.Node) -> set[str]:
    """Who makes what an op reads; of a residual Add, only the op that it is added in."""
    tensors = [name for name in draft.index.reads(node) if not draft.index.is_constant(name)]
    if draft.is_chosen(node) and role_rule(draft.planner.dialect, node).joins_producer:
        quantized = draft.activations(node)
        tensors = [tensor for tensor in tensors if tensor not in quantized]
    producers = [draft.index.value[tensor].producer() for tensor in tensors]
    return {(producer.name or "") if producer is not None else "" for producer in producers}


def _activation_edges(index: GraphIndex, node: ir.Node) -> list[Edge]:
    """Who reads the tensor that is normalized, if that is what happens here."""
    data = next(iter(index.reads(node)), "")
    if not data or not index.is_float(data):
        return []
    if node.op_type in NORM_OPS:
        return [Edge(data, node.name or "", 0)]
    return _decomposed(index, data, node) if is_op(node, "ReduceMean") else []


def _decomposed(index: GraphIndex, data: str, mean: ir.Node) -> list[Edge]:
    """Mean, difference, its square's mean, root, quotient: a decomposed LayerNormalization."""
    for edge in index.readers(mean.outputs[0].name or ""):
        minus = index.node.get(edge.node)
        if minus is None or not is_op(minus, "Sub"):
            continue
        if index.reads(minus)[0] == data and _is_divided(index, minus):
            return [Edge(data, mean.name or "", 0), Edge(data, minus.name or "", 0)]
    return []


def _is_divided(index: GraphIndex, minus: ir.Node) -> bool:
    """Whether a difference is divided by a root that comes from it."""
    centred = minus.outputs[0].name or ""
    for edge in index.readers(centred):
        node = index.node.get(edge.node)
        if node is None or not is_op(node, "Div", "Mul") or edge.position != 0:
            continue
        root = source_through(index, index.reads(node)[1], _PASSING | {"Reciprocal"})
        if root is not None and is_op(root, "Sqrt", "Pow") and _comes_from(root, centred):
            return True
    return False


def _comes_from(root: ir.Node, centred: str) -> bool:
    through = ("Add", "ReduceMean", "Pow", "Mul", "Cast")
    node = root
    for _ in range(_DEPTH):
        # An epsilon is no op's result: it may stand on either side.
        made = [value for value in node.inputs if value is not None and value.producer()]
        before = made[0].producer() if made else None
        if before is None or made[0].name == centred:
            return before is not None
        if not is_op(before, *through):
            return False
        node = before
    return False
