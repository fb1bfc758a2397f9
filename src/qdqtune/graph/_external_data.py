"""External data: weights in files next to the model. Checks them, and reads their bytes.

Engines use this in their workers, so it does not import onnx_ir, which imports sympy: 0.3 s and
36 MB in each process.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from qdqtune.graph._protobuf import contents, stored_size
from qdqtune.records._errors import ModelError
from qdqtune.records._untrusted_files import open_plain, real_path, size_text
from qdqtune.resources import current_limits

# Bytes copied at a time; a file is read no further than needed.
CHUNK_BYTES = 1 << 24

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
# Some parsers take any key as the name of an attribute to set.
_KEYS = frozenset({"location", "offset", "length", "checksum"})
_MOST_DIGITS = 19
_SMALL_BYTES = 16 << 20


def stored_bytes(
    name: str, file: Path, offset: int, size: int, most: int = CHUNK_BYTES
) -> Iterator[bytes]:
    """Yield a weight's bytes, a chunk at a time, from a file that was checked before.

    Args:
        name: The weight.
        file: Its file: a regular file next to the model when the model was loaded.
        offset: Its position in the file.
        size: Its number of bytes in the file.
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


def check_external_data(tensors: Iterable[onnx.TensorProto], model_file: Path) -> None:
    """Check every external data reference; unknown keys are dropped.

    Raises:
        ModelError: If weights are missing, too short, or not in the model's folder.
    """
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check(tensor, model_file)
        elif tensor.external_data:
            tensor.ClearField("external_data")


def is_small(model_file: Path) -> bool:
    """Whether a model is small, including the files that hold its weights."""
    try:
        size = model_file.stat().st_size
        if size <= _SMALL_BYTES and b"location" in model_file.read_bytes():  # of external data
            size += sum(file.stat().st_size for file in external_files(model_file))
    except OSError:
        return False
    return size <= _SMALL_BYTES


def external_files(model_file: Path) -> set[Path]:
    """Return the files that hold a model's weights; empty if the model can't be read."""
    if not model_file.is_file():  # opening a pipe would block
        return set()
    try:
        proto = onnx.load(str(model_file), load_external_data=False)
    except Exception:  # the next reader of the model reports the error
        return set()
    folder = model_file.absolute().parent
    return {
        real_path(folder / entry.value)
        for tensor in contents(proto).external
        for entry in tensor.external_data
        if entry.key == "location" and "\0" not in entry.value
    }


def model_bytes(model_file: Path) -> int:
    """Return the size of a model including its external weights, as far as the files exist."""
    files = {real_path(model_file), *external_files(model_file)}
    return sum(file.stat().st_size for file in files if file.is_file())


def _check(tensor: onnx.TensorProto, model_file: Path) -> None:
    entries = _entries(tensor, model_file)
    location = entries.get("location", "")
    what = f"{model_file}: the weight {tensor.name!r} lies in {location!r}"
    folder = model_file.absolute().parent
    size = _file_size(location, folder, what)
    try:
        needed = stored_size(tensor)
        offset = _number(entries.get("offset", "0"))
        length = _number(entries.get("length", str(needed)))
    except ValueError:
        raise ModelError(
            f"{what}, with a broken type, offset or length.", "Export the model again."
        ) from None
    if min(tensor.dims, default=0) < 0 or length < needed:
        raise ModelError(
            f"{what}, where {length} bytes are its own; its shape {list(tensor.dims)} does not fit "
            "that.",
            "Export the model again.",
        )
    limit = current_limits().memory_bytes
    if limit is not None and needed > limit:
        raise ModelError(
            f"{what} and takes {size_text(needed)}, which is more than the memory that may be used "
            f"({size_text(limit)}; --max_memory).",
            "Use a machine with more memory, or split the weight.",
        )
    if offset + length > size and is_lfs_pointer(_beginning(folder / location)):
        raise ModelError(
            f"{what}, which is a Git LFS pointer, not the weights themselves.",
            "Get the file: git lfs pull, in the repository that it is from.",
        )
    if offset + length > size:
        raise ModelError(
            f"{what}, but that file ends before it.", "The file is truncated: copy it again."
        )


def is_lfs_pointer(content: bytes) -> bool:
    """Whether a file with this start is a Git LFS pointer whose content was not fetched."""
    return content.startswith(_LFS_POINTER)


def _beginning(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(len(_LFS_POINTER))


def _entries(tensor: onnx.TensorProto, model_file: Path) -> dict[str, str]:
    known = [(entry.key, entry.value) for entry in tensor.external_data if entry.key in _KEYS]
    entries = dict(known)
    if len(entries) < len(known):
        raise ModelError(
            f"{model_file}: the weight {tensor.name!r} lies in more than one place.",
            "Export the model again.",
        )
    if len(known) < len(tensor.external_data):
        del tensor.external_data[:]
        for key, value in known:
            tensor.external_data.add(key=key, value=value)
    return entries


def _file_size(location: str, folder: Path, what: str) -> int:
    if not location or "\0" in location:
        raise ModelError(f"{what}, which is not a file name.", "Export the model again.")
    file = folder / location
    if not _stays_inside(location) or not real_path(file).is_relative_to(real_path(folder)):
        raise ModelError(
            f"{what}, which is outside the model's folder.",
            "External data must lie beside the model, as a relative path.",
        )
    try:
        facts = file.lstat()
    except OSError:
        raise ModelError(
            f"{what}, and that file is missing.", f"Put it into {folder}, beside the model."
        ) from None
    parents = list(Path(location).parents)[:-1]
    is_linked = facts.st_nlink > 1 or any((folder / parent).is_symlink() for parent in parents)
    if not stat.S_ISREG(facts.st_mode) and not stat.S_ISLNK(facts.st_mode):
        raise ModelError(f"{what}, which is not a file.", "Put the file of the weights there.")
    if stat.S_ISLNK(facts.st_mode) or is_linked:
        raise ModelError(
            f"{what}, which is a link, not a plain file.",
            "Copy the file there: a link could lead to any file of this machine.",
        )
    return facts.st_size


def _stays_inside(location: str) -> bool:
    """Whether a path is relative and never goes up, on any operating system."""
    return not any(
        path.is_absolute() or path.drive or ".." in path.parts
        for path in (PurePosixPath(location), PureWindowsPath(location))
    )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise ValueError(text)
    return int(text)
