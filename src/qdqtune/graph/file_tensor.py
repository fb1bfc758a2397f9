"""Weights that lie in a file, read when somebody wants their values, and never mapped.

A file that is cut short while it is mapped ends the process that looks at it next, and nothing can
be said then; one that is read is found to be too short. Nor does a tensor keep what it has read: a
model may be larger than the memory.
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

# What is copied at once; a file is read no further than what is wanted.
_CHUNK_BYTES = 1 << 24


class FileTensor(ir.ExternalTensor):
    """A tensor in a file beside its model."""

    @classmethod
    def of(cls, tensor: ir.ExternalTensor) -> FileTensor:
        """The same tensor, read instead of mapped; a file may give it more room than it needs."""
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
        """The values; read-only, and nobody else's.

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
        """The values, for numpy; in another type if that is asked for."""
        return np.asarray(self.numpy(), dtype)

    def tobytes(self) -> bytes:
        """The bytes as they lie in the file.

        Raises:
            ModelError: As `numpy` does.
        """
        return self.first_bytes(self.nbytes)

    def first_bytes(self, size: int) -> bytes:
        """So many of the bytes, or all if there are fewer.

        Raises:
            ModelError: As `numpy` does.
        """
        wanted = min(size, self.nbytes)
        return next(self._chunks(wanted, wanted), b"")

    def tofile(self, file: BinaryIO) -> None:
        """Write the bytes to something that is written to like a file, a chunk at a time.

        Raises:
            ModelError: As `numpy` does.
        """
        for chunk in self.chunks():
            file.write(chunk)

    def chunks(self) -> Iterator[bytes]:
        """The bytes, a chunk at a time, each of whole elements.

        Raises:
            ModelError: As `numpy` does.
        """
        return self._chunks(self.nbytes, _CHUNK_BYTES)

    def _chunks(self, size: int, most: int) -> Iterator[bytes]:
        return stored_bytes(self.name or "", Path(self.path), self.offset or 0, size, most)


def stored_bytes(
    name: str, file: Path, offset: int, size: int, most: int = _CHUNK_BYTES
) -> Iterator[bytes]:
    """Read a weight's bytes, a chunk at a time, from a file that was looked at before.

    Args:
        name: The weight.
        file: Where it lies: plain, and beside its model, when the model was loaded.
        offset: Where it begins.
        size: How many bytes it has there.
        most: How many are read at once.

    Raises:
        ModelError: If the file can't be read any more, or is too short now.
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
    """Let all weights of a model that lie in files be read instead of mapped."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = FileTensor.of(value.const_value)
