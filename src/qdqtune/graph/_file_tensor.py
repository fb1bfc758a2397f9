"""Tensors whose values are in files next to the model, and are read on demand, never mapped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from qdqtune.graph._external_data import CHUNK_BYTES, stored_bytes
from qdqtune.graph._protobuf import Contents


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
        return next(self.chunks(self.nbytes), b"")

    def tofile(self, file: BinaryIO) -> None:
        """Write the bytes to a file-like object, a chunk at a time.

        Raises:
            ModelError: As `numpy` does.
        """
        for chunk in self.chunks():
            file.write(chunk)

    def chunks(self, most: int = CHUNK_BYTES) -> Iterator[bytes]:
        """Yield the bytes in chunks of `most` bytes, which are whole elements.

        Raises:
            ModelError: As `numpy` does.
        """
        return stored_bytes(self.name or "", Path(self.path), self.offset or 0, self.nbytes, most)


def read_weights(model: ir.Model) -> None:
    """Make all external weights of a model read on demand instead of mapped."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = FileTensor.of(value.const_value)


def load_attributes(found: Contents, model_file: Path) -> None:
    """Load the external data of attributes: only weights can be relocated after a change.

    Args:
        found: A model's contents, checked.
        model_file: The model's file.
    """
    for tensor in found.in_attributes:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            values = ir.serde.deserialize_tensor(tensor, model_file.absolute().parent)
            assert isinstance(values, ir.ExternalTensor)  # by its data_location
            tensor.raw_data = FileTensor.of(values).tobytes()
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
