"""Limits on constant folding.

A few bytes of a model can expand to terabytes, and some nodes make it grow without bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op
from qdqtune.resources import current_limits

# In elements. Constants stored in compact form are expanded up to the first size, and up to the
# second if they are weights (the largest layer of VGG has 103 million).
_MOST_ELEMENTS = 1 << 16
_MOST_WEIGHT_ELEMENTS = 1 << 27
_MOST_MULTIPLICATIONS = 1 << 28
_MOST_DIMS = 64

# In bytes: all results together, and all reads and writes for them. The fixed sizes are
# for a model without constants; each byte of constants may be produced and read a few times more.
_MOST_MADE = 1 << 30
_TIMES_MADE = 8
_MOST_WORK = 1 << 34
_TIMES_READ = 64
# Ops that Python computes in a loop over their indices, and the cost of one element, in bytes that
# could be moved in the same time.
_LOOPS = frozenset({"GatherND", "ScatterElements", "ScatterND"})
_LOOP_COST = 1 << 12
# In a model's `meta`: its account. In a value's: the names of what onnxscript computed it from.
_ACCOUNT = "qdqtune.fold_limits"
_FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
_LARGEST_ITEM_BYTES = 16

# Ops whose result has as many elements as their inputs together, or fewer.
_NEVER_GROW = frozenset(
    {
        "Abs", "ArgMax", "ArgMin", "Cast", "CastLike", "Ceil", "Concat", "Cos", "CumSum", "Erf",
        "Exp", "Flatten", "Floor", "GatherElements", "Identity", "Log", "Neg", "NonZero", "Not",
        "Reciprocal", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
        "ReduceSumSquare", "Relu", "Reshape", "Round", "ScatterElements", "ScatterND", "Shape",
        "Sigmoid", "Sign", "Sin", "Size", "Slice", "Sqrt", "Squeeze", "Tanh", "Transpose", "Trilu",
        "Unsqueeze",
    }
)  # fmt: skip
_BROADCASTING = frozenset(
    {
        "Add", "And", "Clip", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
        "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor",
    }
)  # fmt: skip
_MOVES = ("Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")

# Limits on the characters of symbolic dims that a value depends on, and on the outputs of one node.
_MOST_SYMBOLS = 1 << 16
_MOST_PARTS = 1 << 12
# onnxscript does not treat larger constants as shapes.
_LARGEST_SHAPE = 10
_JOINING = ("Add", "Concat")
_KEEPING = ("Abs", "Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")


class FoldLimits:
    """Decides which standard ops on constants are folded, and tracks the total cost.

    Args:
        given: The constants of the original model, by name.
    """

    def __init__(self, given: Mapping[str, ir.TensorProtocol] | None = None) -> None:
        self._given = {name: tensor.size for name, tensor in (given or {}).items()}
        given_bytes = sum(tensor.nbytes for tensor in (given or {}).values())
        memory = current_limits().memory_bytes
        most_made = _MOST_MADE if memory is None else min(_MOST_MADE, memory // 4)
        self._left_to_make = most_made + _TIMES_MADE * given_bytes
        self._left_to_do = _MOST_WORK + _TIMES_READ * given_bytes

    @classmethod
    def of(cls, model: ir.Model) -> FoldLimits:
        """Return the limits of a model, which carry over when it is folded again."""
        if _ACCOUNT not in model.meta:
            tensors = {
                name: value.const_value
                for name, value in model.graph.initializers.items()
                if value.const_value is not None
            }
            model.meta[_ACCOUNT] = cls(tensors)
        account: FoldLimits = model.meta[_ACCOUNT]
        return account

    def allow(self, node: ir.Node) -> bool:
        """Whether an op is worth folding and stays within the limits."""
        inputs = [value for value in node.inputs if value is not None]
        constants = [value.const_value for value in inputs if value.const_value is not None]
        elements = _most_elements(node.op_type, constants)
        dtype = _result_dtype(node, constants)
        # onnx_ir can't determine the size of computed strings.
        if elements is None or dtype == ir.DataType.STRING:
            return False
        distinct = {id(constant): constant for constant in constants}.values()
        growth = elements - self._given_elements(inputs)
        limit = _MOST_WEIGHT_ELEMENTS if _becomes_weight(node.outputs[0]) else _MOST_ELEMENTS
        known = dtype is not None and dtype != ir.DataType.UNDEFINED
        made = elements * (math.ceil(dtype.itemsize) if dtype and known else _LARGEST_ITEM_BYTES)
        work = made + sum(constant.nbytes for constant in distinct)
        work += _extra_work(node.op_type, constants)
        if growth > limit or made > self._left_to_make or work > self._left_to_do:
            return False
        self._left_to_make -= made
        self._left_to_do -= work
        return True

    def _given_elements(self, inputs: Sequence[ir.Value]) -> int:
        """Return the number of elements in the file behind some constants, each counted once."""
        known: dict[str, int] = {}
        for value in inputs:
            name, constant = value.name or "", value.const_value
            made_from = value.meta.get(_FOLDED_FROM)
            if name not in self._given and made_from is not None:
                known.update({each: self._given[each] for each in made_from if each in self._given})
            elif constant is not None:
                known[name] = constant.size
        return sum(known.values())


def _result_dtype(node: ir.Node, constants: Sequence[ir.TensorProtocol]) -> ir.DataType | None:
    """Return the type of an op's result, if it can be determined."""
    dtype = node.outputs[0].dtype
    if dtype is None and node.op_type == "ConstantOfShape":
        value = node.attributes.get("value")
        dtype = value.as_tensor().dtype if value is not None else ir.DataType.FLOAT
    elif dtype is None and constants:
        dtype = constants[0].dtype
    return dtype


def _extra_work(op_type: str, constants: Sequence[ir.TensorProtocol]) -> int:
    """Return the cost besides reading and writing, in bytes that could be moved in that time."""
    if op_type in _LOOPS:
        return _LOOP_COST * constants[1].size
    if op_type == "MatMul":
        rows = constants[0].size // max(1, tuple(constants[0].shape.numpy())[-1])
        return rows * constants[1].size
    return 0


def _most_elements(op_type: str, constants: Sequence[ir.TensorProtocol]) -> int | None:
    """Return an upper bound on the size of a result; None if unbounded, or if never folded."""
    shapes = [tuple(constant.shape.numpy()) for constant in constants]
    sizes = [math.prod(shape) for shape in shapes]
    if op_type in _NEVER_GROW:
        return _unexpanded(op_type, shapes, sizes)
    if op_type in _BROADCASTING:
        try:
            return math.prod(np.broadcast_shapes(*shapes))
        except ValueError:
            return None
    if op_type == "ConstantOfShape" and len(constants) == 1:
        return _product(constants[0])
    if op_type == "Range" and len(constants) == 3:
        return _steps(constants)
    if len(constants) != 2:
        return None
    if op_type in ("Gather", "GatherND"):
        return sizes[0] * sizes[1]
    if op_type in ("Expand", "Tile"):
        factor = _product(constants[1])
        return None if factor is None else sizes[0] * factor
    if op_type == "MatMul" and all(shapes) and all(sizes):
        rows, columns = sizes[0] // shapes[0][-1], sizes[1] // shapes[1][-2:][0]
        work = rows * columns * shapes[0][-1]
        return rows * columns if work <= _MOST_MULTIPLICATIONS else None
    return None


def _unexpanded(op_type: str, shapes: Sequence[tuple[int, ...]], sizes: Sequence[int]) -> int:
    """Return an upper bound on the size of a result that is no larger than the inputs."""
    if op_type == "Concat":
        return sum(sizes)
    if op_type == "NonZero":  # the indices of each element, in every dim
        return sum(len(shape) * size for shape, size in zip(shapes, sizes, strict=True))
    return max(sizes, default=0)


def _product(dims: ir.TensorProtocol) -> int | None:
    numbers = _numbers(dims)
    return None if numbers is None or min(numbers, default=0) < 0 else math.prod(map(int, numbers))


def _steps(ends: Sequence[ir.TensorProtocol]) -> int | None:
    numbers = [_numbers(end) for end in ends]
    if any(number is None or len(number) != 1 for number in numbers):
        return None
    start, limit, delta = (number[0] for number in numbers if number is not None)
    steps = (limit - start) / delta if delta else math.inf
    return math.ceil(max(steps, 0.0)) if math.isfinite(steps) else None


def _numbers(tensor: ir.TensorProtocol) -> list[float] | None:
    """Return the numbers of a small tensor; None for anything else."""
    if tensor.size > _MOST_DIMS or tensor.dtype == ir.DataType.STRING:
        return None
    values = tensor.numpy()
    return values.reshape(-1).tolist() if values.dtype.kind in "iuf" else None


def _becomes_weight(value: ir.Value) -> bool:
    """Whether a weighted op reads the value as its weight, directly or through passthrough ops."""
    pending, seen = [value], {value}
    while pending:
        for user, position in pending.pop().uses():
            if position == 1 and is_op(user, *WEIGHTED_OPS):
                return True
            if position == 0 and is_op(user, *_MOVES) and user.outputs[0] not in seen:
                seen.add(user.outputs[0])
                pending.append(user.outputs[0])
    return False


def runaway_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the nodes that must be hidden from onnxscript, including those in bodies."""
    symbols: dict[ir.Value, int] = {}
    found = []
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if is_op(node, "SplitToSequence") and _parts(node) > _MOST_PARTS:
            found.append(node)
            continue
        count = _symbols(node, symbols)
        if count > _MOST_SYMBOLS:
            found.append(node)  # a hidden node adds nothing later
        elif count:
            symbols[node.outputs[0]] = count
    return found


def _symbols(node: ir.Node, known: dict[ir.Value, int]) -> int:
    """Return the size of a node's result as a symbolic shape, if it is one."""
    if is_op(node, "Shape"):
        value = node.inputs[0] if node.inputs else None
        shape = value.shape if value is not None and value.shape is not None else ()
        return sum(len(str(dim)) for dim in shape)
    counts = [_symbols_of(value, known) for value in node.inputs]
    if is_op(node, *_JOINING):
        return sum(counts)
    if is_op(node, *_KEEPING) and counts:
        return counts[0]
    if is_op(node, "Gather") and len(counts) == 2 and counts[0] and node.inputs[1] is not None:
        indices = node.inputs[1].const_value
        return counts[0] * indices.size if indices is not None else 0
    return 0


def _symbols_of(value: ir.Value | None, known: dict[ir.Value, int]) -> int:
    if value is None:
        return 0
    constant = value.const_value
    if constant is not None:
        return constant.size if constant.size <= _LARGEST_SHAPE else 0
    return known.get(value, 0)


def _parts(node: ir.Node) -> int:
    """Return the number of tensors in a sequence, as far as it is known."""
    data, split = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    if data is None or split is None:
        return 0
    if split.shape is not None and len(split.shape) == 1:
        count = split.shape[0]
        return count if isinstance(count, int) else 0
    if split.const_value is None or split.const_value.size != 1:
        return 0
    dims = [dim for dim in data.shape or () if isinstance(dim, int)]
    return max(dims, default=0) // max(1, int(split.const_value.numpy().item()))
