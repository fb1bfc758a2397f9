"""Converting a model between float32, float16 and bfloat16, and emulating half precision.

The emulation is for engines without half-precision kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import onnx_ir as ir
import onnx_ir.passes.common as passes

from qdqtune.graph._editing import insert_cast
from qdqtune.graph._index import name_nodes, values_in
from qdqtune.graph._op_classes import DEQUANTIZE, QUANTIZE, dtype_of, is_op
from qdqtune.graph._opset import raise_opset
from qdqtune.graph._precision_conversion import Plan, Retyping, set_output_type
from qdqtune.graph._precision_rules import SENSITIVE_OPS
from qdqtune.graph._precision_types import DTYPE, HALF_TYPES, Change, Slots, slots
from qdqtune.graph._shapes import infer_shapes
from qdqtune.graph._weights import retyped
from qdqtune.records._precision import Precision, PrecisionReport

# Before opset 7 ops broadcast, and types are written, in another way.
_OLDEST_OPSET = 7
# Conv and pooling accept bfloat16 from opset 22 on; engines don't support much newer opsets.
_NEWEST_OPSET = 22
# Before this version of the format, weights had to be listed among the inputs.
_FREE_WEIGHTS_IR_VERSION = 4

_SMALL_BYTES = 1 << 16


def convert_precision(
    model: ir.Model,
    precision: Precision,
    *,
    keep_io: bool = True,
    keep_nodes: Collection[str] = (),
    keep_ops: Collection[str] | None = None,
) -> PrecisionReport:
    """Convert a model in place.

    A model that is already converted is not changed. Weights that are also listed as inputs are
    removed from the inputs: as defaults that may be overridden they could not be converted.

    Args:
        model: A valid model, with or without Q/DQ.
        precision: float16 or bfloat16, applied where that is safe; or float32, applied everywhere.
        keep_io: Whether inputs and outputs keep their types; otherwise all of them are converted.
        keep_nodes: Names of nodes to keep.
        keep_ops: Op types to keep; None means `SENSITIVE_OPS` when converting to half
            precision.

    Returns:
        What was changed, and what was kept and why.

    Raises:
        UsageError: If a node does not exist.
        ModelError: If the model needs another opset and can't be converted to it.
    """
    fixed = passes.RemoveInitializersFromInputsPass()(model)
    if fixed.modified:
        model.ir_version = max(model.ir_version, _FREE_WEIGHTS_IR_VERSION)
    name_nodes(model)
    infer_shapes(model)
    casts = _count_casts(model)
    target = DTYPE[precision]
    steps = [Change(HALF_TYPES - {target}, ir.DataType.FLOAT, _opset(model))]
    report = PrecisionReport(precision, modified=bool(fixed.modified))
    if precision is not Precision.FP32:
        steps.append(Change(frozenset({ir.DataType.FLOAT}), target, _opset(model)))
        needed = _needed_opset(model, steps[-1])
        if raise_opset(model, needed):
            name_nodes(model)
            steps = [replace(step, opset=needed) for step in steps]
            report = replace(report, opset=needed, modified=True)
    for change in steps:
        if change is not steps[-1] and not _is_in(change, model):
            continue
        sensitive = SENSITIVE_OPS if change.target in HALF_TYPES else ()
        ops = sensitive if keep_ops is None else keep_ops
        plan = Plan(model, change, keep_io=keep_io, keep_nodes=keep_nodes, keep_ops=ops)
        retyping = Retyping(model, plan)
        retyping.apply()
        report = replace(
            report,
            converted=tuple(dict.fromkeys((*report.converted, *plan.converted))),
            kept={**report.kept, **plan.kept},
            saturated=(*report.saturated, *retyping.saturated),
            modified=report.modified or retyping.modified,
        )
    return replace(report, casts=_count_casts(model) - casts)


def _is_in(change: Change, model: ir.Model) -> bool:
    """Whether a model contains a type that is to be replaced."""
    return any(map(change.concerns, values_in(model.graph)))


def _opset(model: ir.Model) -> int:
    return model.opset_imports.get("", 1)


def _needed_opset(model: ir.Model, change: Change) -> int:
    """Return the opset in which ops support the new type; for float16 only Q/DQ matters."""
    needed = max(change.opset, _OLDEST_OPSET)
    for node in model.graph:
        if change.target == ir.DataType.FLOAT16 and not is_op(node, QUANTIZE, DEQUANTIZE):
            continue
        for opset in range(needed, _NEWEST_OPSET + 1):
            if slots(node, replace(change, opset=opset)).whole:
                needed = opset
                break
    return needed


def _count_casts(model: ir.Model) -> int:
    return sum(is_op(node, "Cast") for node in model.graph)


def compute_in_float32(model: ir.Model) -> dict[str, str]:
    """Make every standard op of a model compute in float32, in place.

    Each half-precision result is rounded back by a pair of Casts behind it, so the numbers are
    those of half precision, including overflows. Inputs and outputs become float32 and keep their
    names.

    Args:
        model: A valid model with named nodes and inferred types.

    Returns:
        Node name to the name of its rounded result.
    """
    graph = model.graph
    change = Change(HALF_TYPES, ir.DataType.FLOAT, model.opset_imports.get("", 1))
    nodes = [node for node in graph if not is_op(node, "Cast", "Constant")]
    found = {node: slots(node, change) for node in nodes}
    _widen_small_constants(graph, found)
    wide: dict[ir.Value, ir.Value] = {}
    rounded: dict[ir.Node, ir.Value] = {}
    for value in graph.inputs:
        if change.concerns(value):
            _round(value, graph, wide)
    for node, movable in found.items():
        if not movable.whole:
            continue
        for position in movable.inputs:
            source = node.inputs[position]
            assert source is not None
            if dtype_of(source) in HALF_TYPES or source in wide:
                node.replace_input_with(position, _widened(source, graph, wide))
        for position in movable.outputs:
            set_output_type(node, ir.DataType.FLOAT)
            rounded[node] = _round(node.outputs[position], graph, wide)
    for position, value in enumerate(graph.outputs):
        if value in wide or change.concerns(value):
            _widen_output(graph, position, wide)
    return {node.name or "": value.name or "" for node, value in rounded.items()}


def _widen_small_constants(graph: ir.Graph, found: Mapping[ir.Node, Slots]) -> None:
    """Store constants that nothing reads in half precision in float32; no number changes.

    A Cast for each would also work, but a model can have 100,000 of them.
    """
    for value in graph.initializers.values():
        tensor = value.const_value
        if (
            tensor is not None
            and tensor.dtype in HALF_TYPES
            and tensor.nbytes <= _SMALL_BYTES
            and not value.is_graph_input()
            and not value.is_graph_output()
            and all(
                node in found and found[node].whole and position in found[node].input_set
                for node, position in value.uses()
            )
        ):
            value.const_value = retyped(tensor, ir.DataType.FLOAT, value.name)
            value.type = ir.TensorType(ir.DataType.FLOAT)


def _round(value: ir.Value, graph: ir.Graph, wide: dict[ir.Value, ir.Value]) -> ir.Value:
    """Make a value float32, and give its readers the value rounded to half precision."""
    dtype = dtype_of(value)
    assert dtype is not None
    value.type = ir.TensorType(ir.DataType.FLOAT)
    readers = list(value.uses())
    narrow = _cast(value, dtype, graph)
    again = _cast(narrow, ir.DataType.FLOAT, graph)
    wide[narrow] = wide[value] = again
    for node, position in readers:
        node.replace_input_with(position, narrow)
    return again


def _widened(value: ir.Value, graph: ir.Graph, wide: dict[ir.Value, ir.Value]) -> ir.Value:
    if value not in wide:
        wide[value] = _cast(value, ir.DataType.FLOAT, graph)
    return wide[value]


def _widen_output(graph: ir.Graph, position: int, wide: dict[ir.Value, ir.Value]) -> None:
    value = graph.outputs[position]
    if value.is_graph_input():
        return
    again = _widened(value, graph, wide)
    graph.outputs[position] = again
    name, value.name = value.name, f"{value.name}_unrounded"
    again.name = name


def _cast(value: ir.Value, dtype: ir.DataType, graph: ir.Graph) -> ir.Value:
    name = f"{value.name}_as_{dtype.name.lower()}"
    return insert_cast(graph, value, dtype, name, f"Cast_{name}")
