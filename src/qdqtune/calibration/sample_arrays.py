"""What users' code gives for a sample: names and arrays, arrays in order, or one array."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qdqtune.calibration.array_files import MemoryArray
from qdqtune.calibration.expected_inputs import ExpectedInput
from qdqtune.calibration.input_conversion import Array, Remarks
from qdqtune.calibration.sample_files import Table, by_input, make_table
from qdqtune.calibration.sample_layout import is_short
from qdqtune.calibration.user_code import UserSamples
from qdqtune.records.errors import UsageError


def tables_of(
    user: UserSamples, inputs: Sequence[ExpectedInput], remarks: Remarks
) -> Iterator[Table]:
    """The user's samples as tables, made while they are read.

    Raises:
        UsageError: If one of them is not what the model wants.
    """
    for number, (item, is_stack) in enumerate(user):
        where = user.label if is_stack else f"item {number} of {user.label}"
        arrays = _arrays(where, item, inputs, remarks)
        if number and any(is_short(arrays[each.name].shape, each) for each in inputs):
            remarks.say(logging.WARNING, f"{where} does not fill a batch and is left out")
            continue
        stored = {name: MemoryArray(where, array) for name, array in arrays.items()}
        yield make_table(where, stored, inputs, remarks, split_open=is_stack)


def _arrays(
    where: str, item: Any, inputs: Sequence[ExpectedInput], remarks: Remarks
) -> dict[str, Array]:
    if isinstance(item, Mapping):
        named = by_input(where, item, inputs, remarks)
    else:
        values = list(item) if isinstance(item, (tuple, list)) else [item]
        if len(values) != len(inputs):
            names = ", ".join(each.name for each in inputs)
            raise UsageError(
                f"{where} is {len(values)} array{'s' * (len(values) != 1)}, but the model has "
                f"{len(inputs)} input{'s' * (len(inputs) != 1)}: {names}.",
                "Give a dict of arrays with these names.",
            )
        named = {each.name: value for each, value in zip(inputs, values, strict=True)}
    return {name: _array(where, name, value) for name, value in named.items()}


def _array(where: str, name: str, value: Any) -> Array:
    try:
        array = np.asarray(value)
    except Exception as error:  # a tensor on a GPU, lists of different lengths
        raise UsageError(
            f"{where} has no array for the input {name!r}: {str(error).splitlines()[0]}",
            "Give numpy arrays; of a torch tensor, tensor.detach().cpu().numpy().",
        ) from error
    if array.dtype.hasobject and not all(isinstance(each, str) for each in array.flat):
        raise UsageError(
            f"{where} has {type(value).__name__} for the input {name!r}, which is no array.",
            "Give numpy arrays of numbers.",
        )
    return array
