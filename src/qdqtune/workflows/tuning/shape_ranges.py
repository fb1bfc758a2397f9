"""The smallest and largest shapes of tensors inside a model, from those of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

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

MIN, OPT, MAX = "min", "opt", "max"


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
                    "Sizes grow from --min_shapes over --shapes to --max_shapes.",
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
