"""Arrays as users keep them, in files or in memory: shape first, values one sample at a time.

Nothing is ever unpickled. Files are read from front to back, so that a stack of any size takes the
memory of one sample, compressed or not.
"""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from qdqtune.calibration.layout import Layout
from qdqtune.records.errors import UsageError

Array = npt.NDArray[Any]

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class StoredArray(Protocol):
    """An array that is somewhere."""

    @property
    def label(self) -> str:
        """Where it is, for people."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its element type."""
        ...

    def samples(self, layout: Layout) -> Iterator[Array]:
        """Its samples, one at a time."""
        ...


@dataclass(frozen=True)
class MemoryArray:
    """An array in memory."""

    label: str
    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its element type."""
        return self.array.dtype

    def samples(self, layout: Layout) -> Iterator[Array]:
        """Views of the array."""
        for number in range(layout.samples):
            rows = layout.rows
            part = self.array if rows is None else self.array[number * rows : (number + 1) * rows]
            yield part.reshape(layout.shape)


@dataclass(frozen=True)
class NumpyFile:
    """A `.npy` file, or an entry of an `.npz` file; made with `numpy_file`."""

    path: Path
    entry: str | None
    label: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool

    def samples(self, layout: Layout) -> Iterator[Array]:
        """Read samples one after the other."""
        with _readable(self.label), _open(self.path, self.entry) as file:
            if self.fortran_order or layout.rows is None:
                # Samples of a column-major array are scattered over the whole file.
                array = np.lib.format.read_array(file, allow_pickle=False)
                yield from MemoryArray(self.label, array).samples(layout)
                return
            _read_header(file, self.label)
            size = math.prod(layout.shape) * self.dtype.itemsize
            for _ in range(layout.samples):
                values = np.frombuffer(_read(file, size), self.dtype)
                yield values.reshape(layout.shape)


@dataclass(frozen=True)
class TensorFile:
    """A `TensorProto` in a file, as ONNX's own test data has them; made with `tensor_file`."""

    path: Path
    label: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def samples(self, layout: Layout) -> Iterator[Array]:
        """Read the tensor."""
        with _readable(self.label):
            array = numpy_helper.to_array(_parse_tensor(self.path))
        yield from MemoryArray(self.label, array).samples(layout)


def numpy_file(path: Path, entry: str | None = None) -> NumpyFile:
    """Read the header of a `.npy` file or of an `.npz` file's entry.

    Raises:
        UsageError: If it is not one, holds Python objects, or is cut off.
    """
    label = str(path) if entry is None else f"{path}[{entry.removesuffix('.npy')!r}]"
    with _readable(label), _open(path, entry) as file:
        shape, fortran_order, dtype = _read_header(file, label)
        have = _size(path, entry) - file.tell()
    if have < math.prod(shape) * dtype.itemsize:
        raise _cut_off(label)
    return NumpyFile(path, entry, label, shape, dtype, fortran_order)


def numpy_entries(path: Path) -> dict[str, NumpyFile]:
    """The arrays of an `.npz` file by name; their headers are read, their values not.

    Raises:
        UsageError: If it is no such file.
    """
    with _readable(str(path)), zipfile.ZipFile(path) as archive:
        entries = [name for name in archive.namelist() if name.endswith(".npy")]
    return {entry.removesuffix(".npy"): numpy_file(path, entry) for entry in entries}


def tensor_file(path: Path) -> TensorFile:
    """Read shape and type of a tensor file.

    Raises:
        UsageError: If it is none.
    """
    with _readable(str(path)):
        tensor = _parse_tensor(path)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return TensorFile(path, str(path), tuple(tensor.dims), dtype)


def _parse_tensor(path: Path) -> onnx.TensorProto:
    tensor: onnx.TensorProto = onnx.TensorProto.FromString(path.read_bytes())
    if tensor.data_type == onnx.TensorProto.UNDEFINED:
        raise ValueError("it holds no tensor")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise ValueError("its values are in another file")
    return tensor


def _read_header(file: IO[bytes], label: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:  # only structured types need another one
        raise ValueError("it is not a plain array")
    shape, fortran_order, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise UsageError(
            f"{label} holds pickled Python objects, which are never loaded.",
            "Save arrays of numbers; stack arrays of one shape with np.stack.",
        )
    return shape, fortran_order, dtype


def _read(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError("it ends in the middle of a sample")
    return data


@contextlib.contextmanager
def _open(path: Path, entry: str | None) -> Iterator[IO[bytes]]:
    if entry is None:
        with path.open("rb") as file:
            yield file
    else:
        with zipfile.ZipFile(path) as archive, archive.open(entry) as member:
            yield member


def _size(path: Path, entry: str | None) -> int:
    if entry is None:
        return path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        return archive.getinfo(entry).file_size


def _cut_off(label: str) -> UsageError:
    return UsageError(f"{label} is cut off: it holds less than its header says.", "Save it again.")


@contextlib.contextmanager
def _readable(label: str) -> Iterator[None]:
    try:
        yield
    except (UsageError, MemoryError):
        raise
    except Exception as error:
        # Readers of damaged files raise whatever they trip over: numpy a TokenError or TypeError,
        # zipfile an LZMAError, onnx a KeyError.
        reason = str(error).strip().splitlines()
        raise UsageError(
            f"{label} can't be read: {reason[0] if reason else type(error).__name__}.",
            "Files are to be written with np.save, np.savez or np.savez_compressed.",
        ) from None
