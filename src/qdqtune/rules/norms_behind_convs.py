"""A normalization that a Conv feeds: its input is quantized, so that the Conv writes integers."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import COPY_OPS, is_op
from qdqtune.qdq.units import role_rule
from qdqtune.records.placement import Edge
from qdqtune.rules.draft import Draft
from qdqtune.rules.rule import Rule
from qdqtune.rules.tracing import source_through

_NAME = "norm behind Conv"
_NORMS = (
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
)
_CONVS = ("Conv", "ConvTranspose")
_PASSING = (COPY_OPS | {"Cast"}) - {"Gather", "GatherElements"}
_POINTWISE = frozenset(
    {
        "Abs", "Add", "BatchNormalization", "Clip", "Div", "Elu", "Erf", "Gelu", "HardSigmoid",
        "HardSwish", "LeakyRelu", "Mul", "PRelu", "Relu", "Sigmoid", "Softplus", "Sub", "Tanh",
    }
)  # fmt: skip
_DEPTH = 10


def _apply(draft: Draft) -> None:
    partitions = _partitions(draft)
    for node in draft.index.nodes:
        for edge in _activation_edges(draft.index, node):
            source = source_through(draft.index, edge.tensor, _PASSING)
            convs = partitions.get(source.name or "") if source is not None else None
            if convs:
                draft.add(edge, _NAME, convs)


def _partitions(draft: Draft) -> dict[str, frozenset[str]]:
    """The quantized Convs, and the ops that fuse into them: each with the Convs behind it."""
    found: dict[str, frozenset[str]] = {}
    for node in draft.index.nodes:
        if is_op(node, *_CONVS):
            if draft.is_chosen(node):
                found[node.name or ""] = frozenset([node.name or ""])
        elif is_op(node, *_POINTWISE):
            sources = _fused_sources(draft, node)
            if sources and all(name in found for name in sources):
                found[node.name or ""] = frozenset().union(*(found[name] for name in sources))
    return found


def _fused_sources(draft: Draft, node: ir.Node) -> set[str]:
    """Who makes what an op reads; of a residual Add, only the op that it is added in."""
    values = [value for value in node.inputs if value is not None and value.name]
    tensors = [value.name for value in values if not draft.index.is_constant(value.name or "")]
    if draft.is_chosen(node) and role_rule(draft.completion.dialect, node).joins_producer:
        quantized = draft.activations(node)
        tensors = [tensor for tensor in tensors if tensor not in quantized]
    producers = [draft.index.value[tensor or ""].producer() for tensor in tensors]
    return {(producer.name or "") if producer is not None else "" for producer in producers}


def _activation_edges(index: GraphIndex, node: ir.Node) -> list[Edge]:
    """Who reads the tensor that is normalized, if that is what happens here."""
    data = node.inputs[0] if node.inputs else None
    if data is None or not data.name or data.name not in index.value:
        return []
    if node.op_type in _NORMS:
        edges = [Edge(data.name, node.name or "", 0)]
    elif is_op(node, "ReduceMean"):
        edges = _decomposed(index, data.name, node)
    else:
        edges = []
    return [edge for edge in edges if index.is_float(edge.tensor)]


def _decomposed(index: GraphIndex, data: str, mean: ir.Node) -> list[Edge]:
    """Mean, difference, its square's mean, root, quotient: a LayerNormalization in pieces."""
    for edge in index.readers(mean.outputs[0].name or ""):
        minus = index.node.get(edge.node)
        if not is_op(minus, "Sub") or minus is None:
            continue
        first = minus.inputs[0]
        if first is not None and first.name == data and _is_divided(index, minus):
            return [Edge(data, mean.name or "", 0), Edge(data, minus.name or "", 0)]
    return []


def _is_divided(index: GraphIndex, minus: ir.Node) -> bool:
    """Whether a difference is divided by a root that comes from it."""
    centred = minus.outputs[0].name or ""
    for edge in index.readers(centred):
        node = index.node.get(edge.node)
        if node is None or not is_op(node, "Div", "Mul") or edge.position != 0:
            continue
        divisor = node.inputs[1]
        root = (
            source_through(index, divisor.name or "", _PASSING | {"Reciprocal"})
            if divisor is not None and divisor.name in index.value
            else None
        )
        if is_op(root, "Sqrt", "Pow") and root is not None and _comes_from(root, centred):
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


rule = Rule(
    _NAME,
    "With Q/DQ behind it a Conv writes integers: without, it writes floats that only the "
    "normalization reads, four times the bytes.",
    _apply,
)
