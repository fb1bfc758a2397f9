"""Weights on their way between files, a piece at a time: a model may be larger than the memory.

One weights file lies beside all candidates of a model, so that a candidate is a small file.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from qdqtune.graph.whole_files import writing

WEIGHTS_FILE = "weights.bin"

# Small tensors stay inside the model: engines read shapes and scalars while they load.
_INLINE_BYTES = 128
# Large ones start on a page, so that they can be mapped instead of read.
_PAGE = 4096
# What is worked on at once; a few copies of it may be in memory.
_SLAB_BYTES = 1 << 24


def values_of(tensor: ir.TensorProtocol) -> npt.NDArray[Any]:
    """A tensor's values; what lies in a file is in memory only as long as the array is.

    An external tensor would keep its file mapped after the first look, and with it in memory
    every page that was ever read.
    """
    return (_twin(tensor) if isinstance(tensor, ir.ExternalTensor) else tensor).numpy()


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

    A file that is there already, of an earlier run, is gone through first: as long as the same
    tensors come in the same order, they are found in it. Nothing in it is ever changed, so that
    models written by that run stay what they are.

    Args:
        folder: Where candidates are written; external data must lie beside the model.
        file_name: The file.
    """

    def __init__(self, folder: Path, file_name: str = WEIGHTS_FILE) -> None:
        self.folder = folder
        self._file = folder / file_name
        self._file.touch()
        self._size = self._file.stat().st_size
        self._end = 0
        self._known: dict[Hashable, onnx.TensorProto] = {}

    def reference(self, key: Hashable, name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
        """A proto that stands for the tensor; its values are written when first asked for.

        Args:
            key: What identifies the values; a known key is answered without looking at them.
            name: The initializer's name.
            tensor: The values.
        """
        if key not in self._known:
            if tensor.dtype == ir.DataType.STRING:
                self._known[key] = ir.to_proto(tensor)
            elif tensor.nbytes <= _INLINE_BYTES:
                inline = ir.Tensor(values_of(tensor), tensor.dtype, name=name)
                self._known[key] = ir.to_proto(inline)
            else:
                self._known[key] = self._append(name, tensor)
        return self._known[key]

    def stored(self, key: Hashable, name: str, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """The same as a tensor, which holds no values but small ones; see `reference`."""
        return ir.serde.deserialize_tensor(self.reference(key, name, tensor), self.folder)

    def _append(self, name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
        alignment = _PAGE if tensor.nbytes >= _PAGE else 64
        offset = _aligned(self._end, alignment)
        if self._is_there(tensor, offset):
            self._end = offset + tensor.nbytes
        else:
            offset = _aligned(max(self._end, self._size), alignment)
            with writing(self._file), self._file.open("r+b") as file:
                file.seek(offset)
                _write(tensor, file)
                self._end = file.tell()
        proto = onnx.TensorProto(
            name=name,
            data_type=tensor.dtype.value,
            dims=tensor.shape.numpy(),
            data_location=onnx.TensorProto.EXTERNAL,
        )
        length = self._end - offset
        for key, value in (("location", self._file.name), ("offset", offset), ("length", length)):
            proto.external_data.add(key=key, value=str(value))
        return proto

    def _is_there(self, tensor: ir.TensorProtocol, offset: int) -> bool:
        """Whether an earlier run wrote just this to where it is to go now."""
        if offset + tensor.nbytes > self._size:
            return False
        with self._file.open("rb") as file:
            file.seek(offset)
            try:
                _write(tensor, _Comparing(file))
            except _Different:
                return False
        return True


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


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _write(tensor: ir.TensorProtocol, file: BinaryIO | _Comparing) -> None:
    """Write a tensor's bytes; from one file to another they don't come into memory."""
    if isinstance(tensor, ir.ExternalTensor):
        _twin(tensor).tofile(file)
        return
    values = tensor.numpy()
    if values.flags.c_contiguous or tensor.dtype.bitwidth < 8:
        ir.Tensor(values, tensor.dtype).tofile(file)
        return
    for slab in slabs(values):  # a transposed view: element by element it would take minutes
        ir.Tensor(np.ascontiguousarray(values[slab]), tensor.dtype).tofile(file)


def _twin(tensor: ir.ExternalTensor) -> ir.ExternalTensor:
    """The same tensor, not yet mapped; a file may give it more room than it needs."""
    return ir.ExternalTensor(
        tensor.location,
        tensor.offset,
        tensor.nbytes,
        tensor.dtype,
        shape=tensor.shape,
        name=tensor.name or "",
        base_dir=tensor.base_dir,
    )
