"""Samples of an array that is stored column by column, in bounded memory.

A sample is scattered over the whole of such a file. So the file is read from front to back once
for each block of samples that fits into memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from qdqtune.calibration.sample_layout import Layout
from qdqtune.records.errors import LimitError
from qdqtune.records.untrusted_files import size_in_words

_BLOCK_BYTES = 128 << 20
_CHUNK_BYTES = 16 << 20
_MOST_BYTES = 4 << 30  # 32 blocks: the file is read as often


def column_major_samples(
    label: str,
    open_values: Callable[[], AbstractContextManager[IO[bytes]]],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    layout: Layout,
) -> Iterator[npt.NDArray[Any]]:
    """Read samples one after the other.

    Args:
        label: Where they are, for people.
        open_values: Opens the file where the values begin.
        shape: The shape of the array.
        dtype: The type of its elements.
        layout: How it divides into samples along its first axis.

    Raises:
        LimitError: If the array is too large to be read that often.
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


def read_exactly(file: IO[bytes], size: int) -> bytes:
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
) -> npt.NDArray[Any]:
    """Some rows of a matrix that is stored column by column."""
    rows = np.empty((last - first, width), dtype)
    column_bytes = height * dtype.itemsize
    at_once = _CHUNK_BYTES // max(1, column_bytes)
    for left in range(0, width, max(1, at_once)):
        if at_once:
            count = min(at_once, width - left)
            values = np.frombuffer(read_exactly(file, count * column_bytes), dtype)
            rows[:, left : left + count] = values.reshape(count, height)[:, first:last].T
        else:  # one column is more than a chunk
            file.seek(first * dtype.itemsize, 1)
            values = np.frombuffer(read_exactly(file, (last - first) * dtype.itemsize), dtype)
            rows[:, left] = values
            file.seek((height - last) * dtype.itemsize, 1)
    return rows
