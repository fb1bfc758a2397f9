"""Weights on their way between files, a chunk at a time: a model may be larger than the memory.

One weights file lies beside all candidates of a model, so that a candidate is a small file.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from qdqtune.graph.atomic_files import make_own, open_to_append, writing
from qdqtune.graph.file_digest import DIGEST_BYTES
from qdqtune.graph.file_tensor import FileTensor
from qdqtune.records.untrusted_files import open_plain, read_bytes

WEIGHTS_FILE = "weights.bin"
WEIGHTS_INDEX = "weights.index"

# Small tensors stay inside the model: engines read shapes and scalars while they load.
_INLINE_BYTES = 128
# Large ones start on a page, so that they can be mapped instead of read.
_PAGE = 4096
# What is worked on at once; a few copies of it may be in memory.
_SLAB_BYTES = 1 << 24
_INDEX_WORDS = 3
# More digits than the size of any file.
_MOST_DIGITS = 18


def values_of(tensor: ir.TensorProtocol) -> npt.NDArray[Any]:
    """A tensor's values; what lies in a file is in memory only as long as the array is."""
    return (FileTensor.of(tensor) if isinstance(tensor, ir.ExternalTensor) else tensor).numpy()


def chunks_of(tensor: ir.TensorProtocol) -> Iterator[npt.NDArray[Any]]:
    """A tensor's values in order, a part of bounded size at a time; what shape it has is lost."""
    if isinstance(tensor, ir.ExternalTensor) and tensor.dtype.bitwidth >= 8:
        kind = np.dtype(tensor.dtype.numpy()).newbyteorder("<")
        for chunk in FileTensor.of(tensor).chunks():
            yield np.frombuffer(chunk, kind)
    else:
        values = values_of(tensor)
        for slab in slabs(values):
            yield values[slab]


def slabs(values: npt.NDArray[Any]) -> Iterator[tuple[slice, ...]]:
    """Cut an array into parts of bounded size, to be worked on one after the other.

    Yields:
        Indices of the parts, in order. They run along the first axis that has more than one
        element, so that they are neighbours in memory.
    """
    axis = next((axis for axis, dim in enumerate(values.shape) if dim > 1), None)
    if axis is None:
        yield ()
        return
    count = values.shape[axis]
    step = max(1, count * _SLAB_BYTES // max(values.nbytes, 1))
    for start in range(0, count, step):
        yield (*([slice(None)] * axis), slice(start, start + step))


class WeightStore:
    """Appends tensors to a file and hands out references to them.

    What an earlier run wrote is found again: an index beside the file tells where to look, and what
    is there is compared before it is trusted. Nothing in the file is ever changed, so that models
    written by that run stay what they are.

    Args:
        folder: Where candidates are written; external data must lie beside the model.
        file_name: The file.
        keep_index: Whether later runs are to find what this one writes.
    """

    def __init__(
        self, folder: Path, file_name: str = WEIGHTS_FILE, *, keep_index: bool = False
    ) -> None:
        self.folder = folder
        self._file = folder / file_name
        with writing(self._file):
            make_own(self._file)
            self._file.touch()
        self._end = self._file.stat().st_size
        self._known: dict[Hashable, onnx.TensorProto] = {}
        self._digests: dict[tuple[int, int], bytes] = {}
        self._index_file = self._file.with_suffix(".index") if keep_index else None
        self._index = self._read_index()

    def reference(self, key: Hashable, name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
        """A proto that stands for the tensor; its values are written when first asked for.

        Args:
            key: What identifies the values; a known key is answered without looking at them.
            name: The initializer's name.
            tensor: The values.
        """
        if key not in self._known:
            if tensor.dtype == ir.DataType.STRING:
                self._known[key] = ir.serde.serialize_tensor(tensor)
            elif tensor.nbytes <= _INLINE_BYTES:
                inline = ir.Tensor(values_of(tensor), tensor.dtype, name=name)
                self._known[key] = ir.serde.serialize_tensor(inline)
            else:
                self._known[key] = self._append(name, tensor)
        return self._known[key]

    def stored(self, key: Hashable, name: str, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """The same as a tensor, which holds no values but small ones; see `reference`."""
        found = ir.serde.deserialize_tensor(self.reference(key, name, tensor), self.folder)
        return FileTensor.of(found) if isinstance(found, ir.ExternalTensor) else found

    def digest_of(self, proto: onnx.TensorProto) -> bytes | None:
        """The digest of a tensor's bytes as they were given, or found to be, in this run.

        Args:
            proto: What `reference` has handed out, or a copy of it.

        Returns:
            None if it is of another file, or no index is kept.
        """
        entries = {entry.key: entry.value for entry in proto.external_data}
        if entries.get("location") != self._file.name:
            return None
        return self._digests.get((int(entries["offset"]), int(entries["length"])))

    def _append(self, name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
        offset = self._place_of(tensor)
        proto = onnx.TensorProto(
            name=name,
            data_type=tensor.dtype.value,
            dims=tensor.shape.numpy(),
            data_location=onnx.TensorProto.EXTERNAL,
        )
        facts = {"location": self._file.name, "offset": offset, "length": tensor.nbytes}
        for key, value in facts.items():
            proto.external_data.add(key=key, value=str(value))
        return proto

    def _place_of(self, tensor: ir.TensorProtocol) -> int:
        """Where a tensor's bytes lie in the file; they are added if they don't."""
        if self._index_file is None:
            return self._added(tensor)
        sums = _Summing()
        _write(tensor, sums)
        key = (tensor.nbytes, sums.checksum)
        known = self._index.setdefault(key, [])
        offset = next((each for each in known if self._is_there(tensor, each)), None)
        if offset is None:
            offset = self._added(tensor)
            known.append(offset)
            with writing(self._index_file), open_to_append(self._index_file) as index:
                index.write(f"{offset} {key[0]} {key[1]}\n".encode())
        self._digests[offset, tensor.nbytes] = sums.digest.digest()
        return offset

    def _added(self, tensor: ir.TensorProtocol) -> int:
        """Write a tensor's bytes to the end of the file; returns where that was."""
        alignment = _PAGE if tensor.nbytes >= _PAGE else 64
        offset = -(-self._end // alignment) * alignment
        with writing(self._file), self._file.open("r+b") as file:
            file.seek(offset)
            _write(tensor, file)
            self._end = file.tell()
        return offset

    def _read_index(self) -> dict[tuple[int, int], list[int]]:
        """Where tensors may lie, by length and checksum."""
        found: dict[tuple[int, int], list[int]] = {}
        if self._index_file is not None:
            for offset, length, checksum in _index_lines(self._index_file):
                found.setdefault((length, checksum), []).append(offset)
        return found

    def _is_there(self, tensor: ir.TensorProtocol, offset: int) -> bool:
        """Whether an earlier run wrote just this there."""
        with open_plain(self._file) as file:
            file.seek(offset)
            try:
                _write(tensor, _Comparing(file))
            except _Different:
                return False
        return True


def indexed_checksums(weights_file: Path) -> dict[tuple[int, int], set[int]]:
    """What the index beside a weights file says of the bytes in it.

    Args:
        weights_file: The weights.

    Returns:
        CRC-32 checksums by offset and length; several if a damaged tensor was written anew.
    """
    found: dict[tuple[int, int], set[int]] = {}
    for offset, length, checksum in _index_lines(weights_file.with_suffix(".index")):
        found.setdefault((offset, length), set()).add(checksum)
    return found


def _index_lines(file: Path) -> Iterator[tuple[int, int, int]]:
    """Offset, length and checksum of each tensor; a line that makes no sense is nothing."""
    for line in read_bytes(file).splitlines() if file.is_file() else ():
        words = [word for word in line.split() if word.isdigit() and len(word) <= _MOST_DIGITS]
        if len(words) == _INDEX_WORDS:
            offset, length, checksum = map(int, words)
            yield offset, length, checksum


class _Different(Exception):
    """The bytes are not those that were expected."""


class _Comparing:
    """Looks like a file that is written to, and compares with one that is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, chunk: bytes) -> int:
        if self._file.read(len(chunk)) != chunk:
            raise _Different
        return len(chunk)


class _Summing:
    """Looks like a file that is written to, and keeps a checksum and a digest."""

    def __init__(self) -> None:
        self.checksum = 0
        self.digest = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def write(self, chunk: bytes) -> int:
        self.checksum = zlib.crc32(chunk, self.checksum)
        self.digest.update(chunk)
        return len(chunk)


def _write(tensor: ir.TensorProtocol, file: BinaryIO | _Comparing | _Summing) -> None:
    """Write a tensor's bytes; from one file to another, they are never all in memory."""
    if isinstance(tensor, ir.ExternalTensor):
        FileTensor.of(tensor).tofile(file)  # type: ignore[arg-type]
        return
    values = tensor.numpy()
    if values.flags.c_contiguous or tensor.dtype.bitwidth < 8:
        ir.Tensor(values, tensor.dtype).tofile(file)
        return
    for slab in slabs(values):  # a transposed view: element by element it would take minutes
        ir.Tensor(np.ascontiguousarray(values[slab]), tensor.dtype).tofile(file)
