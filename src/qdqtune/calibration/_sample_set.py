"""Calibration data from files, arrays or code.

Checked before the run, read one sample at a time.
"""

from __future__ import annotations

import difflib
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qdqtune.calibration._array_files import memory_array
from qdqtune.calibration._expected_inputs import (
    Array,
    ExpectedInput,
    Remarks,
    conform,
    expected_inputs,
    is_short,
    look_at,
)
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.calibration._sample_files import Table, by_input, make_table, tables_in
from qdqtune.calibration._user_code import UserFunction, find_function
from qdqtune.engines._worker_environment import read_arrays, write_arrays
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.records._errors import UsageError

__all__ = ["ExpectedInput", "SampleSet", "expected_inputs", "open_samples"]

_FUNCTION = re.compile(r".+:[^\W\d]\w*")


def _tables_of(
    user: UserFunction, inputs: Sequence[ExpectedInput], remarks: Remarks
) -> Iterator[Table]:
    """The user's samples as tables, made while they are read.

    Raises:
        UsageError: If one of them is not what the model wants.
    """
    for number, (item, is_stack) in enumerate(user.items()):
        where = user.label if is_stack else f"item {number} of {user.label}"
        arrays = _arrays(where, item, inputs, remarks)
        if number and any(is_short(arrays[each.name].shape, each) for each in inputs):
            remarks.say(logging.WARNING, f"{where} does not fill a batch and is left out")
            continue
        stored = {name: memory_array(where, array) for name, array in arrays.items()}
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


class SampleSet:
    """Samples that can be read any number of times, one at a time.

    Args:
        label: Where they come from, for reports.
        inputs: What the model wants.
        read: Starts to read them.
        count: How many there are; None if that is not known before they were read once.

    Attributes:
        count: How many there are, as far as it is known.
        first: The first of them.

    Raises:
        UsageError: If there are none, or the first is not what the model wants.
    """

    def __init__(
        self,
        label: str,
        inputs: Sequence[ExpectedInput],
        read: Callable[[], Iterator[Feeds]],
        count: int | None = None,
    ) -> None:
        self.count = count
        self._label = label
        self._read = read
        reading = read()
        try:
            self.first = next(reading)
        except StopIteration:
            raise UsageError(f"{label} holds no samples.", "Give at least one.") from None
        for each in inputs:
            look_at(self.first[each.name], each)
        # The first pass goes on from here: what a user wrote may be slow to start.
        self._begun: Iterator[Feeds] | None = itertools.chain([self.first], reading)

    def __iter__(self) -> Iterator[Feeds]:
        begun, self._begun = self._begun, None
        done = 0
        for feeds in begun if begun is not None else self._read():
            yield feeds
            done += 1
        if not done:
            raise UsageError(
                f"{self._label} gave samples the first time, and none now.",
                "Let it make a new iterator whenever it is called.",
            )
        self.count = done

    def __length_hint__(self) -> int:
        return NotImplemented if self.count is None else self.count

    def describe(self) -> str:
        """Say how many samples there are, if known, and where they come from."""
        if self.count is None:
            return f"samples from {self._label}"
        return f"{self.count} sample{'s' * (self.count != 1)} from {self._label}"


def open_samples(
    source: Any, inputs: Sequence[ExpectedInput], *, limit: int | None = None
) -> SampleSet:
    """Open calibration data, and check all of it that can be checked without reading it.

    Of files, that is every shape and type; of what code makes, the first sample. The rest is
    checked while it is read.

    Args:
        source: An `.npz` or `.npy` file, a folder of them, `module:function` or `file.py:function`;
            or a Python object: arrays, something to iterate over, a function without arguments, or
            a reader with `get_next()`. What can be iterated over only once is kept in temporary
            files meanwhile.
        inputs: What the model wants.
        limit: Use at most this many samples.

    Raises:
        UsageError: If the data is not what the model wants.
    """
    if not inputs:
        raise UsageError(
            "The model has no inputs, so there is nothing to feed.", "Leave the data out."
        )
    if limit is not None and limit < 1:
        raise UsageError(f"The model can't be run on {limit} samples.", "Take at least one.")
    remarks = Remarks()
    if isinstance(source, (str, os.PathLike)) and not _names_function(os.fspath(source)):
        tables = list(_enough(tables_in(_existing(Path(source)), inputs, remarks), limit))
        count = sum(table.samples for table in tables)
        return SampleSet(
            str(source),
            inputs,
            lambda: itertools.islice(_feeds(tables, inputs, remarks), limit),
            count if limit is None else min(count, limit),
        )
    user, again = _user_samples(source)

    def read() -> Iterator[Feeds]:
        return itertools.islice(_feeds(_tables_of(user, inputs, remarks), inputs, remarks), limit)

    known = None
    if _is_stack(source):
        count = sum(table.samples for table in _tables_of(user, inputs, remarks))
        known = count if limit is None else min(count, limit)
    return SampleSet(user.label, inputs, read if again else _Spool(read()).__iter__, known)


class _Spool:
    """Keeps what can be read only once in files, as it is read."""

    def __init__(self, samples: Iterator[Feeds]) -> None:
        self._samples = samples
        self._folder = TemporaryFolder()
        self._kept = 0

    def __iter__(self) -> Iterator[Feeds]:
        for number in itertools.count():
            path = self._folder.path / f"{number}.npz"
            if number < self._kept:
                yield read_arrays(path)
                continue
            feeds = next(self._samples, None)
            if feeds is None:
                return
            write_arrays(path, feeds)
            self._kept += 1
            yield feeds


def _feeds(
    tables: Iterable[Table], inputs: Sequence[ExpectedInput], remarks: Remarks
) -> Iterator[Feeds]:
    for table in tables:
        for where, arrays in table.read():
            yield {each.name: conform(where, arrays[each.name], each, remarks) for each in inputs}


def _enough(tables: Iterable[Table], limit: int | None) -> Iterator[Table]:
    """As many tables as it takes: nobody waits for files that are not needed."""
    samples = 0
    for table in tables:
        yield table
        samples += table.samples
        if limit is not None and samples >= limit:
            return


def _names_function(source: str) -> bool:
    return not Path(source).exists() and _FUNCTION.fullmatch(source) is not None


def _existing(path: Path) -> Path:
    if path.exists():
        return path
    beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, beside, n=1)
    hint = "Give an .npz or .npy file, a folder of them, or a function: loader.py:samples."
    if close:
        hint = f"Did you mean {path.with_name(close[0])}?"
    raise UsageError(f"There is no file or folder {path}.", hint)


def _is_stack(source: Any) -> bool:
    """Whether it is arrays that hold all samples."""
    return isinstance(source, Mapping) or hasattr(source, "__array__")


def _user_samples(source: Any) -> tuple[UserFunction, bool]:
    """What a user's code makes, and whether it can be asked for more than once."""
    if isinstance(source, (str, os.PathLike)):
        return find_function(os.fspath(source)), True
    if _is_stack(source):
        return UserFunction("arrays", lambda: source), True
    kind = type(source).__name__
    if isinstance(source, type) or (callable(source) and not hasattr(source, "__iter__")):
        name = getattr(source, "__name__", kind)
        return UserFunction(f"{name}()" if name.isidentifier() else "a function", source), True
    if hasattr(source, "get_next") or hasattr(source, "__next__"):
        return UserFunction(f"a {kind}", lambda: source), False
    if hasattr(source, "__iter__") or hasattr(source, "__getitem__"):
        return UserFunction(f"a {kind}", lambda: source), True
    raise UsageError(
        f"Samples can't be taken from {source!r}.",
        "Give a path, arrays, something to iterate over, or a function.",
    )
