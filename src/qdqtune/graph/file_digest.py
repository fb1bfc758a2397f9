"""Digest of a model file including its external weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx

from qdqtune.graph.external_data import check_external_data
from qdqtune.graph.file_tensor import stored_bytes
from qdqtune.graph.parsing import parse_model
from qdqtune.graph.proto_walk import contents

DIGEST_BYTES = 16
"""Size of all digests here."""


def model_digest(
    model_file: Path, known: Callable[[onnx.TensorProto], bytes | None] = lambda _: None
) -> str:
    """Return a digest that changes with any byte of a model, including external weights.

    The position of weights within their files does not matter: repairing a weight file moves them.

    Args:
        model_file: The model.
        known: Returns the digest of a tensor's external bytes if it is known; otherwise the bytes
            are read.

    Raises:
        ModelError: If the model or its weights can't be read.
    """
    proto = parse_model(model_file)
    for tensor in contents(proto).tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            digest = known(tensor)
            if digest is None:
                digest = stored_digest(tensor, model_file)
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = digest
    serialized = proto.SerializeToString(deterministic=True)
    return hashlib.blake2b(serialized, digest_size=DIGEST_BYTES).hexdigest()


def stored_digest(tensor: onnx.TensorProto, model_file: Path) -> bytes:
    """Return the digest of a tensor's bytes in an external file.

    Raises:
        ModelError: If they can't be read.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for chunk in stored_chunks(tensor, model_file):
        digest.update(chunk)
    return digest.digest()


def stored_chunks(tensor: onnx.TensorProto, model_file: Path) -> Iterator[bytes]:
    """Yield a tensor's bytes from an external file, a chunk at a time.

    Args:
        tensor: The tensor; if the file reserves more room than it needs, all of it is read.
        model_file: The model.

    Raises:
        ModelError: If they can't be read.
    """
    check_external_data([tensor], model_file)
    entries = {entry.key: entry.value for entry in tensor.external_data}
    file = model_file.absolute().parent / entries["location"]
    offset = int(entries.get("offset", "0"))
    length = int(entries.get("length", file.stat().st_size - offset))
    return stored_bytes(tensor.name, file, offset, length)
