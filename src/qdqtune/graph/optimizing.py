"""Optimizes a model without destroying the quantization in it.

Constants, BatchNorms and Conv biases are folded; no-ops, duplicates and unused nodes are removed.
Every single Q/DQ node stays, and reads bit-identical values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir
import onnx_ir.passes.common as passes

from qdqtune.graph.control_flow_bodies import drop_unused_nodes
from qdqtune.graph.duplicates import merge_nodes, merge_weights
from qdqtune.graph.folding import fold
from qdqtune.graph.no_ops import remove_no_ops
from qdqtune.graph.op_classes import is_op
from qdqtune.graph.quantized_parts import all_nodes, holds_qdq, pinned, qdq_count
from qdqtune.records.errors import ModelError
from qdqtune.records.optimization import OptimizeCounts

# The first file format in which an input may have a default; before, all weights were inputs.
_DEFAULTS_IR_VERSION = 4


def optimize_graph(model: ir.Model) -> OptimizeCounts:
    """Optimize a model in place; a second call changes nothing.

    Inputs and outputs keep names, order and types, and remaining nodes keep their names. Constants
    are folded in the main graph only; no-ops and duplicates are removed from bodies and functions
    as well. Random ops are never computed or merged.

    Raises:
        ModelError: If onnxscript or onnx_ir can't process the model.
    """
    before, quantized = _op_types(model), qdq_count(model)
    done: Counter[str] = Counter()
    with _outputs_declared(model), _defaults_aside(model):
        # Newly inferred shapes allow more folding: before opset 13, one step at a time.
        outline = None
        while outline != (outline := _outline(model)):
            fold(model, keep_qdq=True)
            done += _clean(model)
            _drop_nodes(model)
    if qdq_count(model) != quantized:
        raise ModelError(
            "Optimizing the model would change its Q/DQ.",
            "This is a bug in qdqtune: please report it with the model.",
        )
    return OptimizeCounts(before, _op_types(model), **done, qdq=quantized.total())


def _clean(model: ir.Model) -> Counter[str]:
    """Remove what folding leaves behind: no-ops, duplicates, functions that nothing calls."""
    done: Counter[str] = Counter()
    for graph in model.graphs():
        done["no_ops"] += remove_no_ops(graph, model.opset_imports.get("", 0))
        done["duplicate_weights"] += merge_weights(graph)
        done["duplicate_nodes"] += merge_nodes(graph)
    for function in model.functions.values():
        done["no_ops"] += remove_no_ops(function, function.opset_imports.get("", 0))
        done["duplicate_nodes"] += merge_nodes(function)
    done["unused_functions"] += _drop_functions(model)
    return done


def _drop_nodes(model: ir.Model) -> None:
    with pinned(model):
        drop_unused_nodes(model)


def _drop_functions(model: ir.Model) -> int:
    """Remove functions that nothing calls, unless one of them contains quantization."""
    functions = dict(model.functions)
    passes.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    gone = [function for key, function in functions.items() if key not in model.functions]
    if any(holds_qdq(node) for function in gone for node in function):
        model.functions.clear()
        model.functions.update(functions)
        return 0
    return len(gone)


def _outline(model: ir.Model) -> tuple[Counter[str], int]:
    """Return counts that change whenever anything is folded, merged or removed."""
    weights = sum(len(graph.initializers) for graph in model.graphs())
    return Counter(node.op_type for node in all_nodes(model)), weights


def _op_types(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in all_nodes(model) if not is_op(node, "Constant"))


@contextmanager
def _defaults_aside(model: ir.Model) -> Iterator[None]:
    """Make inputs with defaults plain inputs temporarily: they may be fed other values."""
    graph = model.graph
    held = [
        (value, value.const_value)
        for value in graph.inputs
        if value.is_initializer() and model.ir_version >= _DEFAULTS_IR_VERSION
    ]
    try:
        for value, _ in held:
            graph.initializers.pop(value.name or "")
            value.const_value = None
        yield
    finally:
        for value, tensor in held:
            value.const_value = tensor
            graph.initializers.add(value)


@contextmanager
def _outputs_declared(model: ir.Model) -> Iterator[None]:
    """Restore the declared outputs on exit, whatever produces them then."""
    declared = [(value.type, value.shape) for value in model.graph.outputs]
    yield
    for value, (kind, shape) in zip(model.graph.outputs, declared, strict=True):
        value.type = kind if kind is not None else value.type
        if shape is not None and not any(shape.is_unknown_dim(at) for at in range(len(shape))):
            value.shape = shape
