"""Arrays that are stored column by column are read in bounded memory."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from qdqtune.calibration import _array_files as column_major
from qdqtune.calibration._array_files import column_major_samples, numpy_entries, numpy_file
from qdqtune.calibration._expected_inputs import Layout
from qdqtune.records._errors import UsageError


class _Watched(io.BytesIO):
    """A file that knows the largest part that was read of it at once."""

    largest = 0

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        _Watched.largest = max(_Watched.largest, len(content))
        return content


@pytest.mark.parametrize("chunk_bytes", [1, 64, 1 << 20])
@pytest.mark.parametrize("block_bytes", [1, 200, 1 << 20])
@pytest.mark.parametrize(
    ("shape", "rows"), [((7, 3, 2), 1), ((7, 3, 2, 5), 2), ((9,), 1), ((4, 1), 4), ((3, 0, 2), 1)]
)
def test_samples_are_those_of_the_array_and_little_is_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, ...],
    rows: int,
    block_bytes: int,
    chunk_bytes: int,
) -> None:
    monkeypatch.setattr(column_major, "_BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(column_major, "_CHUNK_BYTES", chunk_bytes)
    array = np.arange(math.prod(shape), dtype=np.int16).reshape(shape)
    samples = shape[0] // rows
    stored = array.tobytes(order="F")
    opened = []

    @contextmanager
    def open_values() -> Iterator[IO[bytes]]:
        opened.append(_Watched(stored))
        yield opened[-1]

    _Watched.largest = 0
    layout = Layout(samples, rows, (rows, *shape[1:]))
    found = list(column_major_samples("x", open_values, shape, array.dtype, layout))
    assert len(found) == samples
    for number, sample in enumerate(found):
        assert np.array_equal(sample, array[number * rows : (number + 1) * rows])
    sample_bytes = array[:rows].nbytes
    assert _Watched.largest <= max(chunk_bytes, block_bytes, rows * array.itemsize)
    assert len(opened) == math.ceil(samples / max(1, block_bytes // max(1, sample_bytes)))


def _sparse(path: Path, shape: tuple[int, ...], *, fortran: bool) -> Path:
    with path.open("wb") as file:
        what = {"descr": "<f4", "fortran_order": fortran, "shape": shape}
        np.lib.format.write_array_header_1_0(file, what)
        file.truncate(file.tell() + 4 * math.prod(shape))
    return path


def test_what_is_too_large_is_refused_with_how_to_save_it(tmp_path: Path) -> None:
    file = numpy_file(_sparse(tmp_path / "x.npy", (1 << 30, 4), fortran=True))
    with pytest.raises(UsageError, match=r"column-major .* 16,384 MB; .* 4,096 MB") as error:
        next(file.samples(Layout(1 << 30, 1, (1, 4))))
    assert "np.ascontiguousarray" in error.value.hint


def test_in_row_major_order_the_same_has_no_limit(tmp_path: Path) -> None:
    file = numpy_file(_sparse(tmp_path / "x.npy", (1 << 30, 4), fortran=False))
    assert next(file.samples(Layout(1 << 30, 1, (1, 4)))).shape == (1, 4)


def test_a_sample_has_a_limit(tmp_path: Path) -> None:
    file = numpy_file(_sparse(tmp_path / "x.npy", (1 << 30, 4), fortran=False))
    with pytest.raises(UsageError, match=r"One sample in .* 16,384 MB; .* up to 1,024 MB"):
        next(file.samples(Layout(1, None, (1 << 30, 4))))


def test_headers_have_a_limit_and_are_not_read_beyond(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "x.npy", b"\x93NUMPY\x02\x00" + (1 << 25).to_bytes(4, "little") + b" " * (1 << 25)
        )
    with pytest.raises(UsageError, match=r"header has more than 10,000 bytes"):
        numpy_entries(path)


def test_an_archive_is_opened_once_for_all_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, **{f"a{number}": np.zeros(2) for number in range(300)})
    opened = []
    original = zipfile.ZipFile.__init__
    monkeypatch.setattr(
        zipfile.ZipFile,
        "__init__",
        lambda self, *given, **named: (opened.append(1), original(self, *given, **named))[1],
    )
    assert len(numpy_entries(path)) == 300
    assert len(opened) == 1
