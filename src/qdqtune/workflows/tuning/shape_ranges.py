"""The smallest and largest shapes of tensors inside a model, from those of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from qdqtune.calibration.inputs import random_inputs
from qdqtune.calibration.observed import observe_shapes, unknown_tensors
from qdqtune.engines.isolated import Worker
from qdqtune.graph.input_shapes import resolve_shapes
from qdqtune.graph.prepared import PreparedModel
from qdqtune.graph.shapes import at_shapes
from qdqtune.records.errors import UsageError
from qdqtune.records.inputs import InputRequest, shape_text

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
Asked = InputRequest | Mapping[str, Sequence[int | None]]
"""What a user says of shapes: as everywhere, or only sizes by input."""

MIN, OPT, MAX = "min", "opt", "max"


def request_of(asked: Asked | None) -> InputRequest | None:
    """What a user says of shapes, in one form; None if nothing was said.

    Raises:
        UsageError: If it can't be one.
    """
    if asked is None or isinstance(asked, InputRequest):
        return asked
    try:
        return InputRequest({str(name): tuple(sizes) for name, sizes in asked.items()})
    except (AttributeError, TypeError):
        raise UsageError(
            f"{asked!r} can't be read as shapes.", "Map the names of inputs to their sizes."
        ) from None


def check_ranges(
    model: ir.Model, usual: Shapes, least: InputRequest | None, most: InputRequest | None
) -> None:
    """Make sure that what is asked for about shapes fits a model, and itself.

    Args:
        model: The model.
        usual: The shapes that it is run at.
        least: The smallest ones; None if nothing was said.
        most: The largest ones.

    Raises:
        UsageError: If it doesn't.
    """
    if least is None and most is None:
        return
    check_range(
        usual if least is None else resolve_shapes(model, least),
        usual,
        usual if most is None else resolve_shapes(model, most),
    )


def check_range(least: Shapes, usual: Shapes, most: Shapes) -> None:
    """Make sure that shapes are what they are called.

    Raises:
        UsageError: If one is larger than the next, or of another rank.
    """
    for name, opt in usual.items():
        for low, high, what in ((least[name], opt, "min"), (opt, most[name], "opt")):
            fits = len(low) == len(high)
            if not fits or any(a > b for a, b in zip(low, high, strict=True)):
                raise UsageError(
                    f"The {what} shape {shape_text(low)} of the input {name!r} is not within "
                    f"{shape_text(high)}.",
                    "Sizes grow from min_shapes over shapes to max_shapes.",
                )


def shapes_inside(
    base: PreparedModel, runner: Worker, request: InputRequest, tensors: Iterable[str]
) -> dict[str, Shape]:
    """Shapes of tensors inside a model; from a run where inference can't tell.

    Args:
        base: The model.
        runner: Of the reference engine.
        request: Shapes of the inputs.
        tensors: Which are wanted; those that can't be known are left out.
    """
    shapes = resolve_shapes(base.index.model, request)
    found: dict[str, Shape] = {}
    with at_shapes(base.index.model, shapes):
        if unknown_tensors(base.index):
            at = replace(request, shapes=shapes, dims={})
            observe_shapes(base, runner, next(random_inputs(base.index, 1, at)))
        for tensor in tensors:
            known = shapes.get(tensor) or base.index.shape(tensor)
            if known is not None and None not in known:
                found[tensor] = tuple(dim or 0 for dim in known)
    return found


def shape_arguments(shapes: Mapping[str, Shapes]) -> list[str]:
    """What a command line says of a piece's inputs: one argument for each of min, opt and max.

    Args:
        shapes: By `MIN`, `OPT` and `MAX`: shapes by input.
    """
    return [
        f"--{label}Shapes=" + ",".join(f"{_name(t)}:{_dims(s)}" for t, s in found.items())
        for label, found in shapes.items()
    ]


def _name(tensor: str) -> str:
    return f"'{tensor}'" if ":" in tensor or "," in tensor else tensor


def _dims(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "scalar"
