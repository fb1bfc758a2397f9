"""What the system says when a file can't be written, in words that a user can act on."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from qdqtune.graph.temporary_place import temporary_place
from qdqtune.records.errors import OutputError
from qdqtune.records.reading import real_path

_ROOM = "Check that the disk has room and the folder can be written to."
REMOVE = "Remove it, or choose another place."
"""What to do about something that is in the way."""


class NotPlainFileError(OSError):
    """Where a file is expected, there is a link, a folder, a pipe, a socket or a device.

    Args:
        path: The place.
        kind: What is there, with its article.
    """

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(errno.EINVAL, f"it is {kind}, not a plain file", str(path))


@contextlib.contextmanager
def writing(target: Path) -> Iterator[None]:
    """Name the file if the system can't write it, and say what to do.

    Raises:
        OutputError: If it can't be written.
    """
    try:
        yield
    except OSError as error:
        raise output_error(error, target) from None


def output_error(error: OSError, target: Path) -> OutputError:
    """The error that tells a user what the system told us.

    Args:
        error: What the system said.
        target: The file or folder that was written to.
    """
    # numpy tells a full disk without the system's reason.
    why = error.strerror or "not all of it could be written"
    if isinstance(error, NotPlainFileError):
        return OutputError(f"{target} could not be written: {why}.", REMOVE)
    return OutputError(f"{target} could not be written: {why}.", _advice(error.errno, target))


def _advice(number: int | None, target: Path) -> str:
    folder = next(each for each in (target, *target.absolute().parents) if each.is_dir())
    elsewhere = (
        "set TMPDIR to a folder on another disk"
        if real_path(temporary_place()) in (real_path(folder), *real_path(folder).parents)
        else "write to another disk"
    )
    if number == errno.ENOSPC or number is None:
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(folder).free
            return f"{folder} has {free / 1e6:.1f} MB left. Free some space, or {elsewhere}."
    if number == errno.EDQUOT:
        return f"Your quota for {folder} is used up. Remove files there, or {elsewhere}."
    if number == errno.EFBIG:
        return "It exceeds the largest size of a file: see `ulimit -f` and the file system's limit."
    if number == errno.EIO:
        return f"The disk of {folder} reports an error. Check it, or {elsewhere}."
    return _ROOM


def is_full(error: OSError) -> bool:
    """Whether there was no room for what was written; then it is nobody's fault but the disk's."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
