"""Converts a model with external weights into one that contains them.

Every weight is copied only once, from its file to its place: models are large, and there are many
candidates.
"""

from __future__ import annotations

import io
from pathlib import Path

import onnx
import onnx_ir as ir

from qdqtune.graph.file_tensor import FileTensor
from qdqtune.graph.protobuf_wire import field_head


def external_bytes(variant: bytes) -> int:
    """Return the number of bytes of a serialized model's weights that are external.

    Args:
        variant: The model, as `PreparedModel.assemble` writes it.
    """
    proto = onnx.ModelProto.FromString(variant)
    return sum(_place(tensor)[2] for tensor in proto.graph.initializer if _is_external(tensor))


def inlined(variant: bytes, folder: Path) -> bytes:
    """Return the serialized model with its weights inside.

    Args:
        variant: The model, as `PreparedModel.assemble` writes it; it is below 2 GB.
        folder: The folder of the files with its weights.
    """
    proto = onnx.ModelProto.FromString(variant)
    weights = [_initializer(each, folder) for each in proto.graph.initializer if _is_external(each)]
    small = [tensor for tensor in proto.graph.initializer if not _is_external(tensor)]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(small)
    rest = proto.graph.SerializeToString()
    proto.ClearField("graph")
    length = len(rest) + sum(len(head) + tensor.nbytes for head, tensor in weights)
    whole = io.BytesIO()
    whole.write(proto.SerializeToString() + field_head(onnx.ModelProto, "graph", length) + rest)
    for head, tensor in weights:
        whole.write(head)
        tensor.tofile(whole)
    return whole.getvalue()


def _initializer(tensor: onnx.TensorProto, folder: Path) -> tuple[bytes, FileTensor]:
    """Return a weight as part of a graph: the bytes before its values, and the values."""
    values = FileTensor.of(ir.ExternalTensor(
        *_place(tensor), ir.DataType(tensor.data_type), shape=ir.Shape(tensor.dims),
        name=tensor.name, base_dir=folder,
    ))  # fmt: skip
    bare = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    start = bare.SerializeToString() + field_head(onnx.TensorProto, "raw_data", values.nbytes)
    return field_head(onnx.GraphProto, "initializer", len(start) + values.nbytes) + start, values


def _is_external(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _place(tensor: onnx.TensorProto) -> tuple[str, int, int]:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return entries["location"], int(entries["offset"]), int(entries["length"])
