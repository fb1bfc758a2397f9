"""A digest of a model's file and of the weights that it refers to, wherever they lie."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import onnx

from qdqtune.graph.external import check_external_data
from qdqtune.graph.parsing import parse_model
from qdqtune.graph.proto_walk import contents
from qdqtune.records.errors import ModelError

DIGEST_BYTES = 16
"""Size of all digests here."""

_CHUNK = 1 << 20


def model_digest(
    model_file: Path, known: Callable[[onnx.TensorProto], bytes | None] = lambda _: None
) -> str:
    """A digest that changes with any byte of a model, weights in other files included.

    Where in those files the weights lie makes no difference: a store that was repaired has them
    in other places.

    Args:
        model_file: The model.
        known: Tells the digest of a tensor's bytes in another file if that is known; else the
            bytes are read.

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
    """The digest of a tensor's bytes in a file beside its model.

    Raises:
        ModelError: If they can't be read.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    read_stored(tensor, model_file, digest.update)
    return digest.digest()


def read_stored(
    tensor: onnx.TensorProto, model_file: Path, take: Callable[[bytes], object]
) -> None:
    """Read a tensor's bytes from a file beside its model, a piece at a time.

    Args:
        tensor: The tensor.
        model_file: The model.
        take: Given the pieces.

    Raises:
        ModelError: If they can't be read.
    """
    check_external_data([tensor], model_file)
    entries = {entry.key: entry.value for entry in tensor.external_data}
    file = model_file.absolute().parent / entries["location"]
    offset = int(entries.get("offset", "0"))
    left = int(entries.get("length", file.stat().st_size - offset))
    try:
        with file.open("rb") as opened:
            opened.seek(offset)
            while left and (chunk := opened.read(min(left, _CHUNK))):
                take(chunk)
                left -= len(chunk)
    except OSError as error:
        raise ModelError(
            f"{file} can't be read: {error.strerror}.", "Check its permissions and the disk."
        ) from None
