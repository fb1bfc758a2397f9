"""The shapes of the tensors inside a model: smallest, usual and largest, and as it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import onnx_ir as ir

from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.calibration._tensor_capture import observe_shapes, unknown_tensors
from qdqtune.engines import _registry as registry
from qdqtune.engines._options import MAX, MIN, OPT, Shapes, range_options, shapes_text
from qdqtune.engines._worker import Worker
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._input_shapes import input_dims, resolve_shapes
from qdqtune.graph._measured_shapes import with_sizes_from
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import at_shapes, infer_shapes
from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import InputRequest, ShapesOrRequest, request_of, shape_text
from qdqtune.workflows._sample_provider import SampleProvider

__all__ = [
    "MAX",
    "MIN",
    "OPT",
    "Shapes",
    "ShapesOrRequest",
    "check_range",
    "check_ranges",
    "check_takes_ranges",
    "options_with_ranges",
    "request_of",
    "shape_arguments",
    "shapes_inside",
    "timed_request",
]


Shape = tuple[int, ...]


def timed_request(
    model: ir.Model, inputs: InputRequest, least: InputRequest | None, most: InputRequest | None
) -> InputRequest:
    """What a model is timed at: sizes that were not given are those of the largest shapes.

    Args:
        model: The model.
        inputs: What the user says of the shapes that are timed.
        least: The smallest shapes; None if nothing was said.
        most: The largest ones.

    Raises:
        UsageError: If one of them does not fit the model.
    """
    if least is None and most is None:
        return inputs
    return with_sizes_from(model, inputs, (most, least))


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
    """What a command line says of a subgraph's inputs: one argument for each of min, opt and max.

    Args:
        shapes: By `MIN`, `OPT` and `MAX`: shapes by input.
    """
    return [f"--{label}Shapes={shapes_text(found)}" for label, found in shapes.items()]


def options_with_ranges(
    options: Mapping[str, str],
    engine: str,
    model: ir.Model,
    usual: Shapes,
    least: InputRequest | None,
    most: InputRequest | None,
) -> dict[str, str]:
    """An engine's options with the shapes that a model's inputs may have, if it is told such.

    Args:
        options: Those that were given, which go first.
        engine: The engine's name.
        model: The model.
        usual: The shapes that it is run at.
        least: The smallest ones; None if nothing was said.
        most: The largest ones.

    Raises:
        UsageError: If the shapes don't fit the model, or themselves.
    """
    check_ranges(model, usual, least, most)
    if (least is None and most is None) or not registry.entry(engine).takes_shape_ranges:
        return dict(options)
    is_open = {
        name: any(not isinstance(dim, int) for dim in dims or (None,))
        for name, dims in input_dims(model).items()
    }
    shapes = {
        MIN: usual if least is None else resolve_shapes(model, least),
        OPT: usual,
        MAX: usual if most is None else resolve_shapes(model, most),
    }
    of_open = {
        label: {name: shape for name, shape in found.items() if is_open.get(name)}
        for label, found in shapes.items()
    }
    return {**range_options(of_open), **options}


def check_takes_ranges(
    engine: str, least: ShapesOrRequest | None, most: ShapesOrRequest | None
) -> None:
    """Make sure that an engine has a use for ranges of shapes, if there are some.

    Raises:
        UsageError: If it hasn't.
    """
    for name, asked in (("min_shapes", least), ("max_shapes", most)):
        if asked is not None and not registry.entry(engine).takes_shape_ranges:
            raise UsageError(
                f"{registry.title(engine)} is not told ranges of shapes: {name} means nothing to "
                "it.",
                f"Leave --{name} out: it takes any shape; --shapes are those that it is timed at.",
            )


@contextmanager
def all_sizes(
    base: PreparedModel, runner: Worker, provider: SampleProvider
) -> Iterator[GraphIndex]:
    """Let all shapes be known for a while, also those of the model's own inputs and outputs.

    Args:
        base: The model; on leaving, every shape is what it was.
        runner: Of the reference engine, for shapes that can't be inferred.
        provider: What the model is run on.

    Yields:
        An index with these shapes.
    """
    graph = base.index.model.graph
    with at_shapes(base.index.model, provider.shapes):
        for value in graph.inputs:
            shape = provider.shapes.get(value.name or "")
            if shape is not None:
                value.shape = ir.Shape(shape)
        for value in graph.outputs:
            if value.producer() is not None:
                value.shape = None
        infer_shapes(base.index.model)
        if unknown_tensors(base.index):
            found = observe_shapes(base, runner, next(iter(provider.evaluation_samples())))
            for name, shape in found.items():
                base.index.value[name].shape = ir.Shape(shape)
        yield GraphIndex(base.index.model)
