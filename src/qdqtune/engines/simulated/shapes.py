"""Shapes of all tensors of a model, also where the model computes them from other shapes.

For candidates, whose constants are folded, ONNX's inference is enough. Files from exporters compute
sizes from the shapes of earlier tensors; there, known values are evaluated and inference is
repeated, until nothing new is found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx.inliner
import onnx.shape_inference
from onnx import numpy_helper

Shapes = Mapping[str, Sequence[int]]
"""Input name to shape."""

LARGEST_READ_BYTES = 1024
"""Constants used for shapes are smaller; the values of larger ones are never used."""

_MOST_ROUNDS = 64
_MOST_ELEMENTS = LARGEST_READ_BYTES // 8
_ARITHMETIC = frozenset(
    {
        "Abs", "Add", "And", "Cast", "Ceil", "Concat", "Constant", "ConstantOfShape", "Div",
        "Equal", "Expand", "Flatten", "Floor", "Gather", "Greater", "Identity", "Less", "Max",
        "Min", "Mod", "Mul", "Neg", "Not", "Or", "Range", "ReduceMax", "ReduceMin", "ReduceProd",
        "ReduceSum", "Reshape", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Transpose",
        "Unsqueeze", "Where",
    }
)  # fmt: skip


def with_shapes(
    proto: onnx.ModelProto, input_shapes: Shapes
) -> tuple[onnx.ModelProto, dict[str, tuple[int, ...]]]:
    """Infers the shapes of all tensors.

    Args:
        proto: The model; it is not changed.
        input_shapes: Shapes of inputs; dims that are neither here nor in the model are 1.

    Returns:
        The model with its functions inlined, and the shapes by name: 0 for unknown dims, no entry
        if the rank is unknown.
    """
    model = onnx.inliner.inline_local_functions(proto) if proto.functions else proto
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        given = input_shapes.get(value.name, ())
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if axis < len(given):
                dim.dim_value = given[axis]
            elif dim.dim_value <= 0:
                dim.dim_value = 1
    inferred = _infer(fixed)
    shapes = _shapes(inferred.graph)
    for _ in range(_MOST_ROUNDS):
        known = {name: shape for name, shape in shapes.items() if 0 not in shape}
        if all(name in known for node in inferred.graph.node for name in node.output if name):
            break
        if not _evaluate(inferred, known):
            break
        inferred = _infer(inferred)
        shapes = _shapes(inferred.graph)
    return inferred, shapes


def _infer(model: onnx.ModelProto) -> onnx.ModelProto:
    inferred: onnx.ModelProto = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return inferred


def _shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for group in (graph.input, graph.value_info, graph.output):
        for value in group:
            kind = value.type.tensor_type
            if kind.HasField("shape"):
                shapes[value.name] = tuple([dim.dim_value for dim in kind.shape.dim])
    return shapes


def _evaluate(model: onnx.ModelProto, known: Mapping[str, tuple[int, ...]]) -> bool:
    """Turns ops that compute sizes from known ones into constants, in place.

    Returns:
            Whether there were any besides constants.
    """
    graph = model.graph
    ready = {t.name: t for t in graph.initializer if 0 < _elements(t.dims) <= _MOST_ELEMENTS}
    reached = {name for name, t in ready.items() if _has_values(t)}
    evaluated: list[onnx.NodeProto] = []
    measured: list[onnx.TensorProto] = []
    for node in graph.node:
        if node.op_type == "Shape" and node.input[0] in known:
            measured.append(_shape_tensor(node, known[node.input[0]]))
        elif not _is_small_arithmetic(node, reached, known):
            continue
        else:
            evaluated.append(node)
        reached.update(node.output)
    if not measured and all(node.op_type == "Constant" for node in evaluated):
        return False
    constants = [t for name, t in ready.items() if name in reached]
    results = _run(model, evaluated, [*constants, *measured])
    if results is None:
        return False
    gone = {tensor.name for tensor in (*measured, *results)}
    left = [node for node in graph.node if not gone.intersection(node.output)]
    del graph.node[:]
    graph.node.extend(left)
    graph.initializer.extend([*measured, *results])
    return True


def _is_small_arithmetic(
    node: onnx.NodeProto, reached: set[str], known: Mapping[str, tuple[int, ...]]
) -> bool:
    if node.op_type not in _ARITHMETIC or node.domain not in ("", "ai.onnx"):
        return False
    if not all(name in reached for name in node.input if name):
        return False
    return all(name in known and _elements(known[name]) <= _MOST_ELEMENTS for name in node.output)


def _run(
    model: onnx.ModelProto, nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto]
) -> list[onnx.TensorProto] | None:
    """Return the results of some ops as constants; None if they can't be computed."""
    from onnx.reference import ReferenceEvaluator  # slow to import, and not needed for candidates

    names = [name for node in nodes for name in node.output]
    outputs = [onnx.ValueInfoProto(name=name) for name in names]
    graph = onnx.helper.make_graph(nodes, "sizes", [], outputs, constants)
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    try:
        values = ReferenceEvaluator(graph, opsets=opsets).run(names, {})
        return [
            numpy_helper.from_array(np.asarray(value), name)
            for name, value in zip(names, values, strict=True)
        ]
    except Exception:  # anything that an op raises: its shapes stay unknown
        return None


def _shape_tensor(node: onnx.NodeProto, shape: tuple[int, ...]) -> onnx.TensorProto:
    ends = {attribute.name: attribute.i for attribute in node.attribute}
    part = shape[ends.get("start", 0) : ends.get("end", len(shape))]
    return numpy_helper.from_array(np.array(part, np.int64), node.output[0])


def _has_values(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location != onnx.TensorProto.EXTERNAL


def _elements(dims: Sequence[int]) -> int:
    return math.prod(dims)
