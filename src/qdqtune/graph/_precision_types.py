"""Inputs and outputs of a node that may change their float type, derived from the ONNX schemas.

An op's schema declares a type variable for each of its inputs and outputs and the types that it may
take, separately for each opset: Conv takes bfloat16 from opset 22 on, Resize takes any image but
only float32 scales, Range takes no half precision at all. None of that is listed here. Listed is
only what schemas can't express: which ops accept any type, which choose the type of their output,
and which inputs are better left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import onnx
import onnx_ir as ir

from qdqtune.graph._op_classes import dtype_of, is_op, is_standard
from qdqtune.records._precision import Precision

DTYPE = {
    Precision.FP32: ir.DataType.FLOAT,
    Precision.FP16: ir.DataType.FLOAT16,
    Precision.BF16: ir.DataType.BFLOAT16,
}
HALF_TYPES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

# The attribute that sets the type of an op's output.
_TYPE_ATTRIBUTE = {
    "BlackmanWindow": "output_datatype",
    "Cast": "to",
    "EyeLike": "dtype",
    "HammingWindow": "output_datatype",
    "HannWindow": "output_datatype",
    "MelWeightMatrix": "output_datatype",
    "RandomNormal": "dtype",
    "RandomNormalLike": "dtype",
    "RandomUniform": "dtype",
    "RandomUniformLike": "dtype",
}
# Without the attribute their output has the type of their input.
_LIKE_OPS = ("EyeLike", "RandomNormalLike", "RandomUniformLike")

# The region of interest may be of half precision where the scales beside it may not; and
# `stash_type` decides what LayerNormalization's statistics are.
_FIXED_INPUTS = {"Resize": (1,)}
_FIXED_OUTPUTS = {"LayerNormalization": (1, 2)}


@dataclass(frozen=True)
class Change:
    """A replacement of float types by another one.

    Attributes:
        sources: The types to replace.
        target: The type that replaces them.
        opset: The model's opset.
    """

    sources: frozenset[ir.DataType]
    target: ir.DataType
    opset: int

    def concerns(self, value: ir.Value | None) -> bool:
        """Whether the value has a type that is to be replaced."""
        return value is not None and bool(value.name) and dtype_of(value) in self.sources


@dataclass(frozen=True)
class Slots:
    """Positions of a node's inputs and outputs whose type is to be replaced.

    Attributes:
        inputs: Inputs that can change.
        outputs: Outputs that can change.
        fixed: Inputs that can't.
        whole: Whether the op exists in the new type: all outputs and the first input can change.
    """

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    fixed: tuple[int, ...] = ()
    whole: bool = False

    @cached_property
    def input_set(self) -> frozenset[int]:
        """The inputs that can change, as a set for fast lookup in nodes with many inputs."""
        return frozenset(self.inputs)

    @property
    def concerned(self) -> bool:
        """Whether the node has an input or output whose type is to be replaced."""
        return bool(self.inputs or self.outputs or self.fixed or not self.whole)


def slots(node: ir.Node, change: Change) -> Slots:
    """Look up the inputs and outputs of a standard node that may change."""
    inputs = [i for i, value in enumerate(node.inputs) if change.concerns(value)]
    outputs = [i for i, value in enumerate(node.outputs) if change.concerns(value)]
    if not inputs and not outputs:
        return Slots(whole=True)
    schema = schema_of(node.op_type, change.opset) if is_standard(node) else None
    if schema is None:
        return Slots(fixed=tuple(inputs))
    last = len(schema.inputs) - 1  # the one that may be repeated
    takes = {
        i: _allows(schema, schema.inputs, i, change.target) for i in {min(i, last) for i in inputs}
    }
    movable = [i for i in inputs if takes[min(i, last)]]
    movable = [i for i in movable if i not in _FIXED_INPUTS.get(node.op_type, ())]
    fixed = _FIXED_OUTPUTS.get(node.op_type, ())
    settled = [i for i in outputs if i not in fixed]
    changing = [i for i in settled if _allows(schema, schema.outputs, i, change.target)]
    whole = bool(movable or changing) and changing == settled and (0 not in inputs or 0 in movable)
    left = tuple(sorted(set(inputs).difference(movable)))
    return Slots(tuple(movable), tuple(changing), left, whole)


def takes_any_type(node: ir.Node, position: int) -> bool:
    """Whether the node works the same for any float type of this input."""
    if is_op(node, "Cast", "Shape", "Size"):
        return True
    if is_op(node, "CastLike"):
        return position == 0
    return is_op(node, *_LIKE_OPS) and chooses_type(node)


def chooses_type(node: ir.Node) -> bool:
    """Whether the node chooses the type of its output, independent of its inputs."""
    if is_op(node, "ConstantOfShape"):
        return True
    if not is_op(node, *_TYPE_ATTRIBUTE):
        return False
    return not is_op(node, *_LIKE_OPS) or _TYPE_ATTRIBUTE[node.op_type] in node.attributes


def choose_type(node: ir.Node, dtype: ir.DataType) -> None:
    """Set the output type of such a node; the caller casts the value of a ConstantOfShape."""
    name = _TYPE_ATTRIBUTE[node.op_type]
    node.attributes[name] = ir.AttrInt64(name, dtype.value)


@cache
def schema_of(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return the schema of a standard op at an opset; None if there is no such op."""
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


def _allows(
    schema: onnx.defs.OpSchema,
    formals: Sequence[onnx.defs.OpSchema.FormalParameter],
    position: int,
    dtype: ir.DataType,
) -> bool:
    if not formals:
        return False
    formal, wanted = formals[min(position, len(formals) - 1)], f"tensor({dtype.name.lower()})"
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    return wanted in allowed.get(formal.type_str, (formal.type_str,))
