"""Calibration data from files, arrays or code, checked in advance and read one sample at a time."""

from __future__ import annotations

import difflib
import itertools
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from qdqtune._image_config import ImageConfig
from qdqtune.calibration._array_files import (
    StoredArray,
    memory_array,
    numpy_entries,
    numpy_file,
    tensor_file,
)
from qdqtune.calibration._expected_inputs import (
    ExpectedInput,
    Layout,
    check_dtype,
    conform,
    expected_inputs,
    is_short,
    lay_out,
    left_over,
    look_at,
)
from qdqtune.calibration._file_listing import listed, listed_in_turns, natural
from qdqtune.calibration._image_files import IMAGE_SUFFIXES, image_batch
from qdqtune.calibration._image_preprocessing import image_preprocessing
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.calibration._user_code import UserFunction, find_function
from qdqtune.engines._worker_environment import read_arrays, write_arrays
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._files import did_you_mean
from qdqtune.qdq._encoding import Array
from qdqtune.records._errors import UsageError

__all__ = ["ExpectedInput", "SampleSet", "expected_inputs", "open_samples"]

_FUNCTION = re.compile(r".+:[^\W\d]\w*")
_ARRAY_SUFFIXES = (".npy", ".npz")
_KNOWN_SUFFIXES = (*_ARRAY_SUFFIXES, ".pb")
_MOST_NAMED = 20
_MOST_ENDINGS = 5
_TEST_SETS = "test_data_set_*"

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Table:
    """Arrays of all inputs that hold the same number of samples.

    Attributes:
        where: Where they come from, for messages.
        arrays: The arrays by input name.
        layouts: How each divides into samples.
        samples: Number of samples.
    """

    where: str
    arrays: Mapping[str, StoredArray]
    layouts: Mapping[str, Layout]
    samples: int

    def read(self) -> Iterator[tuple[str, dict[str, Array]]]:
        """Yield each sample with its location."""
        streams = [array.samples(self.layouts[name]) for name, array in self.arrays.items()]
        for number, values in enumerate(zip(*streams, strict=True)):
            where = self.where if self.samples == 1 else f"{self.where}, sample {number},"
            yield where, dict(zip(self.arrays, values, strict=True))


class _Reader:
    """Reads samples for a model, and assigns their arrays to its inputs.

    Args:
        inputs: The model's inputs.
        images: How images are prepared.
        model: The model's file, if it has one.
    """

    def __init__(
        self,
        inputs: Sequence[ExpectedInput],
        images: ImageConfig | None = None,
        model: Path | None = None,
    ) -> None:
        self._inputs = inputs
        self._images = images or ImageConfig()
        self._model = model
        self._names = [each.name for each in inputs]
        self._said: set[str] = set()

    def feeds(self, tables: Iterable[_Table]) -> Iterator[Feeds]:
        """Yield the samples of tables, each input in the type that the model expects."""
        for table in tables:
            for where, arrays in table.read():
                yield {
                    each.name: conform(where, arrays[each.name], each, self._warn)
                    for each in self._inputs
                }

    def tables_of(self, user: UserFunction) -> Iterator[_Table]:
        """Yield the user's samples as tables, as they are read.

        Raises:
            UsageError: If one of them does not fit the model.
        """
        for number, (item, is_stack) in enumerate(user.items()):
            where = user.label if is_stack else f"item {number} of {user.label}"
            arrays = self._arrays(where, item)
            if number and any(is_short(arrays[each.name].shape, each) for each in self._inputs):
                self._warn(f"{where} does not fill a batch and is left out")
                continue
            stored = {name: memory_array(where, array) for name, array in arrays.items()}
            yield self._table(where, stored, split_open=is_stack)

    def tables_in(self, path: Path) -> Iterator[_Table]:
        """Yield the samples of a file or folder as tables; only headers are read.

        Raises:
            UsageError: If there are none, or they do not fit the model.
        """
        if path.suffix in IMAGE_SUFFIXES:
            yield from self._of_images(path, [path])
            return
        if not path.is_dir():
            yield self._of_file(path)
            return
        files = listed(path, *_ARRAY_SUFFIXES)
        folders = {name: path / re.sub(r"[/\\:]", "_", name) for name in self._names}
        test_sets = sorted(path.glob(_TEST_SETS), key=natural) or [path]
        if files:
            others = sum(1 for file in path.iterdir() if file.is_file()) - len(files)
            if others:
                self._say(logging.INFO, f"{path}: {others} other files are not read")
            yield from map(self._of_file, files)
        elif any(folder.is_dir() for folder in folders.values()):
            yield from self._of_columns(path, folders)
        elif any(listed(folder, ".pb") for folder in test_sets):
            yield from map(self._of_test_set, test_sets)
        elif images := listed_in_turns(path, *IMAGE_SUFFIXES):
            yield from self._of_images(path, images)
        else:
            raise UsageError(
                f"The folder {path} holds no .npz or .npy files, and no images{_others(path)}.",
                "Put samples into it, or for several inputs one folder of .npy files each: "
                f"{', '.join(folder.name + '/' for folder in folders.values())}.",
            )

    def _say(self, level: int, message: str) -> None:
        """Log a message once, however many samples it applies to."""
        if message not in self._said:
            self._said.add(message)
            _logger.log(level, "%s", message)

    def _warn(self, message: str) -> None:
        self._say(logging.WARNING, message)

    def _table(
        self, where: str, arrays: Mapping[str, StoredArray], *, split_open: bool = True
    ) -> _Table:
        """Check types and shapes, and determine the number of samples.

        Raises:
            UsageError: If they do not fit the model.
        """
        for each in self._inputs:
            check_dtype(arrays[each.name].label, arrays[each.name].dtype, each)
        shapes = {name: arrays[name].shape for name in self._names}
        layouts = lay_out(where, shapes, self._inputs, split_open=split_open)
        for name, layout in layouts.items():
            rows = left_over(shapes[name], layout)
            if rows:
                self._warn(
                    f"{arrays[name].label}: the last {rows} of {shapes[name][0]} rows don't fill a "
                    f"batch of {layout.rows} and are left out"
                )
        return _Table(where, arrays, layouts, next(iter(layouts.values())).samples)

    def _by_input(self, where: str, found: Mapping[str, _T]) -> dict[str, _T]:
        """Select the model's inputs from named items.

        Raises:
            UsageError: If one is missing.
        """
        for name in self._names:
            if name not in found:
                close = difflib.get_close_matches(name, found, n=1)
                guess = f"Is it {close[0]!r}? " if close else ""
                some = itertools.islice(found, _MOST_NAMED)
                have = ", ".join(repr(str(each)) for each in some) or "nothing"
                if len(found) > _MOST_NAMED:
                    have += f" and {len(found) - _MOST_NAMED} more"
                raise UsageError(
                    f"{where} has no array for the input {name!r}; it has {have}.",
                    f"{guess}Name arrays as the model names its inputs: {', '.join(self._names)}.",
                )
        extra = sorted(str(name) for name in found if name not in self._names)
        if extra:
            self._warn(f"no input takes {', '.join(extra)}: left out")
        return {name: found[name] for name in self._names}

    def _arrays(self, where: str, item: Any) -> dict[str, Array]:
        """Return the arrays of an item that a user's code produced."""
        if isinstance(item, Mapping):
            named = self._by_input(where, item)
        else:
            values = list(item) if isinstance(item, (tuple, list)) else [item]
            if len(values) != len(self._names):
                raise UsageError(
                    f"{where} is {len(values)} array{'s' * (len(values) != 1)}, but the model has "
                    f"{len(self._names)} input{'s' * (len(self._names) != 1)}: "
                    f"{', '.join(self._names)}.",
                    "Give a dict of arrays with these names.",
                )
            named = dict(zip(self._names, values, strict=True))
        return {name: _array(where, name, value) for name, value in named.items()}

    def _of_file(self, path: Path) -> _Table:
        if path.suffix == ".npz":
            entries = numpy_entries(path)
            if list(entries) == [f"arr_{number}" for number in range(len(self._names))]:
                # np.savez was called without names: the arrays are in order.
                entries = dict(zip(self._names, entries.values(), strict=True))
            return self._table(str(path), self._by_input(str(path), entries))
        if path.suffix not in _KNOWN_SUFFIXES:
            raise UsageError(
                f"{path} is neither .npz nor .npy, nor a folder of them.",
                "Write arrays with np.savez, or read the file in a function: my_loader.py:samples.",
            )
        if len(self._names) != 1:
            raise UsageError(
                f"{path} holds one array, but the model has {len(self._names)} inputs: "
                f"{', '.join(self._names)}.",
                "Put the arrays into an .npz file under these names.",
            )
        one = tensor_file(path) if path.suffix == ".pb" else numpy_file(path)
        return self._table(str(path), {self._names[0]: one})

    def _of_columns(self, path: Path, folders: Mapping[str, Path]) -> Iterator[_Table]:
        """Yield tables from one folder per input; files at the same position belong together."""
        columns = {name: listed(folder, ".npy") for name, folder in folders.items()}
        if len({len(files) for files in columns.values()}) != 1:
            found = ", ".join(f"{len(columns[name])} in {folders[name].name}/" for name in columns)
            raise UsageError(
                f"The folder {path} has different numbers of .npy files for its inputs: {found}.",
                "Every input needs a file for every sample.",
            )
        for files in zip(*columns.values(), strict=True):
            arrays = dict(zip(columns, map(numpy_file, files), strict=True))
            yield self._table(" and ".join(map(str, files)), arrays)

    def _of_images(self, path: Path, images: Sequence[Path]) -> Iterator[_Table]:
        """Yield a table for every batch of images."""
        how = image_preprocessing(self._inputs, self._images, self._model)
        spare = len(images) % how.batch
        if spare == len(images):
            raise UsageError(
                f"{path} has {spare} image{'s' * (spare != 1)}, but the model takes {how.batch} at "
                "once.",
                "Give more images, or fix the model's batch later: qdqtune shapes.",
            )
        if spare:
            self._warn(f"the last {spare} images don't fill a batch of {how.batch}: left out")
        for start in range(0, len(images) - spare, how.batch):
            stored = image_batch(images[start : start + how.batch], how)
            yield self._table(stored.label, {self._names[0]: stored})

    def _of_test_set(self, folder: Path) -> _Table:
        """Read ONNX's own test data: tensors in the order of the inputs."""
        arrays = {
            name: tensor_file(folder / f"input_{number}.pb")
            for number, name in enumerate(self._names)
        }
        return self._table(str(folder), arrays, split_open=False)


def _others(folder: Path) -> str:
    """Say which endings the files in a folder without data have."""
    endings = Counter(file.suffix for file in folder.iterdir() if file.is_file())
    if not endings:
        return ""
    count, known = endings.total(), [each for each, _ in endings.most_common(_MOST_ENDINGS) if each]
    named = f" ({', '.join(known)})" if known else ""
    files = "1 file with another ending" if count == 1 else f"{count} files with other endings"
    *most, last = IMAGE_SUFFIXES[::2]
    return f", but {files}{named}; of images, {', '.join(most)} and {last} are read"


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
            f"{where} has {type(value).__name__} for the input {name!r}, which is not an array.",
            "Give numpy arrays of numbers.",
        )
    return array


class SampleSet:
    """Samples that can be read any number of times, one at a time.

    Args:
        label: Their source, for reports.
        inputs: The model's inputs.
        read: Starts to read them.
        count: Number of samples; None if it is not known before they have been read once.

    Attributes:
        count: Number of samples, if known.
        first: The first sample.

    Raises:
        UsageError: If there are none, or the first does not fit the model.
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
        # The first pass continues from here, since a user's code may be slow to start.
        self._begun: Iterator[Feeds] | None = itertools.chain([self.first], reading)

    def __iter__(self) -> Iterator[Feeds]:
        begun, self._begun = self._begun, None
        done = 0
        for feeds in begun if begun is not None else self._read():
            yield feeds
            done += 1
        if not done:
            raise UsageError(
                f"{self._label} returned samples the first time, and none this time.",
                "Let it make a new iterator whenever it is called.",
            )
        self.count = done

    def __length_hint__(self) -> int:
        return NotImplemented if self.count is None else self.count

    def describe(self) -> str:
        """Describe the number of samples, if known, and where they come from."""
        if self.count is None:
            return f"samples from {self._label}"
        return f"{self.count} sample{'s' * (self.count != 1)} from {self._label}"


def open_samples(
    source: Any,
    inputs: Sequence[ExpectedInput],
    *,
    limit: int | None = None,
    images: ImageConfig | None = None,
    model: Path | None = None,
) -> SampleSet:
    """Open calibration data, and check what can be checked without reading all of it.

    For files, that is every shape and type; for samples from code, the first one. The rest is
    checked as it is read.

    Args:
        source: An `.npz` or `.npy` file, an image, a folder of either, `module:function` or
            `file.py:function`; or a Python object: arrays, an iterable, a function without
            arguments, or a reader with `get_next()`. Samples that can be iterated over only once
            are kept in temporary files.
        inputs: The model's inputs.
        limit: Maximum number of samples.
        images: How images are prepared.
        model: The model's file, which a preprocessor file may lie beside.

    Raises:
        UsageError: If the data does not fit the model.
    """
    if not inputs:
        raise UsageError(
            "The model has no inputs, so there is nothing to feed.", "Leave the data out."
        )
    if limit is not None and limit < 1:
        raise UsageError(f"The model can't be run on {limit} samples.", "Take at least one.")
    reader = _Reader(inputs, images, model)
    if isinstance(source, (str, os.PathLike)) and not _names_function(os.fspath(source)):
        tables = list(_enough(reader.tables_in(_existing(Path(source))), limit))
        count = sum(table.samples for table in tables)
        return SampleSet(
            str(source),
            inputs,
            lambda: itertools.islice(reader.feeds(tables), limit),
            count if limit is None else min(count, limit),
        )
    user, again = _user_samples(source)

    def read() -> Iterator[Feeds]:
        return itertools.islice(reader.feeds(reader.tables_of(user)), limit)

    known = None
    if _is_stack(source):
        count = sum(table.samples for table in reader.tables_of(user))
        known = count if limit is None else min(count, limit)
    return SampleSet(user.label, inputs, read if again else _Spool(read()).__iter__, known)


class _Spool:
    """Stores samples that can be read only once in files, as they are read."""

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


def _enough(tables: Iterable[_Table], limit: int | None) -> Iterator[_Table]:
    """Yield no more tables than needed, so that the remaining files are not opened."""
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
    hint = "Give an .npz or .npy file, a folder of them or of images, or loader.py:samples."
    raise UsageError(f"There is no file or folder {path}.", did_you_mean(path) or hint)


def _is_stack(source: Any) -> bool:
    """Whether these are arrays that contain all samples."""
    return isinstance(source, Mapping) or hasattr(source, "__array__")


def _user_samples(source: Any) -> tuple[UserFunction, bool]:
    """Return the user's code as a function, and whether it can be called more than once."""
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
