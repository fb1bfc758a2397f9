"""Which inputs and outputs may change their float type, and which nodes stay float32.

An op's schema declares a type variable for each of its inputs and outputs and the types that it may
take, separately for each opset: Conv takes bfloat16 from opset 22 on, Resize takes any image but
only float32 scales, Range takes no half precision at all. None of that is listed here. This module
lists only what schemas can't express: which ops accept any type, which choose the type of their
output, and which inputs are better left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain

import onnx
import onnx_ir as ir

from qdqtune.graph._op_classes import (
    DEQUANTIZE,
    QUANTIZE,
    WEIGHTED_OPS,
    dtype_of,
    has_body,
    is_op,
    is_standard,
    uses_behind,
)
from qdqtune.graph._weights import (
    Magnitudes,
    constant_behind,
    constant_of,
    magnitudes,
    value_behind,
)
from qdqtune.records._errors import UsageError
from qdqtune.records._precision import Precision

DTYPE = {
    Precision.FP32: ir.DataType.FLOAT,
    Precision.FP16: ir.DataType.FLOAT16,
    Precision.BF16: ir.DataType.BFLOAT16,
}

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

# The region of interest may have half precision where the scales beside it may not; and
# `stash_type` determines the type of LayerNormalization's statistics.
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
    allowed = _allowed_types(node.op_type, change.opset) if is_standard(node) else None
    if allowed is None:
        return Slots(fixed=tuple(inputs))
    taken, given = allowed
    movable = [i for i in inputs if _allows(taken, i, change.target)]
    movable = [i for i in movable if i not in _FIXED_INPUTS.get(node.op_type, ())]
    fixed = _FIXED_OUTPUTS.get(node.op_type, ())
    settled = [i for i in outputs if i not in fixed]
    changing = [i for i in settled if _allows(given, i, change.target)]
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


_Types = tuple[Collection[str], ...]


@cache
def _allowed_types(op_type: str, opset: int) -> tuple[_Types, _Types] | None:
    """Return the types that each input and output of a standard op may have; None if unknown."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}

    def types(formals: Sequence[onnx.defs.OpSchema.FormalParameter]) -> _Types:
        return tuple(frozenset(allowed.get(each.type_str, [each.type_str])) for each in formals)

    return types(schema.inputs), types(schema.outputs)


def _allows(types: _Types, position: int, dtype: ir.DataType) -> bool:
    """Whether a position may have a type; the last one may be repeated."""
    return bool(types) and f"tensor({dtype.name.lower()})" in types[min(position, len(types) - 1)]


# Ops that may lie between a sum of squares, or an epsilon, and the division by it.
_TOWARDS_DIVISION = ("Abs", "Clip", "Expand", "Log", "Max", "Pow", "Reciprocal", "Sqrt")
# Ops for which a number beyond the range means "the largest value": masks and bounds.
_MASKING = (
    "Add", "Clip", "Concat", "Equal", "Expand", "Gather", "Greater", "GreaterOrEqual", "Identity",
    "Less", "LessOrEqual", "Max", "Min", "Pad", "Reshape", "ScatterElements", "ScatterND", "Slice",
    "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where",
)  # fmt: skip

#: Ops whose result is a sum or product of so many or such large terms that half precision is
#: insufficient for any input.
SENSITIVE_OPS = frozenset(
    {"CumSum", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceProd", "ReduceSumSquare"}
)
_SUMS = ("GlobalAveragePool", "ReduceMean", "ReduceSum")
# Ops where integers computed in floats must be exact.
_EXACT = ("Ceil", "Cos", "Floor", "Mod", "Round", "Sin")
_LOOK_UP = ("Gather", "GatherElements", "GatherND")
_INTEGER_SUMS = ("ConvInteger", "MatMulInteger")
Named = Iterator[tuple[ir.Node, str]]


def is_square(node: ir.Node) -> bool:
    """Whether the node raises its input to a power greater than 1."""
    if is_op(node, "Mul"):
        return node.inputs[0] is node.inputs[1]
    if not is_op(node, "Pow"):
        return False
    exponent = constant_behind(node.inputs[1])
    return exponent is None or bool((exponent.numpy() > 1).all())


def readers(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the readers of the node's results, looking through Casts."""
    for output in node.outputs:
        yield from (user for user, _ in uses_behind(output, "Cast") if not is_op(user, "Cast"))


def towards_division(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the ops from a node to the division or product that consumes its result."""
    pending, seen = [node], {node}
    while pending:
        for reader in readers(pending.pop()):
            if reader in seen:
                continue
            seen.add(reader)
            by_constant = any(constant_behind(value) is not None for value in reader.inputs)
            if is_op(reader, *_TOWARDS_DIVISION) or (
                by_constant and is_op(reader, "Add", "Sub", "Mul", "Div")
            ):
                yield reader
                pending.append(reader)
            elif is_op(reader, "Mul", "Div"):
                yield reader


def is_masking(node: ir.Node, numbers: Magnitudes) -> bool:
    """Whether a constant beyond the range can be saturated because it is a mask or a bound.

    A product may turn a mask of zeros and ones into zeros and "minus infinity".
    """
    if is_op(node, "Mul"):
        return math.isclose(numbers.most, -numbers.lowest)
    return is_op(node, *_MASKING)


def needs_digits(node: ir.Node, position: int, numbers: Magnitudes) -> bool:
    """Whether losing the digits of a small constant matters; not if larger numbers are added."""
    if is_op(node, *WEIGHTED_OPS):
        return position < 2
    if is_op(node, "Mul", "Div"):
        return True
    return numbers.size == 1 and is_op(node, "Add", "Clip", "Max", "Min", "Pow", "Sub", "Where")


def gives_integers(node: ir.Node) -> bool:
    """Whether the node converts floats to integers."""
    dtype = dtype_of(node.outputs[0])
    return is_op(node, "Cast") and dtype is not None and dtype.is_integer()


class Keeper:
    """Finds the nodes of a model that keep their type.

    Args:
        model: The model, with named nodes and inferred types.
        change: The types to replace.
        keep_nodes: Names of nodes to keep in any case.
        keep_ops: Op types to keep in any case.

    Attributes:
        model: As passed.
        change: As passed.
        slots: Inputs and outputs that may change, by node.
        saturating: Constants whose values beyond the range are masks or bounds.

    Raises:
        UsageError: If a node does not exist.
    """

    def __init__(
        self,
        model: ir.Model,
        change: Change,
        keep_nodes: Collection[str],
        keep_ops: Collection[str],
    ) -> None:
        self.model = model
        self.change = change
        self._nodes = [node for node in model.graph if not is_op(node, "Constant")]
        self._keep_nodes = frozenset(keep_nodes)
        self._keep_ops = frozenset(keep_ops)
        self._known: dict[ir.Value, Magnitudes] = {}
        self.saturating: set[ir.Value] = set()
        self.slots = {node: slots(node, change) for node in self._nodes}
        _check_names(self._keep_nodes, [node.name or "" for node in model.graph])

    def kept(self) -> dict[str, str]:
        """Return the kept nodes: name to reason."""
        rules: list[Callable[[], Named]] = [self._unfit]
        if self.change.target != ir.DataType.FLOAT:
            rules += [self._scales, self._sums_of_squares, self._constants]
            rules += [self._integer_sums, self._exact_numbers]
        reasons: dict[str, str] = {}
        for node, reason in chain.from_iterable(rule() for rule in rules):
            if node in self.slots and self.slots[node].concerned:
                reasons.setdefault(node.name or "", reason)
        return reasons

    def _unfit(self) -> Named:
        return ((node, why) for node in self._nodes if (why := self._why_unfit(node)))

    def _why_unfit(self, node: ir.Node) -> str:
        """Return why a node can't change, or was requested to stay; empty if neither."""
        values = [value for value in node.inputs if value is not None]
        values += [value for value in node.outputs if value.uses() or value.is_graph_output()]
        if has_body(node):
            return "control flow"
        if node.op_identifier() in self.model.functions:
            return "a function of the model"
        if not is_standard(node):
            return f"an op of {node.domain}"
        if any(value.name and not _is_tensor(value) for value in values):
            return "its types are not known, or not those of tensors"
        if node.name in self._keep_nodes:
            return "asked for by name"
        if is_op(node, *self._keep_ops):
            return f"{node.op_type} is sensitive to rounding, or was asked for"
        if not self.slots[node].whole:
            name = self.change.target.name.lower()
            return f"{node.op_type} has no {name} form in opset {self.change.opset}"
        return ""

    def _scales(self) -> Named:
        """Yield Q/DQ whose scale would not survive."""
        target = self.change.target
        for node in self._nodes:
            if not is_op(node, QUANTIZE, DEQUANTIZE):
                continue
            tensor = constant_of(node.inputs[1])
            quantized = node.outputs[0] if is_op(node, QUANTIZE) else node.inputs[0]
            dtype = dtype_of(quantized) if quantized is not None else None
            if tensor is None:
                yield node, "its scale is not a constant"
            elif dtype == ir.DataType.INT32:
                yield node, "an int32 bias: its scale is a product of two"
            elif node.inputs[1] is not None and self.change.concerns(node.inputs[1]):
                scale = self._magnitudes(node.inputs[1], tensor)
                if scale.least < float(target.tiny):
                    yield node, f"its scale is too small for {target.name.lower()}"
                elif scale.most * _most(dtype) > float(target.max):
                    yield node, f"its range is too large for {target.name.lower()}"

    def _sums_of_squares(self) -> Named:
        reason = "a sum of squares, or what is divided by it"
        for node in self._nodes:
            if not is_op(node, *_SUMS):
                continue
            source = value_behind(node.inputs[0], "Cast")
            square = source.producer() if source is not None else None
            if square is not None and is_square(square):
                yield square, reason
                yield node, reason
                for follower in towards_division(node):
                    yield follower, reason

    def _constants(self) -> Named:
        name = self.change.target.name.lower()
        for node in self._nodes:
            if is_op(node, QUANTIZE, DEQUANTIZE):
                continue
            for position, value in enumerate(node.inputs):
                tensor = constant_behind(value)
                if value is None or tensor is None or not self.change.concerns(value):
                    continue
                if takes_any_type(node, position):
                    continue
                numbers = self._magnitudes(value, tensor)
                if numbers.most > float(self.change.target.max):
                    if is_masking(node, numbers):
                        self.saturating.add(value)
                    else:
                        yield node, f"a constant too large for {name}"
                elif 0.0 < numbers.most < float(self.change.target.tiny) and needs_digits(
                    node, position, numbers
                ):
                    yield node, f"a constant too small for {name}"
                    if numbers.size == 1:
                        for follower in towards_division(node):
                            yield follower, f"a constant too small for {name}"

    def _integer_sums(self) -> Named:
        """Yield integer products and the rescaling after them: sums far beyond float16's range."""
        reason = "rescales a sum of integers"
        for node in self._nodes:
            source = node.inputs[0].producer() if node.inputs and node.inputs[0] else None
            if is_op(node, "Cast") and is_op(source, *_INTEGER_SUMS):
                for reader in readers(node):
                    yield reader, reason
                    for value in reader.inputs:
                        other = value.producer() if value is not None else None
                        if is_op(other, "Mul") and other is not None:
                            yield other, reason

    def _exact_numbers(self) -> Named:
        """Yield float arithmetic on integers and constants whose result must be exact."""
        static = self._static_values()
        pending: list[ir.Value] = []
        for node in self._nodes:
            found = self.slots[node]
            reading = [value for value in node.inputs if value in static]
            if is_op(node, *_EXACT) and reading and self.change.concerns(node.inputs[0]):
                yield node, "exact numbers, computed from integers"
                pending += reading
            elif gives_integers(node):
                pending += reading
            elif is_standard(node):
                pending += [value for i in found.fixed if (value := node.inputs[i]) in static]
        seen: set[ir.Value] = set()
        while pending:
            value = pending.pop()
            producer = value.producer()
            if value in seen or producer is None or not self.change.concerns(value):
                continue
            seen.add(value)
            if not is_op(producer, "Cast", "Constant"):
                yield producer, "exact numbers, computed from integers"
            pending += [value for value in producer.inputs if value in static]

    def _static_values(self) -> set[ir.Value]:
        """Return float values that depend on no float input of the model and no weight table."""
        static: set[ir.Value] = set()
        for node in self._nodes:
            read = [value for value in node.inputs if self._is_float(value)]
            table = is_op(node, *_LOOK_UP) and constant_of(node.inputs[0]) is not None
            if not is_standard(node) or table or node.op_type in WEIGHTED_OPS - {"MatMul"}:
                continue
            if all(value in static or constant_of(value) is not None for value in read):
                static.update(value for value in node.outputs if self._is_float(value))
        return static

    def _is_float(self, value: ir.Value | None) -> bool:
        if value is None or not value.name:
            return False
        dtype = dtype_of(value)
        return dtype is None or dtype.is_floating_point()

    def _magnitudes(self, value: ir.Value, tensor: ir.TensorProtocol) -> Magnitudes:
        if value not in self._known:
            self._known[value] = magnitudes(tensor)
        return self._known[value]


def _check_names(wanted: Collection[str], present: Iterable[str]) -> None:
    missing = sorted(set(wanted).difference(present))
    if missing:
        raise UsageError(
            f"The model has no node {', '.join(map(repr, missing))}.",
            "Names are those in the file; nodes without one are called after op and output.",
        )


def _most(dtype: ir.DataType | None) -> float:
    """Return the largest magnitude that a quantized type can hold; 1 if it is unknown."""
    is_number = dtype is not None and (dtype.is_integer() or dtype.is_floating_point())
    return max(float(dtype.max), -float(dtype.min)) if dtype is not None and is_number else 1.0


def _is_tensor(value: ir.Value) -> bool:
    return dtype_of(value) is not None and (
        value.type is None or isinstance(value.type, ir.TensorType)
    )
