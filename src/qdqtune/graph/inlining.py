"""From a model whose weights lie in a file beside it to one that holds them itself.

Every weight is copied once, from the file to its place: models are large, and candidates many.
"""

from __future__ import annotations

import mmap
from contextlib import ExitStack
from pathlib import Path

import onnx

from qdqtune.graph.wire import field_head


def external_bytes(variant: bytes) -> int:
    """How many bytes of a serialized model's weights lie in files.

    Args:
        variant: The model, as `PreparedModel.assemble` writes it.
    """
    proto = onnx.ModelProto.FromString(variant)
    return sum(_place(tensor)[2] for tensor in proto.graph.initializer if _is_external(tensor))


def inlined(variant: bytes, folder: Path) -> bytes:
    """The same model, serialized, with its weights inside.

    Args:
        variant: The model, as `PreparedModel.assemble` writes it; it is below 2 GB.
        folder: Where the files with its weights lie.
    """
    proto = onnx.ModelProto.FromString(variant)
    weights = [tensor for tensor in proto.graph.initializer if _is_external(tensor)]
    parts: list[bytes | memoryview] = []
    with ExitStack() as stack:
        files: dict[str, memoryview] = {}
        for tensor in weights:
            location, offset, length = _place(tensor)
            if location not in files:
                files[location] = _mapped(folder / location, stack)
            values = stack.enter_context(files[location][offset : offset + length])
            parts += _initializer(tensor, values)
        small = [tensor for tensor in proto.graph.initializer if not _is_external(tensor)]
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(small)
        parts.insert(0, proto.graph.SerializeToString())
        proto.ClearField("graph")
        length = sum(map(len, parts))
        head = field_head(onnx.ModelProto, "graph", length)
        return b"".join((proto.SerializeToString(), head, *parts))


def _initializer(tensor: onnx.TensorProto, values: memoryview) -> list[bytes | memoryview]:
    """A weight as a part of a graph."""
    bare = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    start = bare.SerializeToString() + field_head(onnx.TensorProto, "raw_data", len(values))
    head = field_head(onnx.GraphProto, "initializer", len(start) + len(values))
    return [head, start, values]


def _mapped(file: Path, stack: ExitStack) -> memoryview:
    opened = stack.enter_context(file.open("rb"))
    area = stack.enter_context(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    return stack.enter_context(memoryview(area))


def _is_external(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _place(tensor: onnx.TensorProto) -> tuple[str, int, int]:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return entries["location"], int(entries["offset"]), int(entries["length"])
