"""List what stays float in a quantized model, for other quantization tools."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

import onnx
import onnx_ir as ir

from qdqtune.graph._files import load_model, parse_model
from qdqtune.graph._op_classes import COPY_OPS, WEIGHTED_OPS, is_op
from qdqtune.graph._shapes import infer_shapes
from qdqtune.qdq._preprocess import refuse_integer_ops
from qdqtune.qdq._read_back import strip
from qdqtune.records._errors import ModelError, UsageError
from qdqtune.records._placement import Placement
from qdqtune.workflows._arguments import AnyModel, as_file
from qdqtune.workflows.tuning._folder import BASELINE, FINAL

_logger = logging.getLogger(__name__)

# Ops that one of the tools would quantize, besides weighted and passthrough ops.
_QUANTIZED_BY_SOME = frozenset(
    {
        "Add", "ArgMax", "AveragePool", "BatchNormalization", "Clip", "Concat", "CumSum",
        "DepthToSpace", "Div", "Elu", "Gelu", "GlobalAveragePool", "GlobalMaxPool", "GRU",
        "GroupNormalization", "HardSigmoid", "HardSwish", "InstanceNormalization",
        "LayerNormalization", "LeakyRelu", "LSTM", "MaxPool", "Mul", "Pad", "Pow", "PRelu",
        "ReduceMax", "ReduceMean", "ReduceSum", "Relu", "Resize", "Sigmoid", "Softmax", "Sub",
        "Tanh", "TopK", "Where",
    }
)  # fmt: skip
_QUANTIZABLE = tuple(sorted(WEIGHTED_OPS | COPY_OPS | _QUANTIZED_BY_SOME))
# Every tool fuses these into the op before them.
_ACTIVATIONS = ("Clip", "Relu")
_ABSORBING = ("Add", *_ACTIVATIONS, *WEIGHTED_OPS)
# Ops whose second input counts even if it is a constant.
_TWO_OPERANDS = (
    "Add", "BatchNormalization", "Div", "GroupNormalization", "InstanceNormalization",
    "LayerNormalization", "Mul", "Pow", "PRelu", "Sub",
)  # fmt: skip


def float_nodes(source: AnyModel, *, against: AnyModel | None = None) -> list[str]:
    """Find the nodes of a quantized model that could be quantized, but are not.

    Args:
        source: A Q/DQ model from any tool (a path, a proto or an `onnx_ir.Model`), or the folder of
            a tuning run.
        against: The float model to take the names from; None is the model that a run was given, or
            the Q/DQ model itself.

    Returns:
        Their names, in the order of the graph.

    Raises:
        QdqtuneError: For any error that the user can act on, including that nothing is quantized.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(as_file(source, "source"))
        baseline = None
        if against is not None:
            baseline = stack.enter_context(as_file(against, "against"))
        if file.is_dir():
            return _float_nodes_of(file / FINAL, baseline or file / BASELINE)
        return _float_nodes_of(file, baseline)


def _float_nodes_of(file: Path, against: Path | None) -> list[str]:
    model = load_model(file)
    refuse_integer_ops(model, file)
    placement = strip(model).placement
    if not placement:
        raise ModelError(
            f"{file} has no Q/DQ: every node of it stays float.",
            "Name a quantized model, or a run that found one that is faster.",
        )
    infer_shapes(model)
    stay = list(_float_nodes(model, placement))
    return stay if against is None else _as_named_in(against, stay, model)


def _float_nodes(model: ir.Model, placement: Placement) -> Iterator[str]:
    quantized: set[str | None] = set()
    positions: dict[str | None, set[int]] = defaultdict(set)
    for edge in placement.edges:
        positions[edge.node].add(edge.position)
    tensors = placement.tensors
    for node in model.graph:
        if not is_op(node, *_QUANTIZABLE) or not _is_float(node):
            continue
        if _is_quantized(node, positions[node.name], tensors, quantized):
            quantized.add(node.name)
        else:
            yield node.name or ""


def _is_float(node: ir.Node) -> bool:
    """Whether an op reads non-constant floats; unknown types count as float."""
    data = [value for value in node.inputs if value is not None and value.const_value is None]
    return any(value.dtype is None or value.dtype.is_floating_point() for value in data)


def _is_quantized(
    node: ir.Node, positions: Set[int], tensors: Set[str], before: Set[str | None]
) -> bool:
    """Whether an op computes on quantized values, according to the Q/DQ around it.

    A weighted op does if all its operands are dequantized. Other ops may read dequantized values
    only because their producer's result has to be quantized: they count as quantized only if their
    output is quantized, too. An operand may also be the direct result of a quantized weighted op,
    which is then fused with this one.

    Args:
        node: The op.
        positions: The inputs that are dequantized.
        tensors: Tensors that are quantized.
        before: Names of quantized ops before it.
    """
    if is_op(node, *WEIGHTED_OPS):
        return positions >= {0, 1}
    for position, value in enumerate(node.inputs[:2]):
        if value is None or position in positions:
            continue
        if value.const_value is not None and not is_op(node, *_TWO_OPERANDS):
            continue
        producer = value.producer()
        if producer is None or producer.name not in before or not is_op(producer, *_ABSORBING):
            return False
    begins = bool(positions) or is_op(node, *_ACTIVATIONS)
    return begins and _ends_quantized(node.outputs[0], tensors)


def _ends_quantized(value: ir.Value, tensors: Set[str]) -> bool:
    """Whether a value gets quantized after at most passthrough ops and activations."""
    pending, seen = [value], {value}
    while pending:
        value = pending.pop()
        if value.name in tensors:
            return True
        results = [
            user.outputs[0]
            for user, position in value.uses()
            if position == 0 and is_op(user, *COPY_OPS, *_ACTIVATIONS)
        ]
        pending += (result for result in results if result not in seen)
        seen.update(results)
    return False


def _as_named_in(file: Path, stay: list[str], model: ir.Model) -> list[str]:
    """Map the nodes to a float file by name, and add BatchNorms that were folded into them."""
    nodes = parse_model(file).graph.node
    names = Counter(node.name for node in nodes)
    known = {name for name, count in names.items() if name and count == 1}
    if not any(node.name in known for node in model.graph):
        raise UsageError(
            f"{file} has no node of the quantized model, by name.",
            "Name the float model that it was made from.",
        )
    left_out = [name for name in stay if name not in known]
    if left_out:
        _logger.warning(
            "%d nodes that stay float have no name of their own in %s and can't be listed: %s",
            len(left_out), file, ", ".join(left_out[:5]),
        )  # fmt: skip
    listed = known.intersection(stay)
    there = {node.name for node in model.graph}
    return [name for name in _with_batchnorms(nodes, listed, there) if name in known]


def _with_batchnorms(
    nodes: Sequence[onnx.NodeProto], listed: set[str], there: set[str | None]
) -> Iterator[str]:
    producer: dict[str, str] = {}
    for node in nodes:
        folded = node.op_type == "BatchNormalization" and node.name not in there
        if node.name in listed or (folded and producer.get(node.input[0]) in listed):
            yield node.name
        producer.update((output, node.name) for output in node.output)
