"""From ops to placements: what has to be quantized so that an op becomes an integer kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import (
    COPY_OPS,
    FLOAT_TYPES,
    WEIGHTED_OPS,
    has_body,
    input_at,
    is_op,
    is_standard,
    weight_axis,
)
from qdqtune.qdq._at_run_time import why_not_dynamic
from qdqtune.qdq._dialect import Dialect, OpRule, Output
from qdqtune.records._placement import Edge, Placement

_SPLIT_OPS = ("Gather", "Slice", "Split")

_BIAS = 2
# Used when somebody insists on an op that the dialect has no rule for.
_PLAIN = OpRule(inputs=None, output=Output.FLOAT)
_PLAIN_WEIGHTED = OpRule(inputs=(0, 1), weight=1, output=Output.FLOAT)


def parted_result(index: GraphIndex, node: ir.Node) -> list[str]:
    """The op's result, its bias added, if nothing but moves lead from it to parts of it."""
    result = tensor = node.outputs[0].name or ""
    moves = 0
    while True:
        readers = [index.node[edge.node] for edge in index.readers(tensor) if edge.node]
        if any(is_op(reader, *_SPLIT_OPS) for reader in readers):
            return [result] if moves or any(map(_is_moved, readers)) else []
        if len(readers) != 1:
            return []
        reader = readers[0]
        if not moves and is_op(reader, "Add") and index.reads_constant(reader):
            result = reader.outputs[0].name or ""
        elif is_op(reader, *COPY_OPS):
            moves += 1
        else:
            return []
        tensor = reader.outputs[0].name or ""


def _is_moved(node: ir.Node) -> bool:
    """Whether something moves a part before it is used."""
    users = (user for output in node.outputs for user, _ in output.uses())
    return is_op(node, *_SPLIT_OPS) and any(is_op(user, *COPY_OPS) for user in users)


def rule_of(dialect: Dialect, node: ir.Node) -> OpRule | None:
    """The dialect's rule for a node; None if it has no integer kernel for such an op."""
    return dialect.rules.get(node.op_type) if is_standard(node) else None


def role_rule(dialect: Dialect, node: ir.Node) -> OpRule:
    """The dialect's rule, or what stands in for it when the op has none."""
    known = rule_of(dialect, node)
    if known is not None:
        return known
    return _PLAIN_WEIGHTED if is_op(node, *WEIGHTED_OPS) else _PLAIN


def why_not(index: GraphIndex, dialect: Dialect, node: ir.Node, quant_type: str) -> str:
    """Why a node can't be quantized to this type in this dialect; empty if it can."""
    rule = rule_of(dialect, node)
    if rule is None:
        return _why_no_rule(index, dialect, node)
    edges = list(operands(node, rule))
    if not edges:
        return "it reads nothing that could be quantized"
    for edge in edges:
        dtype = index.dtype(edge.tensor)
        if dtype is None or dtype not in FLOAT_TYPES:
            kind = "is of unknown type" if dtype is None else "is not a float tensor"
            return f"its input {edge.tensor!r} {kind}"
        if dtype not in dialect.float_types:
            return f"{dialect.name} has no integer kernel for {dtype.name.lower()} tensors"
        if index.is_constant(edge.tensor) and not index.is_finite(edge.tensor):
            return f"the constant {edge.tensor!r} holds infinite or undefined values"
        if _size(index.shape(edge.tensor)) == 0:
            return f"its input {edge.tensor!r} has no elements"
    unfit = _unfit(index, dialect, node, rule)
    if unfit:
        return unfit
    bias = _bias_of(node, rule)
    if bias is not None and not is_channel_bias(index, node, bias.name or ""):
        return "its bias is not a constant with one value per channel"
    shapes = {edge.position: index.shape(edge.tensor) for edge in edges}
    elements = _size(shapes.get(0))
    if elements is not None and elements < rule.least_elements:
        return f"{dialect.name} reads an input of {elements} elements as floats"
    taps = _size((shapes.get(1) or ())[2:]) if node.op_type == "Conv" else None
    most_taps = dialect.format_of(quant_type).most_taps
    if taps is not None and most_taps is not None and taps > most_taps:
        return f"{dialect.name} has no {quant_type} kernel for a window of {taps} taps"
    return ""


def is_fused_with_norm(dialect: Dialect, node: ir.Node) -> bool:
    """Whether the engine fuses an Add with the layer normalization that reads it, to its loss."""
    return dialect.unfused_sums and is_op(node, "Add") and bool(norms_of(node))


def norms_of(node: ir.Node) -> list[ir.Node]:
    """The layer normalizations of an op's result, or the ops with which they begin."""
    readers = [user for user, _ in node.outputs[0].uses()]
    written_out = [each for each in readers if is_op(each, "ReduceMean", "Sub")]
    if len({each.op_type for each in written_out}) < 2:
        written_out = []
    return [each for each in readers if is_op(each, "LayerNormalization")] + written_out


def _why_no_rule(index: GraphIndex, dialect: Dialect, node: ir.Node) -> str:
    if has_body(node):
        return f"ops in the bodies of {node.op_type} are not quantized"
    if not is_standard(node):
        return f"{node.op_type} of the domain {node.domain!r} is not an ONNX op"
    if node.op_type in dialect.dynamic:
        only = f"{dialect.name} quantizes {node.op_type} only at run time"
        return why_not_dynamic(index, dialect, node) or only
    return f"{dialect.name} has no integer kernel for {node.op_type}"


def passes_values_through(index: GraphIndex, dialect: Dialect, node: ir.Node) -> bool:
    """Whether an op has an integer kernel that only moves values."""
    rule = role_rule(dialect, node)
    return rule.same_scale and not _unfit(index, dialect, node, rule)


def _unfit(index: GraphIndex, dialect: Dialect, node: ir.Node, rule: OpRule) -> str:
    """Why the dialect's kernel for such ops is not one for this op; empty if it is."""
    kind = f"{dialect.name} has no integer kernel for {node.op_type}"
    if rule.mode and node.attributes.get_string("mode", rule.mode) != rule.mode:
        return f"{kind} in another mode than {rule.mode}"
    if rule.axis is not None and _axis(index, node) not in (None, rule.axis):
        return f"{kind} along another axis than {rule.axis}"
    tensors = [edge.tensor for edge in operands(node, rule)]
    if rule.activations_only and any(map(index.is_constant, tensors)):
        return f"{dialect.name} takes the constant that it reads into the kernel before it"
    if rule.same_shapes and not _may_be_equal(map(index.shape, tensors)):
        return "its operands differ in shape"
    return ""


def unit(index: GraphIndex, dialect: Dialect, node: ir.Node, *, whole: bool) -> Placement:
    """The places that quantize one op.

    Args:
        index: The graph.
        dialect: Whose kernels.
        node: The op.
        whole: Also the output where that is usual but not required.
    """
    rule = role_rule(dialect, node)
    edges = [edge for edge in operands(node, rule) if index.is_float(edge.tensor)]
    if rule.joins_producer:
        edges = _without_fused(index, edges)
    edges += bias_edges(index, node, rule)
    outputs: list[str] = []
    if rule.output is Output.REQUIRED:
        outputs = unit_outputs(index, dialect, node)
    elif rule.output is Output.USUAL and whole:
        outputs = [
            name
            for name in unit_outputs(index, dialect, node)
            if _worth_quantizing(index, name, rule)
        ]
    if rule.whole_when_parted:
        outputs += parted_result(index, node)
    return Placement.of(edges, outputs)


def _worth_quantizing(index: GraphIndex, output: str, rule: OpRule) -> bool:
    """Whether a usual output has a reader in the graph that doesn't want it float.

    What only leaves the graph is better left as exact as the kernel can give it.
    """
    readers = (index.node[edge.node] for edge in index.readers(output) if edge.node)
    return any(not is_op(reader, *rule.float_before) for reader in readers)


def close(index: GraphIndex, dialect: Dialect, placement: Placement) -> Placement:
    """Complete what an edge bit means: its reader is to be an integer kernel, whole.

    A point on a Conv's input brings the weight, and where the dialect needs it the bias and the
    output. Output bits bring nothing: who reads a quantized tensor need not be quantized itself.
    """
    readers = sorted({edge.node for edge in placement.edges if edge.node})
    units = [
        unit(index, dialect, index.node[name], whole=False)
        for name in readers
        if rule_of(dialect, index.node[name]) is not None
    ]
    return merge([placement, *units])


def canonical(index: GraphIndex, placement: Placement) -> Placement:
    """The one form of all placements that write the same model.

    Every edge that sees a quantized value is listed, and every tensor whose readers all do.
    """
    edges = index.effective(placement)
    tensors = {edge.tensor for edge in edges}
    full = (
        tensor
        for tensor in tensors
        if not index.is_constant(tensor) and edges.issuperset(index.readers(tensor))
    )
    return replace(placement, edges=edges, outputs=frozenset(full))


def merge(placements: Iterable[Placement]) -> Placement:
    """The union of many placements."""
    every = list(placements)
    return Placement(
        frozenset[Edge]().union(*(each.edges for each in every)),
        frozenset[str]().union(*(each.outputs for each in every)),
        frozenset[str]().union(*(each.dynamic for each in every)),
        frozenset[str]().union(*(each.unfused for each in every)),
    )


def unit_outputs(index: GraphIndex, dialect: Dialect, node: ir.Node) -> list[str]:
    """Output tensors of a unit: those of the op, or of the activation that fuses into it."""
    rule = role_rule(dialect, node)
    outputs = [value.name for value in node.outputs if value.name and index.readers(value.name)]
    if len(outputs) == 1 and not rule.same_scale:
        readers = index.readers(outputs[0])
        reader = index.node.get(readers[0].node) if len(readers) == 1 else None
        if is_op(reader, *dialect.fused_activations) and not index.read_by_body(outputs[0]):
            assert reader is not None
            outputs = [reader.outputs[0].name or ""]
    return [name for name in outputs if index.is_float(name)]


def operands(node: ir.Node, rule: OpRule) -> Iterator[Edge]:
    """The edges that a rule wants quantized together."""
    positions = range(len(node.inputs)) if rule.inputs is None else rule.inputs
    for position in positions:
        value = input_at(node, position)
        if value is not None and value.name:
            yield Edge(value.name, node.name or "", position)


def _without_fused(index: GraphIndex, edges: list[Edge]) -> list[Edge]:
    """All but the one edge through which the op fuses into a weighted op before it."""
    fused = None
    for edge in edges:
        producer = index.value[edge.tensor].producer()
        if is_op(producer, *WEIGHTED_OPS) and len(index.readers(edge.tensor)) == 1:
            assert producer is not None
            position = index.position[producer.name or ""]
            fused = max(fused or (position, edge), (position, edge))
    return [edge for edge in edges if fused is None or edge != fused[1]]


def _bias_of(node: ir.Node, rule: OpRule) -> ir.Value | None:
    return input_at(node, rule.bias) if rule.bias is not None else None


def bias_edges(index: GraphIndex, node: ir.Node, rule: OpRule) -> list[Edge]:
    """Where a node reads a bias that becomes int32, if it does."""
    value = _bias_of(node, rule)
    if rule.bias is None or value is None or not is_channel_bias(index, node, value.name or ""):
        return []
    return [Edge(value.name or "", node.name or "", rule.bias)]


def own_bias(index: GraphIndex, node: ir.Node) -> Edge | None:
    """Where the bias of a weighted op is read: by the op, or by the Add behind a MatMul.

    None if there is none that is a constant with one value per channel, and of this op alone.
    """
    edge = None
    if is_op(node, "MatMul"):
        readers = index.readers(node.outputs[0].name or "")
        adds = index.node.get(readers[0].node) if len(readers) == 1 else None
        if is_op(adds, "Add") and adds is not None:
            position = 1 - readers[0].position
            edge = Edge(index.reads(adds)[position], adds.name or "", position)
    elif is_op(node, *WEIGHTED_OPS) and (value := input_at(node, _BIAS)) is not None:
        edge = Edge(value.name or "", node.name or "", _BIAS)
    if edge is None or not is_channel_bias(index, node, edge.tensor):
        return None
    is_alone = index.readers(edge.tensor) == (edge,) and not index.read_by_body(edge.tensor)
    return edge if is_alone and index.is_finite(edge.tensor) else None


def is_channel_bias(index: GraphIndex, node: ir.Node, bias: str) -> bool:
    """Whether a bias is a constant with one value per output channel of the weight."""
    shape, channels = index.shape(bias), index.shape_read(node, 1)
    if not index.is_constant(bias) or not shape or not channels:
        return False
    return _size(shape) == shape[-1] == channels[weight_axis(node)]


def _axis(index: GraphIndex, node: ir.Node) -> int | None:
    """The axis of an op, counted from the front, if it can be known."""
    axis = node.attributes.get_int("axis", 0)
    shape = index.shape(node.outputs[0].name or "")
    if axis >= 0:
        return axis
    return None if shape is None else axis + len(shape)


def _may_be_equal(shapes: Iterable[tuple[int | None, ...] | None]) -> bool:
    """Whether shapes can be equal, as far as they are known."""
    known = [shape for shape in shapes if shape is not None]
    if len({len(shape) for shape in known}) > 1:
        return False
    return all(
        len({dim for dim in dims if dim is not None}) <= 1 for dims in zip(*known, strict=True)
    )


def _size(shape: tuple[int | None, ...] | None) -> int | None:
    """How many elements a tensor has, if all its dims are known."""
    if shape is None or None in shape:
        return None
    return math.prod(dim for dim in shape if dim is not None)
