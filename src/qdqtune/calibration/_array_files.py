"""Arrays in files or in memory: the shape first, then the values one sample at a time.

Each format is one function, which reads no more than shape and type and returns a `StoredArray`.
"""

from __future__ import annotations

import contextlib
import io
import math
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import onnx
from onnx import numpy_helper

from qdqtune.calibration._expected_inputs import Layout
from qdqtune.qdq._encoding import Array
from qdqtune.records._errors import LimitError, UsageError
from qdqtune.records._untrusted_files import open_plain, read_bytes, size_in_words

_BLOCK_BYTES = 128 << 20
_CHUNK_BYTES = 16 << 20
_MOST_BYTES = 4 << 30  # 32 blocks, each of which takes a pass over the file
_SAMPLE_BYTES = 1 << 30

# For each version of the format: its header parser, and the size of the header's length field.
_HEADERS = {
    (1, 0): (np.lib.format.read_array_header_1_0, 2),
    (2, 0): (np.lib.format.read_array_header_2_0, 4),
}
_HEADER_BYTES = 10_000  # numpy's own limit, which it applies only after reading

_OpenFile = Callable[[], AbstractContextManager[IO[bytes]]]


@dataclass(frozen=True)
class StoredArray:
    """An array in a file or in memory.

    Attributes:
        label: Its location, for messages.
        shape: Its shape.
        dtype: Its element type.
        samples: Reads it, one sample at a time.
    """

    label: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    samples: Callable[[Layout], Iterator[Array]]


def memory_array(label: str, array: Array) -> StoredArray:
    """Wrap an array in memory; samples are views of it."""
    return StoredArray(label, array.shape, array.dtype, partial(_slices, array))


def _slices(array: Array, layout: Layout) -> Iterator[Array]:
    for number in range(layout.samples):
        rows = layout.rows
        part = array if rows is None else array[number * rows : (number + 1) * rows]
        yield part.reshape(layout.shape)


def tensor_file(path: Path) -> StoredArray:
    """Open a file with a `TensorProto`, as in ONNX's own test data.

    Raises:
        UsageError: If it is not one.
    """

    def samples(layout: Layout) -> Iterator[Array]:
        with _readable(str(path)):
            array = numpy_helper.to_array(_parse_tensor(path))
        yield from _slices(array, layout)

    with _readable(str(path)):
        tensor = _parse_tensor(path)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return StoredArray(str(path), tuple(tensor.dims), dtype, samples)


def _parse_tensor(path: Path) -> onnx.TensorProto:
    tensor: onnx.TensorProto = onnx.TensorProto.FromString(read_bytes(path, _SAMPLE_BYTES))
    if tensor.data_type == onnx.TensorProto.UNDEFINED:
        raise ValueError("it holds no tensor")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise ValueError("its values are in another file")
    return tensor


def numpy_file(path: Path) -> StoredArray:
    """Open a `.npy` file.

    Raises:
        UsageError: If it is not one, holds Python objects, or is cut off.
    """
    with _readable(str(path)), open_plain(path) as file:
        return _numpy_array(str(path), partial(open_plain, path), file, path.stat().st_size)


def numpy_entries(path: Path) -> dict[str, StoredArray]:
    """Return the arrays of an `.npz` file by name.

    Raises:
        UsageError: If it is not such a file.
    """
    found = {}
    with _readable(str(path)), open_plain(path) as file, zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if name != entry.filename:
                label = f"{path}[{name!r}]"
                reopen = partial(_open_entry, path, entry.filename)
                with _readable(label), archive.open(entry) as member:
                    found[name] = _numpy_array(label, reopen, member, entry.file_size)
    return found


@contextlib.contextmanager
def _open_entry(path: Path, entry: str) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(path) as archive, archive.open(entry) as member:
        yield member


def _numpy_array(label: str, reopen: _OpenFile, file: IO[bytes], file_bytes: int) -> StoredArray:
    """Open an array in numpy's format.

    Args:
        label: Its location, for messages.
        reopen: Opens its file again.
        file: The file, positioned at its beginning.
        file_bytes: Size of the file.
    """
    shape, fortran_order, dtype = _read_header(file, label)
    array_bytes = math.prod(shape) * dtype.itemsize
    if file_bytes - file.tell() < array_bytes:
        raise UsageError(
            f"{label} is cut off: it holds less than its header says.", "Save it again."
        )

    @contextlib.contextmanager
    def open_values() -> Iterator[IO[bytes]]:
        with reopen() as again:
            _read_header(again, label)
            yield again

    def samples(layout: Layout) -> Iterator[Array]:
        size = math.prod(layout.shape) * dtype.itemsize
        if size > _SAMPLE_BYTES:
            raise LimitError(
                f"One sample in {label} has {size_in_words(size)}; samples are read up to "
                f"{size_in_words(_SAMPLE_BYTES)}.",
                "Save samples of the size that the model gets in use.",
            )
        with _readable(label):
            if layout.rows is not None and fortran_order:
                yield from column_major_samples(label, open_values, shape, dtype, layout)
                return
            with open_values() as values:
                if layout.rows is None:
                    flat = np.frombuffer(_read_exactly(values, array_bytes), dtype)
                    order: Literal["F", "C"] = "F" if fortran_order else "C"
                    yield from _slices(flat.reshape(shape, order=order), layout)
                    return
                for _ in range(layout.samples):
                    flat = np.frombuffer(_read_exactly(values, size), dtype)
                    yield flat.reshape(layout.shape)

    return StoredArray(label, shape, dtype, samples)


def _read_header(file: IO[bytes], label: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:  # only structured types need another one
        raise ValueError("it is not a plain array")
    read_header, bytes_of_length = _HEADERS[version]
    length = file.read(bytes_of_length)
    if int.from_bytes(length, "little") > _HEADER_BYTES:
        raise ValueError(f"its header has more than {_HEADER_BYTES:,} bytes")
    header = file.read(int.from_bytes(length, "little"))
    try:
        shape, fortran_order, dtype = read_header(io.BytesIO(length + header))
    except MemoryError:  # Python's parser has its own stack limit
        raise ValueError("its header is nested too deeply") from None
    if min(shape, default=0) < 0:
        raise ValueError(f"its header says that its shape is {list(shape)}")
    if dtype.hasobject:
        raise UsageError(
            f"{label} holds pickled Python objects, which are never loaded.",
            "Save arrays of numbers; stack arrays of one shape with np.stack.",
        )
    return shape, fortran_order, dtype


def column_major_samples(
    label: str,
    open_values: _OpenFile,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    layout: Layout,
) -> Iterator[Array]:
    """Read samples one after the other.

    Args:
        label: Their location, for messages.
        open_values: Opens the file at the start of the values.
        shape: The shape of the array.
        dtype: The type of its elements.
        layout: How it divides into samples along its first axis.

    Raises:
        LimitError: If the array is too large to be read in this many passes.
        EOFError: If the file ends too early.
    """
    size = math.prod(shape) * dtype.itemsize
    if size > _MOST_BYTES:
        raise LimitError(
            f"{label} is stored in column-major order and has {size_in_words(size)}; in this order "
            f"up to {size_in_words(_MOST_BYTES)} are read.",
            "Save it in row-major order, which has no limit: np.save(path, "
            "np.ascontiguousarray(array)).",
        )
    rows = layout.rows or shape[0]
    width = math.prod(shape[1:])
    per_block = rows * max(1, _BLOCK_BYTES // max(1, rows * width * dtype.itemsize))
    for first in range(0, layout.samples * rows, per_block):
        last = min(first + per_block, layout.samples * rows)
        with open_values() as file:
            block = _read_rows(file, shape[0], width, dtype, first, last)
        for start in range(0, last - first, rows):
            columns = block[start : start + rows].reshape(rows, *shape[:0:-1])
            sample = columns.transpose(0, *range(len(shape) - 1, 0, -1)).reshape(layout.shape)
            yield sample.copy()  # a view would keep the block
        del block, columns, sample  # before the next one is read


def _read_exactly(file: IO[bytes], size: int) -> bytes:
    """Read as many bytes as expected.

    Raises:
        EOFError: If there are fewer.
    """
    content = file.read(size)
    if len(content) < size:
        raise EOFError("it ends in the middle of a sample")
    return content


def _read_rows(
    file: IO[bytes], height: int, width: int, dtype: np.dtype[Any], first: int, last: int
) -> Array:
    """Return some rows of a matrix that is stored column by column."""
    rows = np.empty((last - first, width), dtype)
    column_bytes = height * dtype.itemsize
    at_once = _CHUNK_BYTES // max(1, column_bytes)
    for left in range(0, width, max(1, at_once)):
        if at_once:
            count = min(at_once, width - left)
            values = np.frombuffer(_read_exactly(file, count * column_bytes), dtype)
            rows[:, left : left + count] = values.reshape(count, height)[:, first:last].T
        else:  # one column is larger than a chunk
            file.seek(first * dtype.itemsize, 1)
            values = np.frombuffer(_read_exactly(file, (last - first) * dtype.itemsize), dtype)
            rows[:, left] = values
            file.seek((height - last) * dtype.itemsize, 1)
    return rows


@contextlib.contextmanager
def _readable(label: str) -> Iterator[None]:
    try:
        yield
    except (UsageError, MemoryError):
        raise
    except Exception as error:
        # Parsers raise various exceptions on damaged files: numpy a TokenError or TypeError,
        # zipfile an LZMAError, onnx a KeyError.
        reason = str(error).strip().splitlines()
        raise UsageError(
            f"{label} can't be read: {reason[0] if reason else type(error).__name__}.",
            "Files are to be written with np.save, np.savez or np.savez_compressed.",
        ) from None
