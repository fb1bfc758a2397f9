"""Converting a model between float32, float16 and bfloat16.

Every node either changes its type or stays as it is (`precision_rules` says which and why), and
Casts go where the two meet: one per value and type, none on constants, none between two nodes of
one type. Moving nodes between two that stay, stay, too. A Cast that the model had follows its
readers, and disappears where both its sides are of one type now.

- Inputs and outputs keep their names, and by default their types.
- Values that control-flow bodies read are handed to them in the type they had; bodies, functions
  of the model and ops of other domains are not touched.
- **Q/DQ**: the type of its scale decides what a DequantizeLinear gives, so it is the scale that is
  converted; quantized weights and zero points stay as they are. Scales of half precision came with
  opset 19: the model is raised to it. A pair stays float32, between Casts, if its scale would fall
  among float16's subnormal numbers and lose its digits. An int32 bias always does: its scale is the
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
# Conv and pooling take bfloat16 from opset 22 on; engines are not much further.
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

    A model that was converted already is not changed. Weights that are listed as inputs, too, are
    taken off that list: as defaults that may be overridden they could not be converted.

    Args:
        model: A valid model, with or without Q/DQ.
        precision: To float16 or bfloat16, where that is safe; or to float32, everywhere.
        keep_io: Whether inputs and outputs keep their types; else all of them are converted.
        keep_nodes: Names of nodes that stay as they are.
        keep_ops: Op types that stay as they are; None takes `SENSITIVE_OPS` on the way to half
            precision.

    Returns:
        What was changed, and what was not and why.

    Raises:
        UsageError: If there is no node of such a name.
        ModelError: If the model has to be raised to another opset, and can't be.
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
    """Whether a model has something of a type that goes."""
    graph = model.graph
    values = [*graph.inputs, *graph.initializers.values()]
    values += [output for node in graph for output in node.outputs]
    return any(change.concerns(value) for value in values)


def _opset(model: ir.Model) -> int:
    return model.opset_imports.get("", 1)


def _needed_opset(model: ir.Model, change: Change) -> int:
    """The opset in which ops exist in the new type; for float16 that is about Q/DQ only."""
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
