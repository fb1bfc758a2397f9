"""The shapes of the tensors inside a model: smallest, usual and largest, and as it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import onnx_ir as ir

from qdqtune.calibration._random_inputs import Feeds
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
from qdqtune.records._inputs import InputRequest, ShapesOrRequest, shape_text

__all__ = [
    "MAX",
    "MIN",
    "OPT",
    "Shapes",
    "check_takes_ranges",
    "options_with_ranges",
    "shape_arguments",
    "static_shapes",
    "timed_request",
]


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


def _check_order(least: Shapes, usual: Shapes, most: Shapes) -> None:
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
    if least is None and most is None:
        return dict(options)
    shapes = {
        MIN: usual if least is None else resolve_shapes(model, least),
        OPT: usual,
        MAX: usual if most is None else resolve_shapes(model, most),
    }
    _check_order(shapes[MIN], usual, shapes[MAX])
    if not registry.entry(engine).takes_shape_ranges:
        return dict(options)
    is_open = {
        name: any(not isinstance(dim, int) for dim in dims or (None,))
        for name, dims in input_dims(model).items()
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
def static_shapes(
    base: PreparedModel, runner: Worker, shapes: Shapes, samples: Iterable[Feeds]
) -> Iterator[GraphIndex]:
    """Make every shape in a model known for a while, those of its inputs and outputs included.

    Args:
        base: The model; on leaving, every shape is what it was.
        runner: Of the reference engine, for shapes that can't be inferred.
        shapes: Of the model's inputs.
        samples: Inputs of these shapes; one is run if not everything can be inferred.

    Yields:
        An index with these shapes.
    """
    graph = base.index.model.graph
    with at_shapes(base.index.model, shapes):
        for value in graph.inputs:
            if (shape := shapes.get(value.name or "")) is not None:
                value.shape = ir.Shape(shape)
        for value in graph.outputs:
            if value.producer() is not None:
                value.shape = None
        infer_shapes(base.index.model)
        if unknown_tensors(base.index):
            for name, shape in observe_shapes(base, runner, next(iter(samples))).items():
                base.index.value[name].shape = ir.Shape(shape)
        yield GraphIndex(base.index.model)
