"""Raises a model to the opset that its quantized form needs.

The converters are onnxscript's and, for old opsets, ONNX's own; they don't see the weights. This
module makes sure that they neither change what a model computes nor lose parts of it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

import onnx
import onnx_ir as ir
from onnxscript.version_converter import ConvertVersionPass

from qdqtune.graph._index import GraphIndex, name_nodes
from qdqtune.graph._op_classes import HALF_TYPES, input_at, is_op
from qdqtune.graph._shapes import infer_shapes
from qdqtune.graph._validity import first_line, inline_functions
from qdqtune.records._errors import ModelError

_OLDEST = 7
_HALF_SCALES = 19
# Opsets in which the meaning of an op changed although its form stayed the same.
_NEW_RESIZE = 11
_NEW_HARDMAX = 13


def least_opset(index: GraphIndex) -> int:
    """Return the opset that Q/DQ needs for a model's float types: half-precision scales are new."""
    return _HALF_SCALES if any(index.dtype(name) in HALF_TYPES for name in index.value) else 0


def raise_opset(model: ir.Model, least: int) -> bool:
    """Convert a model, in place, if its ONNX opset is older than `least`.

    Local functions are inlined, since they could not keep their own opset.

    Returns:
        Whether it was converted.

    Raises:
        ModelError: If the model is too old, or the converter fails.
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
    except Exception as error:  # anything that the converters raise on an untrusted model
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
    """Silence the converter's log message about its fallback."""
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _resized(model: ir.Model) -> dict[str | None, str]:
    """Return the nearest mode of old Resize and Upsample nodes, by the name of their output.

    They truncated coordinates to find the nearest one; ONNX Runtime rounds up when downsampling.
    """
    return {
        node.outputs[0].name: "ceil" if _shrinks(node) else "floor"
        for graph in model.graphs()
        for node in graph
        if is_op(node, "Resize", "Upsample")
    }


def _shrinks(node: ir.Node) -> bool:
    given = input_at(node, 1)
    scales = ir.convenience.get_const_tensor(given) if given is not None else None
    return scales is not None and bool((scales.numpy() < 1).any())


def _pin_resizes(model: ir.Model, resized: Mapping[str | None, str]) -> None:
    """Write out the attributes of old Resizes: newer opsets have different defaults."""
    for graph in model.graphs():
        for node in graph:
            rounding = resized.get(node.outputs[0].name)
            if rounding is not None and is_op(node, "Resize"):
                pinned = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": rounding}
                for name, text in pinned.items():
                    node.attributes[name] = ir.AttrString(name, text)


def _pin_hardmaxes(model: ir.Model) -> None:
    for node in (node for graph in model.graphs() for node in graph if is_op(node, "Hardmax")):
        axis, value = node.attributes.get_int("axis", 1), node.inputs[0]
        rank = len(value.shape) if value is not None and value.shape is not None else None
        if axis != -1 and (rank is None or axis != rank - 1):
            raise ModelError(
                f"The node {node.name!r} is a Hardmax over several axes at once, which newer "
                "opsets don't have.",
                f"Export the model with opset {_NEW_HARDMAX} or later.",
            )
        node.attributes["axis"] = ir.AttrInt64("axis", -1)


def _mend_output_ranks(model: ir.Model) -> None:
    """Infer shapes again: in newer opsets inference detects a wrong output rank."""
    declared = [(output, output.shape) for output in model.graph.outputs]
    for output, _ in declared:
        output.shape = None
    infer_shapes(model)
    for output, shape in declared:
        inferred = output.shape
        if shape is None or inferred is None or len(inferred) == len(shape):
            output.shape = shape
