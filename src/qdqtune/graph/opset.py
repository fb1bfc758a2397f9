"""Raising a model to the opset that its quantized form needs.

The converters are onnxscript's and, for old opsets, ONNX's own; weights stay out of what they see.
What is ours: they don't get to change what a model computes, or to lose what is written in it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

import onnx
import onnx_ir as ir
from onnxscript.version_converter import ConvertVersionPass

from qdqtune.graph.function_calls import inline_functions
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.naming import name_nodes
from qdqtune.graph.onnx_checks import first_line
from qdqtune.graph.op_classes import is_op
from qdqtune.graph.shapes import infer_shapes
from qdqtune.records.errors import ModelError

_OLDEST = 7
_HALF_SCALES = 19
# Opsets with which an op, written the same way, came to mean something else.
_NEW_RESIZE = 11
_NEW_HARDMAX = 13


def least_opset(index: GraphIndex) -> int:
    """The opset that Q/DQ on a model's own float types needs: half-precision scales came late."""
    half = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return _HALF_SCALES if any(index.dtype(name) in half for name in index.value) else 0


def raise_opset(model: ir.Model, least: int) -> bool:
    """Convert a model, in place, if its ONNX opset is older than `least`.

    Local functions are inlined; they could not stay in the opset that they were written in.

    Returns:
        Whether it was converted.

    Raises:
        ModelError: If the model is too old, or the converter gives up on it.
    """
    current = model.opset_imports.get("", least)
    model.opset_imports.setdefault("", least)
    if current >= least:
        return False
    advice = f"Export it with opset {least} or later."
    if current < _OLDEST:
        raise ModelError(
            f"The model is in opset {current}; opsets before {_OLDEST} are too old to be raised.",
            advice,
        )
    if model.functions:
        inline_functions(model)
    name_nodes(model)
    notes = {node.name: dict(node.metadata_props) for node in model.graph}
    graph_notes = dict(model.graph.metadata_props)
    resized = _resized(model) if current < _NEW_RESIZE <= least else {}
    if current < _NEW_HARDMAX <= least:
        _pin_hardmaxes(model)
    try:
        with _quiet(logging.getLogger("onnxscript.version_converter")):
            ConvertVersionPass(least, fallback=True)(model)
    except Exception as error:  # whatever a stranger's model makes them stumble over
        raise ModelError(
            f"The model can't be raised from opset {current} to {least}: {first_line(error)}",
            advice,
        ) from error
    if model.opset_imports.get("", 0) < least:
        raise ModelError(f"The model can't be raised from opset {current} to {least}.", advice)
    _pin_resizes(model, resized)
    _mend_output_ranks(model)
    for node in model.graph:
        node.metadata_props.update(notes.get(node.name, {}))
    model.graph.metadata_props.update(graph_notes)
    known = onnx.helper.OP_SET_ID_VERSION_MAP
    model.ir_version = max(model.ir_version, known.get(("ai.onnx", least), 0))
    return True


@contextlib.contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """That it takes its second way is no news for our users."""
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _resized(model: ir.Model) -> dict[str | None, str]:
    """How old Resize and Upsample nodes find the nearest coordinate, by the name of their output.

    The nearest one was found by cutting off the rest; ONNX Runtime rounds up where it shrinks.
    """
    return {
        node.outputs[0].name: "ceil" if _shrinks(node) else "floor"
        for graph in model.graphs()
        for node in graph
        if is_op(node, "Resize", "Upsample")
    }


def _shrinks(node: ir.Node) -> bool:
    given = node.inputs[1] if len(node.inputs) > 1 else None
    scales = ir.convenience.get_const_tensor(given) if given is not None else None
    return scales is not None and bool((scales.numpy() < 1).any())


def _pin_resizes(model: ir.Model, resized: Mapping[str | None, str]) -> None:
    """Old ones scaled coordinates plainly; what is not said now means something else."""
    for graph in model.graphs():
        for node in graph:
            rounding = resized.get(node.outputs[0].name)
            if rounding is not None and is_op(node, "Resize"):
                pinned = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": rounding}
                for name, text in pinned.items():
                    node.attributes[name] = ir.AttrString(name, text)


def _pin_hardmaxes(model: ir.Model) -> None:
    for node in (node for graph in model.graphs() for node in graph if is_op(node, "Hardmax")):
        attribute, value = node.attributes.get("axis"), node.inputs[0]
        axis = attribute.as_int() if attribute is not None else 1
        rank = len(value.shape) if value is not None and value.shape is not None else None
        if axis != -1 and (rank is None or axis != rank - 1):
            raise ModelError(
                f"The node {node.name!r} is a Hardmax over several axes at once, which newer "
                "opsets don't have.",
                f"Export the model with opset {_NEW_HARDMAX} or later.",
            )
        node.attributes["axis"] = ir.AttrInt64("axis", -1)


def _mend_output_ranks(model: ir.Model) -> None:
    """Infer shapes anew; in newer opsets inference sees where an output's rank was wrong."""
    declared = [(output, output.shape) for output in model.graph.outputs]
    for output, _ in declared:
        output.shape = None
    infer_shapes(model)
    for output, shape in declared:
        inferred = output.shape
        if shape is None or inferred is None or len(inferred) == len(shape):
            output.shape = shape
