"""One weights file beside all candidates of a model, so that a candidate is a small file."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

import onnx
import onnx_ir as ir

WEIGHTS_FILE = "weights.bin"

# Small tensors stay inside the model: engines read shapes and scalars while they load.
_INLINE_BYTES = 128
# Large ones start on a page, so that they can be mapped instead of read.
_PAGE = 4096


class WeightStore:
    """Appends tensors to a file and hands out references to them.

    Args:
        folder: Where candidates are written; external data must lie beside the model.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / WEIGHTS_FILE
        self._file.touch()
        self._end = self._file.stat().st_size
        self._known: dict[Hashable, onnx.TensorProto] = {}

    def reference(self, key: Hashable, name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
        """A proto that stands for the tensor; its values are written when first asked for.

        Args:
            key: What identifies the values; a known key is answered without looking at them.
            name: The initializer's name.
            tensor: The values.
        """
        if key not in self._known:
            if tensor.nbytes <= _INLINE_BYTES or tensor.dtype == ir.DataType.STRING:
                inline = ir.Tensor(tensor.numpy(), tensor.dtype, name=name)
                self._known[key] = ir.to_proto(inline)
            else:
                self._known[key] = self._append(name, tensor)
        return self._known[key]

    def _append(self, name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
        alignment = _PAGE if tensor.nbytes >= _PAGE else 64
        offset = -(-self._end // alignment) * alignment
        with self._file.open("r+b") as file:
            file.seek(offset)
            written = file.write(tensor.tobytes())
        self._end = offset + written
        proto = onnx.TensorProto(
            name=name,
            data_type=tensor.dtype.value,
            dims=list(tensor.numpy().shape),
            data_location=onnx.TensorProto.EXTERNAL,
        )
        for key, value in (("location", WEIGHTS_FILE), ("offset", offset), ("length", written)):
            proto.external_data.add(key=key, value=str(value))
        return proto
