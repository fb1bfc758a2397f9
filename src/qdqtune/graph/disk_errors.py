"""What the system says when a file can't be written, in words that a user can act on."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from qdqtune.graph.temporary_dir import temporary_place
from qdqtune.records.errors import OutputError
from qdqtune.records.untrusted_files import real_path

_ROOM = "Check that the disk has room and the folder can be written to."
REMOVE = "Remove it, or choose another place."
"""What to do about something that is in the way."""
_NEXT_TO_NOTHING = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class NotPlainFileError(OSError):
    """Where a file is expected, there is a link, a folder, a pipe, a socket or a device.

    Args:
        path: The place.
        kind: What is there, with its article.
    """

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(errno.EINVAL, f"it is {kind}, not a plain file", str(path))


class DiskError(OutputError):
    """The system can't write a file.

    Args:
        error: What the system said.
        target: The file or folder that was written to.

    Attributes:
        number: The system's number of the error; None if it is not known.
        target: As given.
    """

    def __init__(self, error: OSError, target: Path) -> None:
        if error.errno is None and _free_bytes(target) < _NEXT_TO_NOTHING:
            # numpy tells a full disk without the system's reason.
            error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        why = error.strerror or "not all of it could be written"
        hint = REMOVE if isinstance(error, NotPlainFileError) else _advice(error.errno, target)
        super().__init__(f"{target} could not be written: {why}.", hint)
        self.number = error.errno
        self.target = target

    @property
    def is_full(self) -> bool:
        """Whether there was no room, which is the fault of nothing that was tried."""
        return self.number in (None, *_FULL)


@contextlib.contextmanager
def writing(target: Path) -> Iterator[None]:
    """Name the file if the system can't write it, and say what to do.

    Raises:
        OutputError: If it can't be written.
    """
    try:
        yield
    except OSError as error:
        raise DiskError(error, target) from None


def full_disk(error: Exception, default: Path) -> DiskError | None:
    """What an error says about a full disk; None if it is about something else.

    Args:
        error: Any error; native libraries have only its text.
        default: What is named if the error names no file.
    """
    if isinstance(error, DiskError):
        return error if error.is_full else None
    if isinstance(error, OSError) and error.errno in _FULL:
        return DiskError(error, Path(error.filename or default))
    if os.strerror(errno.ENOSPC) in str(error):
        return DiskError(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), default)
    return None


def _advice(number: int | None, target: Path) -> str:
    folder = _folder(target)
    elsewhere = (
        "set TMPDIR to a folder on another disk"
        if real_path(temporary_place()) in (real_path(folder), *real_path(folder).parents)
        else "write to another disk"
    )
    if number == errno.ENOSPC or number is None:
        free_mb = _free_bytes(target) / 1e6
        return f"{folder} has {free_mb:.1f} MB left. Free some space, or {elsewhere}."
    if number == errno.EDQUOT:
        return f"Your quota for {folder} is used up. Remove files there, or {elsewhere}."
    if number == errno.EFBIG:
        return "It exceeds the largest size of a file: see `ulimit -f` and the file system's limit."
    if number == errno.EIO:
        return f"The disk of {folder} reports an error. Check it, or {elsewhere}."
    return _ROOM


def _folder(target: Path) -> Path:
    """The folder that a file would be in, or the next one above that is there."""
    return next(each for each in (target, *target.absolute().parents) if each.is_dir())


def _free_bytes(target: Path) -> int:
    return shutil.disk_usage(_folder(target)).free
