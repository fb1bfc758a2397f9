"""How an array divides into samples: one sample is what one run of the model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qdqtune.calibration.expected_inputs import ExpectedInput, Shape, fits, misfit
from qdqtune.records.errors import UsageError


@dataclass(frozen=True)
class Layout:
    """An array seen as samples.

    Attributes:
        samples: How many.
        rows: How many steps along the first axis make one; None if the whole array is each of them.
        shape: The shape of one.
    """

    samples: int
    rows: int | None
    shape: Shape


def lay_out(
    where: str,
    shapes: Mapping[str, Shape],
    inputs: Sequence[ExpectedInput],
    *,
    split_open: bool,
) -> dict[str, Layout]:
    """Find the one way in which the arrays of all inputs hold the same number of samples.

    Samples may be stacked along an axis of their own in front, or along the first axis, in steps
    of the model's batch. An open first axis is taken for the batch: with `split_open`, every row
    is a sample. A scalar serves all samples.

    Args:
        where: What holds the arrays.
        shapes: The array shapes by input name.
        inputs: What the model wants.
        split_open: Whether to split along a first axis that the model leaves open.

    Raises:
        UsageError: If a shape does not fit, or the inputs have different numbers of samples.
    """
    ways = {each.name: _ways(where, shapes[each.name], each, split_open) for each in inputs}
    counted = {name: found for name, found in ways.items() if found}
    wanted = [found[0].samples for found in counted.values() if len(found) == 1]
    wanted = wanted[:1] or [found[0].samples for found in counted.values()]
    for samples in (*wanted, 1):
        chosen = {
            name: layout
            for name, found in counted.items()
            for layout in found
            if layout.samples == samples
        }
        if len(chosen) == len(counted):
            scalars = {name: Layout(samples, None, ()) for name in ways if name not in counted}
            return {**chosen, **scalars}
    counts = ", ".join(f"{found[0].samples} for {name!r}" for name, found in counted.items())
    raise UsageError(
        f"{where} has different numbers of samples for its inputs: {counts}.",
        "Every input needs an array for every sample.",
    )


def left_over(shape: Shape, layout: Layout) -> int:
    """How many rows at the end are too few for a sample."""
    return 0 if layout.rows is None else shape[0] - layout.samples * layout.rows


def is_short(shape: Shape, expected: ExpectedInput) -> bool:
    """Whether it would be a batch if it had more rows: the last one of a data loader."""
    dims = expected.dims
    if not dims or not shape or dims[0] is None:
        return False
    return shape[0] < dims[0] and fits(shape[1:], dims[1:])


def _ways(where: str, shape: Shape, expected: ExpectedInput, split_open: bool) -> list[Layout]:
    """Every way to see the array as samples, likeliest first; none for a scalar, which fits any."""
    dims = expected.dims
    whole = Layout(1, None, shape)
    if dims is None:
        return [whole]
    if not dims and not shape:
        return []
    if len(shape) == len(dims) + 1 and fits(shape[1:], dims):
        return [Layout(shape[0], 1, shape[1:])]
    if len(shape) == len(dims) and fits(shape[1:], dims[1:]):
        batch = dims[0]
        if batch is None and shape[0]:
            rows = Layout(shape[0], 1, (1, *shape[1:]))
            # A list of numbers is rather one sample than many of one number each.
            return [rows, whole] if split_open and len(dims) > 1 else [whole, rows]
        if batch in (None, shape[0]):
            return [whole]
        if batch and shape[0] > batch:
            return [Layout(shape[0] // batch, batch, (batch, *shape[1:]))]
    raise misfit(where, shape, expected)
