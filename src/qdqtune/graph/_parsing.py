"""Parsing a file into a model's proto, and a digest of it that includes external weights."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from google.protobuf.message import DecodeError

from qdqtune.graph._external_data import check_external_data, is_lfs_pointer, stored_bytes
from qdqtune.graph._protobuf import contents, missing_bytes, nesting_depth
from qdqtune.records._errors import ModelError

if TYPE_CHECKING:
    import os


# Maximum size of a protobuf message, and maximum depth of nested messages.
_LARGEST_FILE = (1 << 31) - 1
_DEEPEST = 100

DIGEST_BYTES = 16
"""Size of all digests here."""


def parse_model(file: Path) -> onnx.ModelProto:
    """Read the proto of a model; external data is not loaded.

    Raises:
        ModelError: If there is no such file, or it is not an ONNX model, or it is empty.
    """
    _check_file(file)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from None
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(content)
    except DecodeError:
        if nesting_depth(onnx.ModelProto.DESCRIPTOR, content, enough=_DEEPEST) >= _DEEPEST:
            raise ModelError(
                f"{file} is nested too deeply: no reader of ONNX files follows more than "
                f"{_DEEPEST} messages inside each other, which is about 30 control-flow bodies.",
                "Export it with flatter control flow.",
            ) from None
        raise _not_onnx(file, content) from None
    if not content:
        raise ModelError(f"{file} is empty.", "Export the model, or copy the file, once more.")
    check_not_empty(proto, file)
    return proto


def check_not_empty(proto: onnx.ModelProto, file: Path) -> None:
    """Make sure that a model is not empty.

    Args:
        proto: The model.
        file: The model's file.

    Raises:
        ModelError: If it is empty.
    """
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError(
            f"{file} is not an ONNX file: it holds no graph.",
            "Copy it again if it may be incomplete; export to ONNX what is in another format.",
        )
    if not proto.graph.output:
        raise ModelError(
            f"{file} has no outputs: there is nothing that it could compute.",
            "Check how it was exported.",
        )
    if not proto.graph.node:
        raise ModelError(
            f"{file} has an empty graph: there is nothing to quantize or time.",
            "Check how it was exported.",
        )


def _check_file(file: Path) -> None:
    try:
        facts: os.stat_result = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(f"{file} does not exist.", "Check the path.") from None
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from None
    if stat.S_ISDIR(facts.st_mode):
        raise ModelError(f"{file} is a folder.", "Name the .onnx file in it.")
    if not stat.S_ISREG(facts.st_mode):
        raise ModelError(f"{file} is not a plain file.", "Save the model to one first.")
    if facts.st_size > _LARGEST_FILE:
        raise ModelError(
            f"{file} is larger than 2 GiB, which no ONNX file can be.",
            "Save it with external data: onnx.save(model, path, save_as_external_data=True).",
        )


def _not_onnx(file: Path, content: bytes) -> ModelError:
    if is_lfs_pointer(content):
        return ModelError(
            f"{file} is a Git LFS pointer, not the model itself.",
            "Get the model: git lfs pull, in the repository that the file is from.",
        )
    missing = missing_bytes(onnx.ModelProto.DESCRIPTOR, content)
    if missing:
        return ModelError(
            f"{file} is cut off: at least {missing} bytes of it are missing.",
            "Copy or download it again.",
        )
    return ModelError(
        f"{file} is not an ONNX file.",
        "Export to ONNX what is in another format; a file that was damaged must be copied again.",
    )


def _unreadable(file: Path, error: OSError | ValueError) -> ModelError:
    why = getattr(error, "strerror", None) or error
    return ModelError(f"{file} can't be read: {why}.", "Check its path and permissions.")


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
    for tensor in contents(proto).external:
        digest = known(tensor)
        tensor.raw_data = stored_digest(tensor, model_file) if digest is None else digest
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
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
