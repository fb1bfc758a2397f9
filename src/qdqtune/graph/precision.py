"""Converting a model between float32, float16 and bfloat16.

Every node either changes its type or is kept (`precision_rules` decides which and why), and Casts
are inserted between the two: one per value and type, none on constants, none between two nodes of
the same type. Passthrough nodes between two kept nodes are kept, too. An existing Cast follows its
readers, and is removed if both its sides now have the same type.

- Inputs and outputs keep their names, and by default their types.
- Control-flow bodies get the values they read in the original type; bodies, functions of the model
  and ops of other domains are not changed.
- **Q/DQ**: the type of its scale determines what a DequantizeLinear produces, so the scale is
  converted; quantized weights and zero points stay. Half-precision scales require opset 19, so the
  model is raised to it. A pair stays float32, between Casts, if its scale would become a float16
  subnormal and lose its digits. An int32 bias always does: its scale is the
  product of two others, often below 1e-7.
- Constants are converted when they are written; one that is read in both types is stored twice.
  Numbers beyond float16's range are masks or bounds where saturation does no harm, and become the
  largest finite number; elsewhere their reader stays float32. Infinities stay infinite.
- float64 is left alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import onnx_ir as ir
import onnx_ir.passes.common as passes

from qdqtune.graph.naming import name_nodes
from qdqtune.graph.op_classes import DEQUANTIZE, QUANTIZE, is_op
from qdqtune.graph.opset import raise_opset
from qdqtune.graph.precision_conversion import Retyping
from qdqtune.graph.precision_plan import Plan
from qdqtune.graph.precision_rules import SENSITIVE_OPS
from qdqtune.graph.precision_types import DTYPE, HALF_TYPES, Change, slots
from qdqtune.graph.shapes import infer_shapes
from qdqtune.records.precision import Precision, PrecisionReport

# Before opset 7 ops broadcast, and types are written, in another way.
_OLDEST_OPSET = 7
# Conv and pooling accept bfloat16 from opset 22 on; engines don't support much newer opsets.
_NEWEST_OPSET = 22
# Before this version of the format, weights had to be listed among the inputs.
_FREE_WEIGHTS_IR_VERSION = 4


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
        report = _add(report, plan, Retyping(model, plan))
    return replace(report, casts=_count_casts(model) - casts)


def _add(report: PrecisionReport, plan: Plan, retyping: Retyping) -> PrecisionReport:
    retyping.apply()
    return replace(
        report,
        converted=tuple(dict.fromkeys((*report.converted, *plan.converted))),
        kept={**report.kept, **plan.kept},
        saturated=(*report.saturated, *retyping.saturated),
        modified=report.modified or retyping.modified,
    )


def _is_in(change: Change, model: ir.Model) -> bool:
    """Whether a model contains a type that is to be replaced."""
    graph = model.graph
    values = [*graph.inputs, *graph.initializers.values()]
    values += [output for node in graph for output in node.outputs]
    return any(change.concerns(value) for value in values)


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
