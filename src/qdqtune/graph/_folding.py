"""Folding of constants, BatchNorms and Conv biases that never touches quantization."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnxscript import optimizer, rewriter
from onnxscript.rewriter.rules.common import (
    fuse_batchnorm_into_conv_rule,
    fuse_batchnorm_into_conv_transpose_rule,
    fuse_batchnorm_into_gemm_rule,
)

from qdqtune.graph._editing import (
    ROUNDED_ALIKE,
    add_constant,
    bodies_aside,
    drop_unused_nodes,
    given_to_qdq,
    holds_qdq,
    pinned,
    take_over,
    types_restored,
)
from qdqtune.graph._fold_limits import FoldLimits, runaway_nodes
from qdqtune.graph._index import FreeNames, name_apart_from_bodies, name_nodes, value_names
from qdqtune.graph._op_classes import CONV_OPS, QDQ_OPS, is_op, is_standard
from qdqtune.graph._shapes import infer_shapes, variables
from qdqtune.graph._validity import first_line
from qdqtune.graph._weights import retyped, values_of
from qdqtune.records._errors import ModelError

_BATCHNORM_RULES = (
    fuse_batchnorm_into_conv_rule,
    fuse_batchnorm_into_conv_transpose_rule,
    fuse_batchnorm_into_gemm_rule,
)
# The first file format in which weights need not be inputs.
_FREE_WEIGHTS_IR_VERSION = 4
# Our limits apply before anything is computed; onnxscript checks only the result.
_NO_LIMIT = 1 << 62
_ELSEWHERE = "qdqtune.aside"


def _write_kernel_shapes(graph: ir.Graph) -> bool:
    """Give every Conv its `kernel_shape`; returns whether anything changed.

    The attribute is optional, but TensorRT 8.6 can't infer it from a weight that comes out of a
    DequantizeLinear, and refuses the model.
    """
    modified = False
    for node in graph:
        weight = node.inputs[1] if is_op(node, *CONV_OPS) else None
        if weight is None or weight.const_value is None or "kernel_shape" in node.attributes:
            continue
        window = weight.const_value.shape.numpy()[2:]
        node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", window)
        modified = True
    return modified


def fold_conv_biases(model: ir.Model, *, keep_qdq: bool = False) -> bool:
    """Fold constants added to the results of Convs into their biases, in the main graph.

    A Conv whose weight is not a plain constant is left alone: it may be quantized, and its result
    must not change in the last bit.

    Args:
        model: The model.
        keep_qdq: Whether to also leave alone Convs that read dequantized values or whose sums are
            quantized.

    Returns:
        Whether anything changed.
    """
    names = FreeNames(value_names(model))
    modified = False
    for node in model.graph:
        if not is_op(node, "Add") or (found := _conv_and_bias(node)) is None:
            continue
        conv, bias = found
        if not (keep_qdq and _touches_qdq(conv, node)):
            _absorb(node, conv, bias, names.new(f"{conv.name}_bias"))
            modified = True
    return modified


def _touches_qdq(conv: ir.Node, add: ir.Node) -> bool:
    read = (value.producer() for value in conv.inputs if value is not None)
    return any(is_op(node, *QDQ_OPS) for node in (*read, *add.outputs[0].consumers()))


def _conv_and_bias(add: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """Return the Conv before an Add, and the addend, if that has one number per channel."""
    if len(add.inputs) != 2:
        return None
    for data, bias in (add.inputs, add.inputs[::-1]):
        conv = data.producer() if data is not None else None
        if conv is None or data is None or bias is None or not is_op(conv, *CONV_OPS):
            continue
        if data.is_graph_output() or len(data.uses()) != 1 or conv.graph is not add.graph:
            continue
        if _fits(conv, bias):
            return conv, bias
    return None


def _fits(conv: ir.Node, bias: ir.Value) -> bool:
    constants = [
        value.const_value if value.is_initializer() else None
        for value in (*conv.inputs[1:], bias)
        if value is not None
    ]
    if any(tensor is None or tensor.dtype != ir.DataType.FLOAT for tensor in constants):
        return False
    filters, *_, added = constants
    assert filters is not None
    assert added is not None
    rank, channels = len(filters.shape), _channels(conv, filters)
    shape = (1,) * (rank - len(added.shape)) + tuple(added.shape.numpy())
    return rank > 2 and shape == (1, channels, *[1] * (rank - 2))


def _channels(conv: ir.Node, filters: ir.TensorProtocol) -> int:
    shape = filters.shape.numpy()
    if conv.op_type == "Conv":
        return int(shape[0])
    return int(shape[1]) * conv.attributes.get_int("group", 1)


def _absorb(add: ir.Node, conv: ir.Node, bias: ir.Value, name: str) -> None:
    graph = add.graph
    assert isinstance(graph, ir.Graph)
    assert bias.const_value is not None
    values = values_of(bias.const_value).reshape(-1).astype(np.float32)
    given = conv.inputs[2] if len(conv.inputs) > 2 else None
    if given is not None:
        assert given.const_value is not None
        values = values + values_of(given.const_value)
    conv.resize_inputs(3)
    conv.replace_input_with(2, add_constant(graph, name, ir.Tensor(values, name=name)))
    take_over(add, conv.outputs[0])


def fold(model: ir.Model, *, keep_qdq: bool = False) -> bool:
    """Fold constants, BatchNorms and Conv biases in place; Q/DQ and their constants are kept.

    Control-flow bodies and functions are kept; only an If whose condition turns out to be constant
    is replaced by the branch that it takes.

    Args:
        model: The model.
        keep_qdq: Whether every single Q/DQ node is kept, including unused ones and those in a
            branch that is never taken, with bit-identical inputs.

    Returns:
        Whether anything changed.

    Raises:
        ModelError: If onnxscript or onnx_ir can't process the model.
    """
    with _complaints(), types_restored(_body_values(model)):
        ready = _make_ready(model)
        folded = _fold_constants(model, keep_qdq=keep_qdq)
        with pinned(model, when=keep_qdq):
            with bodies_aside(model):
                fused = _fold_batchnorms(model)
                added = fold_conv_biases(model, keep_qdq=keep_qdq)
                written = _write_kernel_shapes(model.graph)
            modified = ready or folded or fused or added or written
            if modified:
                drop_unused_nodes(model)
        if fused:
            passes.RemoveUnusedOpsetsPass(process_functions=False)(model)
        if modified:
            name_nodes(model)
            name_apart_from_bodies(model)
            infer_shapes(model)
    return modified


def make_ready(model: ir.Model) -> bool:
    """Establish what every later step relies on, in place, without changing any node.

    Nodes have names, Constant nodes become initializers, weights that old files also list as inputs
    are no longer inputs, and shapes are inferred as far as possible.

    Returns:
        Whether anything changed.

    Raises:
        ModelError: If onnxscript or onnx_ir can't process the model.
    """
    with _complaints(), types_restored(_body_values(model)):
        ready = _make_ready(model)
        return _write_kernel_shapes(model.graph) or ready


def _body_values(model: ir.Model) -> list[ir.Value]:
    return variables(graph for graph in model.graphs() if graph is not model.graph)


@contextmanager
def _complaints() -> Iterator[None]:
    """Turn any exception of onnxscript or onnx_ir into a `ModelError`."""
    try:
        yield
    except (ModelError, MemoryError):
        raise
    except Exception as error:  # keeps its own message
        reason = first_line(error.__cause__ or error)
        raise ModelError(
            f"The model's constants can't be folded: {reason}",
            "A node of it has inputs or attributes that don't fit; export the model again.",
        ) from error


def _make_ready(model: ir.Model) -> bool:
    name_nodes(model)
    with bodies_aside(model):
        # Old files list their weights as inputs, too; as defaults that may be overridden they
        # could neither be folded nor quantized.
        fixed = passes.RemoveInitializersFromInputsPass()(model)
        if fixed.modified:
            model.ir_version = max(model.ir_version, _FREE_WEIGHTS_IR_VERSION)
        lifted = passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(
            model
        )
    infer_shapes(model)
    return bool(fixed.modified or lifted.modified)


def _fold_constants(model: ir.Model, *, keep_qdq: bool) -> bool:
    limits = FoldLimits.of(model)
    guarded = given_to_qdq(model) if keep_qdq else frozenset()

    def is_decided(node: ir.Node) -> bool:
        return _is_decided(node) and not (keep_qdq and holds_qdq(node))

    def may_fold(node: ir.Node) -> bool:
        if not is_standard(node) or node.op_type in QDQ_OPS or node in without_body:
            return False
        if node.outputs[0] in guarded and node.op_type not in ROUNDED_ALIKE:
            return False
        return limits.allow(node)

    modified = False
    decided = frozenset(filter(is_decided, model.graph))
    while True:
        with (
            bodies_aside(model, but=decided) as without_body,
            _aside(runaway_nodes(model)),
            np.errstate(all="ignore"),
        ):
            result = optimizer.fold_constants(
                model,
                onnx_shape_inference=False,
                should_fold=may_fold,
                output_size_limit=_NO_LIMIT,
            )
        modified |= bool(result.modified)
        before, decided = decided, frozenset(filter(is_decided, model.graph))
        if decided <= before:  # the remaining ones can't be replaced
            return modified


def _is_decided(node: ir.Node) -> bool:
    """Whether an If always takes the same branch."""
    condition = node.inputs[0] if node.inputs else None
    return is_op(node, "If") and condition is not None and condition.const_value is not None


def _keep_precision(node: ir.Node) -> None:
    """Cast a node's constants to its input type: bfloat16 ones were multiplied in float32."""
    data = node.inputs[0]
    for value in node.inputs[1:]:
        constant = value.const_value if value is not None else None
        if data is None or data.dtype is None or value is None or constant is None:
            continue
        if constant.dtype != data.dtype and constant.dtype.is_floating_point():
            value.const_value = retyped(constant, data.dtype, value.name)
            value.dtype = data.dtype


def _fold_batchnorms(model: ir.Model) -> bool:
    """Fold BatchNorms into the weighted op before them, which keeps its name and metadata."""
    # A rewritten node takes over the output of the absorbed BatchNorm, by which its name is found.
    absorbed = {}
    norms = [node for node in model.graph if is_op(node, "BatchNormalization")]
    for node in norms:
        producer = node.inputs[0].producer() if node.inputs[0] is not None else None
        if producer is not None:
            absorbed[node.outputs[0].name] = producer.name, dict(producer.metadata_props)
    if not absorbed:
        return False
    before = len(model.graph)
    # onnxscript 0.7 also folds those that use batch statistics.
    with _aside(node for node in norms if _is_training(node)):
        rewriter.RewritePass(list(_BATCHNORM_RULES))(model)
    passes.RemoveUnusedNodesPass()(model)
    kept = {node.name for node in model.graph}
    for node in model.graph:
        name, metadata = absorbed.get(node.outputs[0].name, (None, {}))
        if name is not None and name not in kept:
            node.name = name
            node.metadata_props.update(metadata)
            _keep_precision(node)
    return len(model.graph) != before


@contextmanager
def _aside(nodes: Iterable[ir.Node]) -> Iterator[None]:
    """Move nodes to an unknown domain temporarily, so that no pass interprets them."""
    hidden = [(node, node.domain) for node in nodes]
    try:
        for node, _ in hidden:
            node.domain = _ELSEWHERE
        yield
    finally:
        for node, domain in hidden:
            node.domain = domain


def _is_training(node: ir.Node) -> bool:
    # Before opset 14 the number of outputs decides.
    is_set = bool(node.attributes.get_int("training_mode", 0))
    return is_set or any(out.name for out in node.outputs[1:])
