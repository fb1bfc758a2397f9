"""The shapes that a model is measured at: complete, small enough for memory, and terminating."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from qdqtune.graph._editing import types_restored
from qdqtune.graph._input_shapes import (
    Dim,
    Dims,
    Inputs,
    bind_dims,
    dims_of,
    evaluate,
    input_dims,
    model_inputs,
    resolve_shapes,
    symbols_in,
    symbols_of,
)
from qdqtune.graph._op_classes import input_at, is_op, uses_behind, weight_axis
from qdqtune.graph._shapes import set_input_dims, variables
from qdqtune.records._errors import ModelError, UsageError
from qdqtune.records._inputs import InputRequest, shape_text
from qdqtune.records._untrusted_files import size_text
from qdqtune.resources import current_limits

# An iteration of even the cheapest body takes an engine about a microsecond.
_MOST_TRIPS = 1 << 26

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


def check_ends(model: ir.Model) -> None:
    """Make sure that no Loop is endless.

    Only provable cases count: a Loop whose condition depends on data may end at any time.

    Args:
        model: The model.

    Raises:
        ModelError: If a Loop is endless.
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
    count = input_at(node, 0)
    return math.inf if count is None else _number(count) or 0.0


def _goes_on(node: ir.Node) -> bool:
    """Whether the condition is initially true and passed on unchanged."""
    first = input_at(node, 1)
    if first is not None and not _number(first):
        return False
    body = node.attributes["body"].as_graph()
    value = body.outputs[0]
    while is_op(producer := value.producer(), "Identity", "Cast"):
        assert producer is not None
        assert producer.inputs[0] is not None
        value = producer.inputs[0]
    return bool(_number(value)) or (len(body.inputs) > 1 and value is body.inputs[1])


def _number(value: ir.Value) -> float | None:
    """Return the number in a constant that holds just one."""
    tensor = ir.convenience.get_const_tensor(value)
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None


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
    sizes = {value: shapes.get(value.name or "") for value in model_inputs(model)}
    values = variables(model.graphs())
    with types_restored(values):
        if any(_fixed_dims(value) is None for value in values if value.name):
            set_input_dims(model, shapes)
        sizes |= {value: _fixed_dims(value) for value in values if value not in sizes}
    for value, dims in sizes.items():
        nbytes = math.prod(dims) * _bits(value) // 8 if dims is not None else 0
        if nbytes > limit:
            node = value.producer()
            maker = f", which the node {node.name!r} ({node.op_type}) computes," if node else ""
            raise ModelError(
                f"The tensor {value.name!r}{maker} has the shape {shape_text(dims)} and takes "
                f"{size_text(nbytes)}: more than the {size_text(limit)} of memory that a process "
                "may have.",
                "Check the model and its input shapes (--shapes), or allow more: --max_memory.",
            )


def _fixed_dims(value: ir.Value) -> tuple[int, ...] | None:
    """Return the dims of a value if all of them are known."""
    dims = dims_of(value)
    sizes = tuple(dim for dim in dims or () if isinstance(dim, int))
    return sizes if dims is not None and len(sizes) == len(dims) else None


def _bits(value: ir.Value) -> int:
    dtype = value.dtype
    is_sized = dtype not in (None, ir.DataType.STRING, ir.DataType.UNDEFINED)
    return dtype.bitwidth if dtype is not None and is_sized else 8


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
            shapes.pop("", None)  # it stands for this input
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
    """Return the size that the first op with weights requires on this axis, if it requires one."""
    rank = len(value.shape) if value.shape is not None else 0
    asked = (
        _asked_by(user, rank, axis)
        for user, position in uses_behind(value, *_SAME_LAYOUT)
        if position == 0
    )
    return next((size for size in asked if size is not None), None)


def _asked_by(node: ir.Node, rank: int, axis: int) -> int | None:
    weight = input_at(node, 1)
    dims = tuple(weight.shape) if weight is not None and weight.shape is not None else ()
    size: int | ir.SymbolicDim | None = None
    if axis == 1 and is_op(node, "Conv") and len(dims) > 1:
        groups = node.attributes.get_int("group", 1)
        size = dims[1] * groups if isinstance(dims[1], int) else None
    elif axis == 1 and is_op(node, "ConvTranspose") and dims:
        size = dims[0]
    elif axis == rank - 1 and is_op(node, "MatMul") and len(dims) > 1:
        size = dims[-2]
    elif axis == rank - 1 and is_op(node, "Gemm") and len(dims) == 2:
        size = dims[1 - weight_axis(node)]
    return size if isinstance(size, int) else None
