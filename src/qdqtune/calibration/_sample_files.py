"""Files of samples: which array of which file belongs to which input."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from qdqtune.calibration._array_files import StoredArray, numpy_entries, numpy_file, tensor_file
from qdqtune.calibration._expected_inputs import (
    Array,
    ExpectedInput,
    Layout,
    Remarks,
    check_dtype,
    lay_out,
    left_over,
)
from qdqtune.records._errors import UsageError

_ARRAY_SUFFIXES = (".npy", ".npz")
_KNOWN_SUFFIXES = (*_ARRAY_SUFFIXES, ".pb")
_MOST_NAMED = 20
_TEST_SETS = "test_data_set_*"

_T = TypeVar("_T")


@dataclass(frozen=True)
class Table:
    """Arrays of all inputs that hold the same number of samples.

    Attributes:
        where: What they came from.
        arrays: The arrays by input name.
        layouts: How each divides into samples.
        samples: How many there are.
    """

    where: str
    arrays: Mapping[str, StoredArray]
    layouts: Mapping[str, Layout]
    samples: int

    def read(self) -> Iterator[tuple[str, dict[str, Array]]]:
        """Every sample with where it is, one at a time."""
        streams = [array.samples(self.layouts[name]) for name, array in self.arrays.items()]
        for number, values in enumerate(zip(*streams, strict=True)):
            where = self.where if self.samples == 1 else f"{self.where}, sample {number},"
            yield where, dict(zip(self.arrays, values, strict=True))


def make_table(
    where: str,
    arrays: Mapping[str, StoredArray],
    inputs: Sequence[ExpectedInput],
    remarks: Remarks,
    *,
    split_open: bool = True,
) -> Table:
    """Check types and shapes, and see how many samples there are.

    Raises:
        UsageError: If the model can't be fed with them.
    """
    for each in inputs:
        check_dtype(arrays[each.name].label, arrays[each.name].dtype, each)
    shapes = {each.name: arrays[each.name].shape for each in inputs}
    layouts = lay_out(where, shapes, inputs, split_open=split_open)
    for name, layout in layouts.items():
        rows = left_over(shapes[name], layout)
        if rows:
            remarks.say(
                logging.WARNING,
                f"{arrays[name].label}: the last {rows} of {shapes[name][0]} rows don't fill a "
                f"batch of {layout.rows} and are left out",
            )
    samples = next(iter(layouts.values())).samples
    return Table(where, arrays, layouts, samples)


def tables_in(path: Path, inputs: Sequence[ExpectedInput], remarks: Remarks) -> Iterator[Table]:
    """The samples of a file or folder; only headers are read.

    Raises:
        UsageError: If there are none, or they are not what the model wants.
    """
    if not path.is_dir():
        yield _of_file(path, inputs, remarks)
        return
    files = _listed(path, *_ARRAY_SUFFIXES)
    folders = {each.name: path / _file_name(each.name) for each in inputs}
    test_sets = sorted(path.glob(_TEST_SETS), key=_natural) or [path]
    if files:
        _mention_others(path, files, remarks)
        yield from (_of_file(file, inputs, remarks) for file in files)
    elif any(folder.is_dir() for folder in folders.values()):
        yield from _of_columns(path, folders, inputs, remarks)
    elif any(_listed(folder, ".pb") for folder in test_sets):
        yield from (_of_test_set(folder, inputs, remarks) for folder in test_sets)
    else:
        raise UsageError(
            f"The folder {path} holds no .npz or .npy files.",
            "Put samples into it, or for several inputs one folder of .npy files each: "
            f"{', '.join(folder.name + '/' for folder in folders.values())}.",
        )


def by_input(
    where: str, found: Mapping[str, _T], inputs: Sequence[ExpectedInput], remarks: Remarks
) -> dict[str, _T]:
    """Pick what the model wants out of named things.

    Raises:
        UsageError: If something is missing.
    """
    for each in inputs:
        if each.name not in found:
            close = difflib.get_close_matches(each.name, found, n=1)
            guess = f"Is it {close[0]!r}? " if close else ""
            have = ", ".join(repr(str(name)) for name in islice(found, _MOST_NAMED)) or "nothing"
            if len(found) > _MOST_NAMED:
                have += f" and {len(found) - _MOST_NAMED} more"
            raise UsageError(
                f"{where} has no array for the input {each.name!r}; it has {have}.",
                f"{guess}Name arrays as the model names its inputs: "
                f"{', '.join(each.name for each in inputs)}.",
            )
    extra = sorted(str(name) for name in found if name not in {each.name for each in inputs})
    if extra:
        remarks.say(logging.WARNING, f"no input takes {', '.join(extra)}: left out")
    return {each.name: found[each.name] for each in inputs}


def _of_file(path: Path, inputs: Sequence[ExpectedInput], remarks: Remarks) -> Table:
    if path.suffix == ".npz":
        entries = numpy_entries(path)
        if list(entries) == [f"arr_{number}" for number in range(len(inputs))]:
            # np.savez was given no names: they are in order.
            entries = dict(zip((each.name for each in inputs), entries.values(), strict=True))
        return make_table(str(path), by_input(str(path), entries, inputs, remarks), inputs, remarks)
    if path.suffix not in _KNOWN_SUFFIXES:
        raise UsageError(
            f"{path} is neither .npz nor .npy, nor a folder of them.",
            "Write arrays with np.savez, or read the file in a function: my_loader.py:samples.",
        )
    if len(inputs) != 1:
        names = ", ".join(each.name for each in inputs)
        raise UsageError(
            f"{path} holds one array, but the model has {len(inputs)} inputs: {names}.",
            "Put the arrays into an .npz file under these names.",
        )
    one = tensor_file(path) if path.suffix == ".pb" else numpy_file(path)
    return make_table(str(path), {inputs[0].name: one}, inputs, remarks)


def _of_columns(
    path: Path, folders: Mapping[str, Path], inputs: Sequence[ExpectedInput], remarks: Remarks
) -> Iterator[Table]:
    """One folder per input; files that are in the same place belong together."""
    columns = {name: _listed(folder, ".npy") for name, folder in folders.items()}
    counts = {len(files) for files in columns.values()}
    if len(counts) != 1:
        found = ", ".join(f"{len(columns[name])} in {folders[name].name}/" for name in columns)
        raise UsageError(
            f"The folder {path} has different numbers of .npy files for its inputs: {found}.",
            "Every input needs a file for every sample.",
        )
    for files in zip(*columns.values(), strict=True):
        arrays = {name: numpy_file(file) for name, file in zip(columns, files, strict=True)}
        yield make_table(" and ".join(map(str, files)), arrays, inputs, remarks)


def _of_test_set(folder: Path, inputs: Sequence[ExpectedInput], remarks: Remarks) -> Table:
    """ONNX's own test data: tensors in the order of the inputs."""
    files = [folder / f"input_{number}.pb" for number in range(len(inputs))]
    arrays = {each.name: tensor_file(file) for each, file in zip(inputs, files, strict=True)}
    return make_table(str(folder), arrays, inputs, remarks, split_open=False)


def _listed(folder: Path, *suffixes: str) -> list[Path]:
    if not folder.is_dir():
        return []
    files = (file for file in folder.iterdir() if file.suffix in suffixes and file.is_file())
    return sorted((file for file in files if not file.name.startswith(".")), key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts sample2 before sample10."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _file_name(name: str) -> str:
    """An input's name as a folder has it."""
    return re.sub(r"[/\\:]", "_", name)


def _mention_others(path: Path, files: Sequence[Path], remarks: Remarks) -> None:
    others = sum(1 for file in path.iterdir() if file.is_file()) - len(files)
    if others:
        remarks.say(logging.INFO, f"{path}: {others} other files are not read")
