"""Weights in files that are read on demand and never memory-mapped.

If a mapped file is truncated, the next access kills the process without a message; a file that is
read is found to be too short. A tensor does not cache what it has read: a model may be larger than
the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from qdqtune.records.errors import ModelError
from qdqtune.records.untrusted_files import open_plain

# Bytes copied at a time; a file is read no further than needed.
_CHUNK_BYTES = 1 << 24


class FileTensor(ir.ExternalTensor):
    """A tensor in an external file of its model."""

    @classmethod
    def of(cls, tensor: ir.ExternalTensor) -> FileTensor:
        """Convert a mapped tensor; a file may reserve more room than the tensor needs."""
        return cls(
            tensor.location,
            tensor.offset,
            tensor.nbytes,
            tensor.dtype,
            shape=tensor.shape,
            name=tensor.name or "",
            doc_string=tensor.doc_string,
            base_dir=tensor.base_dir,
        )

    def numpy(self) -> npt.NDArray[Any]:
        """Return the values as a new, read-only array.

        Raises:
            ModelError: If the file has changed since the model was loaded, and is too short now.
        """
        dims = self.shape.numpy()
        if self.dtype.bitwidth < 8:  # several to a byte
            kind = self.dtype.value
            packed = onnx.TensorProto(data_type=kind, dims=dims, raw_data=self.tobytes())
            return ir.TensorProtoTensor(packed).numpy()
        kind = np.dtype(self.dtype.numpy()).newbyteorder("<")
        values: npt.NDArray[Any] = np.frombuffer(self.tobytes(), kind).reshape(dims)
        return values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the values for numpy, in another type if requested."""
        return np.asarray(self.numpy(), dtype)

    def tobytes(self) -> bytes:
        """Return the bytes as stored in the file.

        Raises:
            ModelError: As `numpy` does.
        """
        return self.first_bytes(self.nbytes)

    def first_bytes(self, size: int) -> bytes:
        """Return the first `size` bytes, or all if there are fewer.

        Raises:
            ModelError: As `numpy` does.
        """
        wanted = min(size, self.nbytes)
        return next(self._chunks(wanted, wanted), b"")

    def tofile(self, file: BinaryIO) -> None:
        """Write the bytes to a file-like object, a chunk at a time.

        Raises:
            ModelError: As `numpy` does.
        """
        for chunk in self.chunks():
            file.write(chunk)

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in chunks of whole elements.

        Raises:
            ModelError: As `numpy` does.
        """
        return self._chunks(self.nbytes, _CHUNK_BYTES)

    def _chunks(self, size: int, most: int) -> Iterator[bytes]:
        return stored_bytes(self.name or "", Path(self.path), self.offset or 0, size, most)


def stored_bytes(
    name: str, file: Path, offset: int, size: int, most: int = _CHUNK_BYTES
) -> Iterator[bytes]:
    """Yield a weight's bytes, a chunk at a time, from a file that was checked before.

    Args:
        name: The weight.
        file: Its file: a regular file next to the model when the model was loaded.
        offset: Where it begins.
        size: Its number of bytes there.
        most: Number of bytes to read at a time.

    Raises:
        ModelError: If the file can't be read any more, or has become too short.
    """
    if size == 0:
        return
    try:
        with open_plain(file, linked=False) as opened:
            opened.seek(offset)
            while size:
                chunk = opened.read(min(most, size))
                if len(chunk) < min(most, size):
                    raise EOFError
                size -= len(chunk)
                yield chunk
    except (OSError, EOFError) as error:
        happened = "ends before it" if isinstance(error, EOFError) else "can't be read"
        raise ModelError(
            f"The weight {name!r} lies in {file}, but that file {happened} now.",
            "It was changed while it was in use: copy it again, and start anew.",
        ) from None


def read_weights(model: ir.Model) -> None:
    """Make all external weights of a model read on demand instead of mapped."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = FileTensor.of(value.const_value)
