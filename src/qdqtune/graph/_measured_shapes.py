"""The shapes that a model is measured at.

Complete, and such that it fits into memory and terminates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from qdqtune.graph._dims import Dim, dims_of, evaluate, symbols_in
from qdqtune.graph._input_shapes import (
    Dims,
    Inputs,
    bind_dims,
    input_dims,
    model_inputs,
    resolve_shapes,
    symbols_of,
)
from qdqtune.graph._op_classes import is_op
from qdqtune.graph._shapes import all_shapes, set_input_dims
from qdqtune.records._errors import ModelError, UsageError
from qdqtune.records._inputs import InputRequest, shape_text
from qdqtune.records._untrusted_files import size_text
from qdqtune.resources._limits import current_limits

# The cheapest body takes an engine about a microsecond.
_MOST_TRIPS = 1 << 26


def check_ends(model: ir.Model) -> None:
    """Make sure that no Loop is endless.

    Only certain cases count: a Loop whose condition depends on data may end at any time.

    Args:
        model: The model.

    Raises:
        ModelError: If one is.
    """
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if is_op(node, "Loop") and _trips(node) > _MOST_TRIPS and _goes_on(node):
            trips = _trips(node)
            times = f"{int(trips):,} times" if math.isfinite(trips) else "for ever"
            raise ModelError(
                f"The Loop {node.name!r} goes around {times}: nothing in it ends it before.",
                "Check how the model was exported.",
            )


def _trips(node: ir.Node) -> float:
    """Return the maximum trip count; 0 if it is computed."""
    count = node.inputs[0] if node.inputs else None
    if count is None:
        return math.inf
    tensor = ir.convenience.get_const_tensor(count)
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else 0.0


def _goes_on(node: ir.Node) -> bool:
    """Whether the condition is initially true and passed on unchanged."""
    first = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = ir.convenience.get_const_tensor(first) if first is not None else None
    if first is not None and (tensor is None or tensor.size != 1 or not tensor.numpy().item()):
        return False
    body = node.attributes["body"].as_graph()
    value: ir.Value | None = body.outputs[0]
    while value is not None and (producer := value.producer()) is not None:
        if is_op(producer, "Constant"):
            constant = ir.convenience.get_const_tensor(value)
            return constant is not None and constant.size == 1 and bool(constant.numpy().item())
        if not is_op(producer, "Identity", "Cast"):
            return False
        value = producer.inputs[0]
    if value is None or value.is_initializer():
        tensor = value.const_value if value is not None else None
        return tensor is not None and bool(tensor.numpy().all())
    return len(body.inputs) > 1 and value is body.inputs[1]


@dataclass(frozen=True)
class TensorSize:
    """A tensor that a model computes or reads as input.

    Attributes:
        name: Name of the tensor.
        node: The node that computes it: name and op; empty for an input.
        shape: Its dims.
        nbytes: Its size in bytes.
    """

    name: str
    node: str
    shape: tuple[int, ...]
    nbytes: int


def check_runs(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Make sure that a model fits into memory and terminates, as far as that can be determined.

    Args:
        model: The model; it is not changed.
        shapes: The shape of every input that must be fed.

    Raises:
        ModelError: If it doesn't.
    """
    check_ends(model)
    check_fits(model, shapes)


def check_fits(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Make sure that no tensor of a model exceeds the memory limit of a process.

    Args:
        model: The model; it is not changed.
        shapes: The shape of every input that must be fed.

    Raises:
        ModelError: If one does.
    """
    limit = current_limits().memory_bytes
    if limit is None:
        return
    fed = [
        _size(value, tuple(shapes[value.name or ""]))
        for value in model_inputs(model)
        if value.name in shapes
    ]
    before = all_shapes(model)
    try:
        if not _has_all_shapes(model):
            set_input_dims(model, shapes)
        sizes = [*fed, *_computed(model)]
    finally:
        for value, shape in before:
            value.shape = shape
    large = next((size for size in sizes if size.nbytes > limit), None)
    if large is not None:
        origin = f", which {large.node} computes," if large.node else ""
        raise ModelError(
            f"The tensor {large.name!r}{origin} has the shape {shape_text(large.shape)} and takes "
            f"{size_text(large.nbytes)}: more than the {size_text(limit)} of memory that a process "
            "may have.",
            "Check the model and its input shapes (--shapes), or allow more: --max_memory.",
        )


def _has_all_shapes(model: ir.Model) -> bool:
    return all(
        shape is not None and all(isinstance(dim, int) for dim in shape)
        for value, shape in all_shapes(model)
        if value.name
    )


def _computed(model: ir.Model) -> list[TensorSize]:
    """Return every tensor whose shape is known, including bodies."""
    found = []
    for value, _ in all_shapes(model):
        dims = dims_of(value)
        sizes = tuple(dim for dim in dims or () if isinstance(dim, int))
        if dims is not None and len(sizes) == len(dims):
            found.append(_size(value, sizes))
    return found


def _size(value: ir.Value, shape: tuple[int, ...]) -> TensorSize:
    dtype = value.dtype
    sized = dtype is not None and dtype not in (ir.DataType.STRING, ir.DataType.UNDEFINED)
    bits = dtype.bitwidth if dtype is not None and sized else 8
    node = value.producer()
    name = f"the node {node.name!r} ({node.op_type})" if node is not None else ""
    return TensorSize(value.name or "", name, shape, math.prod(shape) * bits // 8)


_CHANNELS, _PIXELS, _FRAMES, _TOKENS = 3, 224, 16, 128

# Common names of dims, with a plausible size for each.
_BY_NAME = (
    (re.compile(r"chan|^c$", re.IGNORECASE), _CHANNELS),
    (re.compile(r"height|width|^[hw]$|pixel|image|img", re.IGNORECASE), _PIXELS),
    (re.compile(r"seq|len|token|time|step|^[lst]$", re.IGNORECASE), _TOKENS),
    (re.compile(r"batch", re.IGNORECASE), 1),
)
_BY_RANK = {
    4: (1, _CHANNELS, _PIXELS, _PIXELS),
    5: (1, _CHANNELS, _FRAMES, _PIXELS, _PIXELS),
}

# Ops that preserve an input's layout, before the first op with weights.
_SAME_LAYOUT = (
    "Add", "BatchNormalization", "Cast", "Clip", "DequantizeLinear", "Div", "Identity", "Mul",
    "QuantizeLinear", "Sub",
)  # fmt: skip


def measured_shapes(
    model: ir.Model, request: InputRequest, *, takes_data: bool = False
) -> dict[str, tuple[int, ...]]:
    """Return the shapes to measure a model at; a leading dim that stays open is 1.

    A latency, error or range measured at an arbitrary size says nothing about the sizes in use, so
    every other dim must get its size from the model or the user.

    Args:
        model: The model; it is not changed.
        request: The user's request.
        takes_data: Whether calibration data could provide the sizes as well.

    Raises:
        UsageError: If a size is missing, or the request does not fit the model.
        ModelError: If not even the rank of an input is known, or a tensor is too large for memory.
    """
    bound = bind_dims(input_dims(model), request)
    missing = {name: dims for name, dims in bound.items() if dims and _is_open(dims, bound)}
    if missing:
        inputs = ", ".join(f"{name!r} is {shape_text(dims)}" for name, dims in missing.items())
        sizes = f"--shapes {_example(model, request)}"
        raise UsageError(
            f"The model leaves the sizes of its inputs open: {inputs}. What is measured at one "
            "size does not hold for others.",
            f"Give the sizes that you will use, such as {sizes}"
            f"{', or calibration data' if takes_data else ''}.",
        )
    shapes = resolve_shapes(model, request)
    check_runs(model, shapes)
    return shapes


def with_sizes_from(
    model: ir.Model, request: InputRequest, others: Sequence[InputRequest | None]
) -> InputRequest:
    """Return a request whose open dims get sizes from other requests; earlier ones win.

    Raises:
        UsageError: If a request does not fit the model.
    """
    declared = input_dims(model)
    bound = bind_dims(declared, request)
    for other in others:
        if other is not None:
            also = bind_dims(declared, other)
            bound = {name: _filled(dims, also[name]) for name, dims in bound.items()}
    shapes = {
        name: tuple(dim if isinstance(dim, int) else None for dim in dims)
        for name, dims in bound.items()
        if dims is not None
    }
    return replace(request, shapes=shapes)


def _filled(dims: Dims | None, sizes: Dims | None) -> Dims | None:
    if dims is None or sizes is None:
        return dims or sizes
    return tuple(
        dim if isinstance(dim, int) or not isinstance(size, int) else size
        for dim, size in zip(dims, sizes, strict=True)
    )


def _is_open(dims: Dims, bound: Inputs) -> bool:
    """Whether a size other than the batch is missing."""
    batch = {
        symbol
        for others in bound.values()
        if others and isinstance(others[0], str)
        for symbol in symbols_in(others[0])
        if "batch" in symbol.lower()
    }
    return any(
        dim is None or (isinstance(dim, str) and not batch.issuperset(symbols_in(dim)))
        for dim in dims[1:]
    )


def _example(model: ir.Model, request: InputRequest) -> str:
    """Return example shapes, as typed, that leave only batch dims open."""
    declared = input_dims(model)
    sizes = _symbol_sizes(model, bind_dims(declared, request))
    shapes = dict(request.shapes)
    shown = []
    for value in model_inputs(model):
        name = value.name or ""
        bound = bind_dims(declared, replace(request, shapes=shapes))
        dims = bound[name]
        if dims and _is_open(dims, bound):
            shapes.pop("", None)  # it means this input
            shapes[name] = tuple(
                _plausible(value, axis, dim, sizes) for axis, dim in enumerate(dims)
            )
            shown.append(f"{name}:{shape_text(shapes[name])}")
    return ",".join(shown)


def _symbol_sizes(model: ir.Model, bound: Inputs) -> dict[str, int]:
    """Guess a size for every symbol; where it is not a leading dim, its position helps."""
    sizes: dict[str, int] = {}
    for value in model_inputs(model):
        for axis, dim in enumerate(bound[value.name or ""] or ()):
            if axis and isinstance(dim, str) and symbols_in(dim) == (dim,):
                sizes.setdefault(dim, _plausible(value, axis, dim, {}))
    return {symbol: sizes.get(symbol) or _by_name(symbol) or 1 for symbol in symbols_of(bound)}


def _plausible(value: ir.Value, axis: int, dim: Dim, sizes: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    known = evaluate(dim, sizes) if dim is not None else None
    if known is not None:
        return known
    if axis == 0:
        return 1
    fixed = _by_weights(value, axis)
    named = _by_name(dim) if dim is not None else None
    return fixed or named or _by_place(value, axis)


def _by_name(symbol: str) -> int | None:
    return next((size for pattern, size in _BY_NAME if pattern.search(symbol)), None)


def _by_place(value: ir.Value, axis: int) -> int:
    shape = value.shape
    rank = len(shape) if shape is not None else 0
    is_image = rank == 4 and shape is not None and shape[3] in (1, _CHANNELS)
    if is_image:  # channels last
        return _PIXELS
    return _BY_RANK[rank][axis] if rank in _BY_RANK else _TOKENS


def _by_weights(value: ir.Value, axis: int) -> int | None:
    """Return the size that the first op with weights requires on this axis, if it does."""
    rank = len(value.shape) if value.shape is not None else 0
    pending, seen = [value], {value}
    while pending:
        for user, position in pending.pop().uses():
            if position != 0:
                continue
            asked = _asked_by(user, rank, axis)
            if asked is not None:
                return asked
            if is_op(user, *_SAME_LAYOUT) and user.outputs[0] not in seen:
                seen.add(user.outputs[0])
                pending.append(user.outputs[0])
    return None


def _asked_by(node: ir.Node, rank: int, axis: int) -> int | None:
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    dims = tuple(weight.shape) if weight is not None and weight.shape is not None else ()
    size: int | ir.SymbolicDim | None = None
    if axis == 1 and is_op(node, "Conv") and len(dims) > 1:
        group = node.attributes.get("group")
        channels = dims[1]
        groups = group.as_int() if group is not None else 1
        size = channels * groups if isinstance(channels, int) else None
    elif axis == 1 and is_op(node, "ConvTranspose") and dims:
        size = dims[0]
    elif axis == rank - 1 and is_op(node, "MatMul") and len(dims) > 1:
        size = dims[-2]
    elif axis == rank - 1 and is_op(node, "Gemm") and len(dims) == 2:
        transposed = node.attributes.get("transB")
        size = dims[1 if transposed is not None and transposed.as_int() else 0]
    return size if isinstance(size, int) else None
