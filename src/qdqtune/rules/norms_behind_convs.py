"""A normalization that a Conv feeds: its input is quantized, so that the Conv writes integers."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import COPY_OPS, is_op
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
            if source is not None and source.name in partitions:
                draft.add(edge, _NAME)


def _partitions(draft: Draft) -> set[str]:
    """The quantized Convs, and the ops that fuse into them: those that read nothing else."""
    found: set[str] = set()
    for node in draft.index.nodes:
        if is_op(node, *_CONVS):
            if draft.is_chosen(node):
                found.add(node.name or "")
        elif is_op(node, *_POINTWISE) and _reads_only(draft.index, node, found):
            found.add(node.name or "")
    return found


def _reads_only(index: GraphIndex, node: ir.Node, partition: set[str]) -> bool:
    sources = [value for value in node.inputs if value is not None and value.name]
    computed = [value for value in sources if not index.is_constant(value.name or "")]
    producers = [value.producer() for value in computed]
    return bool(producers) and all(
        producer is not None and producer.name in partition for producer in producers
    )


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
    data = root.inputs[0]
    through = ("Add", "ReduceMean", "Pow", "Mul", "Cast")
    for _ in range(_DEPTH):
        if data is None or data.name == centred:
            return data is not None
        node = data.producer()
        if node is None or not is_op(node, *through):
            return False
        data = node.inputs[0]
    return False


rule = Rule(
    _NAME,
    "With Q/DQ behind it a Conv writes integers: without, it writes floats that only the "
    "normalization reads, four times the bytes.",
    _apply,
)
