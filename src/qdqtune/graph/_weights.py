"""Weights and other constants: read in chunks, converted, stored in a file that models share."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from qdqtune.graph._atomic_files import make_own, open_to_append, writing
from qdqtune.graph._file_tensor import FileTensor
from qdqtune.graph._op_classes import is_op
from qdqtune.records._untrusted_files import open_plain, read_bytes

DIGEST_BYTES = 16
"""Size of all digests of models and weights."""
WEIGHTS_FILE = "weights.bin"
WEIGHTS_INDEX = "weights.index"

# Small tensors stay inside the model: engines read shapes and scalars while loading.
_INLINE_BYTES = 128
# Large ones start on a page, so that they can be mapped instead of read.
_PAGE = 4096
# Bytes processed at a time; a few copies of it may be in memory.
_SLAB_BYTES = 1 << 24
_INDEX_WORDS = 3
# More digits than the size of any file.
_MOST_DIGITS = 18

# Ops that preserve the numbers of a constant.
_TRANSPARENT = ("Cast", "CastLike", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze")
# No exporter writes longer chains; querying each node of a chain of 100,000 would take minutes.
_MOST_IN_A_ROW = 32
# Smaller tensors are converted at once, larger ones when they are written.
_LAZY_BYTES = 1 << 12


def values_of(tensor: ir.TensorProtocol) -> npt.NDArray[Any]:
    """Return a tensor's values; external ones are in memory only while the array is."""
    return (FileTensor.of(tensor) if isinstance(tensor, ir.ExternalTensor) else tensor).numpy()


def chunks_of(tensor: ir.TensorProtocol) -> Iterator[npt.NDArray[Any]]:
    """Yield a tensor's values in order, in flat chunks of bounded size."""
    if isinstance(tensor, ir.ExternalTensor) and tensor.dtype.bitwidth >= 8:
        kind = np.dtype(tensor.dtype.numpy()).newbyteorder("<")
        for chunk in FileTensor.of(tensor).chunks():
            yield np.frombuffer(chunk, kind)
    else:
        values = values_of(tensor)
        for slab in slabs(values):
            yield values[slab]


def bytes_of(tensor: ir.TensorProtocol) -> Iterator[bytes]:
    """Yield a tensor's bytes as files store them; one from a file is never all in memory."""
    if isinstance(tensor, ir.ExternalTensor):
        yield from FileTensor.of(tensor).chunks()
    elif tensor.dtype.bitwidth < 8:  # several elements per byte
        yield tensor.tobytes()
    else:
        for chunk in chunks_of(tensor):  # a transposed view takes minutes unless it is copied
            yield ir.Tensor(np.ascontiguousarray(chunk), tensor.dtype).tobytes()


def slabs(values: npt.NDArray[Any]) -> Iterator[tuple[slice, ...]]:
    """Split an array into parts of bounded size, to be processed one by one.

    Yields:
        Indices of the parts, in order. They run along the first axis that has more than one
        element, so that they are contiguous in memory.
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
    """Appends tensors to a file and returns references to them.

    Tensors of an earlier run are reused: an index next to the file says where to look, and the
    bytes there are compared before they are trusted. Existing bytes never change, so that models
    written by that run stay valid.

    Args:
        folder: The folder of the candidates; external data must be next to the model.
        file_name: Name of the file.
        keep_index: Whether later runs can reuse what this one writes.
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
        """Return a proto that refers to the tensor; its values are written on the first call.

        Args:
            key: Identifies the values; a known key is answered without reading them.
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
        """Return the reference as a tensor, which holds only small values; see `reference`."""
        found = ir.serde.deserialize_tensor(self.reference(key, name, tensor), self.folder)
        return FileTensor.of(found) if isinstance(found, ir.ExternalTensor) else found

    def digest_of(self, proto: onnx.TensorProto) -> bytes | None:
        """Return the digest of a tensor's bytes as written or verified in this run.

        Args:
            proto: A result of `reference`, or a copy of it.

        Returns:
            The digest; None if it refers to another file, or no index is kept.
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
        """Return the offset of a tensor's bytes in the file; appends them if they are new."""
        if self._index_file is None:
            return self._added(tensor)
        checksum, digest = 0, hashlib.blake2b(digest_size=DIGEST_BYTES)
        for chunk in bytes_of(tensor):
            checksum = zlib.crc32(chunk, checksum)
            digest.update(chunk)
        key = (tensor.nbytes, checksum)
        known = self._index.setdefault(key, [])
        offset = next((each for each in known if self._is_there(tensor, each)), None)
        if offset is None:
            offset = self._added(tensor)
            known.append(offset)
            with writing(self._index_file), open_to_append(self._index_file) as index:
                index.write(f"{offset} {key[0]} {key[1]}\n".encode())
        self._digests[offset, tensor.nbytes] = digest.digest()
        return offset

    def _added(self, tensor: ir.TensorProtocol) -> int:
        """Append a tensor's bytes to the file; returns their offset."""
        alignment = _PAGE if tensor.nbytes >= _PAGE else 64
        offset = -(-self._end // alignment) * alignment
        with writing(self._file), self._file.open("r+b") as file:
            file.seek(offset)
            file.writelines(bytes_of(tensor))
            self._end = file.tell()
        return offset

    def _read_index(self) -> dict[tuple[int, int], list[int]]:
        """Return candidate offsets of tensors, by length and checksum."""
        found: dict[tuple[int, int], list[int]] = {}
        if self._index_file is not None:
            for offset, length, checksum in _index_lines(self._index_file):
                found.setdefault((length, checksum), []).append(offset)
        return found

    def _is_there(self, tensor: ir.TensorProtocol, offset: int) -> bool:
        """Whether the file contains exactly this tensor at an offset."""
        with open_plain(self._file) as file:
            file.seek(offset)
            return all(file.read(len(chunk)) == chunk for chunk in bytes_of(tensor))


def indexed_checksums(weights_file: Path) -> dict[tuple[int, int], set[int]]:
    """Read the checksums in the index of a weights file.

    Args:
        weights_file: The weights.

    Returns:
        CRC-32 checksums by offset and length; several if a damaged tensor was written again.
    """
    found: dict[tuple[int, int], set[int]] = {}
    for offset, length, checksum in _index_lines(weights_file.with_suffix(".index")):
        found.setdefault((offset, length), set()).add(checksum)
    return found


def _index_lines(file: Path) -> Iterator[tuple[int, int, int]]:
    """Yield offset, length and checksum of each tensor; invalid lines are skipped."""
    for line in read_bytes(file).splitlines() if file.is_file() else ():
        words = [word for word in line.split() if word.isdigit() and len(word) <= _MOST_DIGITS]
        if len(words) == _INDEX_WORDS:
            offset, length, checksum = map(int, words)
            yield offset, length, checksum


@dataclass(frozen=True)
class Magnitudes:
    """The range of magnitudes in a constant.

    Attributes:
        size: Number of elements.
        least: The smallest magnitude that is not zero; infinite if there is none.
        most: The largest finite magnitude; zero if there is none.
        lowest: The smallest finite number that is negative; zero if there is none.
    """

    size: int
    least: float
    most: float
    lowest: float


def constant_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer or a Constant node; None for anything that can vary."""
    if value is None or value.is_graph_input():
        return None
    producer = value.producer()
    if producer is None:
        return value.const_value
    is_constant = is_op(producer, "Constant") and len(producer.attributes) == 1
    return ir.convenience.get_const_tensor(value) if is_constant else None


def value_behind(value: ir.Value | None, *through: str) -> ir.Value | None:
    """Return the value before a chain of these ops; None if it is left out."""
    for _ in range(_MOST_IN_A_ROW):
        producer = value.producer() if value is not None else None
        if producer is None or not is_op(producer, *through):
            break
        value = producer.inputs[0]
    return value


def constant_behind(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the constant behind the Reshapes and Casts that exporters apply to constants."""
    return constant_of(value_behind(value, *_TRANSPARENT))


def is_small(tensor: ir.TensorProtocol, most_bytes: int) -> bool:
    """Whether a tensor takes few bytes; models may have very many that do.

    Args:
        tensor: The tensor.
        most_bytes: The limit; of tensors in a model file, what they take there counts.
    """
    if isinstance(tensor, ir.TensorProtoTensor):
        return bool(tensor.raw.ByteSize() <= most_bytes)
    return tensor.nbytes <= most_bytes


def unread_weights(graph: ir.Graph) -> list[ir.Value]:
    """Return weights that no node or body reads, and that are neither inputs nor outputs."""
    return [
        value
        for value in graph.initializers.values()
        if not (value.uses() or value.is_graph_output() or value.is_graph_input())
    ]


def magnitudes(tensor: ir.TensorProtocol) -> Magnitudes:
    """Compute the magnitudes of a float tensor, a chunk at a time."""
    least, most, lowest = math.inf, 0.0, 0.0
    for chunk in chunks_of(tensor):
        numbers = np.asarray(chunk).astype(np.float32)
        finite = numbers[np.isfinite(numbers)]
        sizes = np.abs(finite)
        least = min(least, float(np.min(sizes, where=sizes > 0, initial=math.inf)))
        most = max(most, float(np.max(sizes, initial=0.0)))
        lowest = min(lowest, float(np.min(finite, initial=0.0)))
    return Magnitudes(tensor.size, least, most, lowest)


def retyped(tensor: ir.TensorProtocol, dtype: ir.DataType, name: str | None) -> ir.TensorProtocol:
    """Return the tensor in another float type; finite values stay finite.

    A large tensor is converted each time its values are read, so that a model in two types does
    not take the memory of both.
    """

    def make() -> ir.TensorProtocol:
        return ir.Tensor(_cast(values_of(tensor), dtype), dtype, name=name)

    if tensor.nbytes <= _LAZY_BYTES:
        return make()
    return ir.LazyTensor(make, dtype, ir.Shape(tensor.shape.numpy()), name=name)


def _cast(numbers: npt.NDArray[np.generic], dtype: ir.DataType) -> npt.NDArray[np.generic]:
    limit = float(dtype.max)
    wide = numbers.astype(np.float32)
    finite = np.clip(wide, -limit, limit)
    with np.errstate(under="ignore"):
        return np.where(np.isinf(wide), wide, finite).astype(dtype.numpy())
