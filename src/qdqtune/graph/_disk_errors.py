"""Write errors of the operating system as messages that a user can act on."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from qdqtune.records._errors import OutputError
from qdqtune.records._untrusted_files import real_path

_VARIABLES = ("TMPDIR", "TEMP", "TMP")
_USUAL = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108  (names in there are random and private)

_ROOM = "Check that the disk has room and the folder can be written to."
REMOVE = "Remove it, or choose another place."
"""Advice for when something else is at the path."""
_NEXT_TO_NOTHING = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def temporary_place() -> Path:
    """Return the folder that `tempfile` would choose.

    `tempfile` tests folders by writing a file into them, which remains if the process is killed.
    """
    if tempfile.tempdir is not None:
        return Path(os.fsdecode(tempfile.tempdir))
    named = filter(None, map(os.environ.get, _VARIABLES))
    for folder in (*named, *_USUAL):
        if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            return Path(folder).absolute()
    return Path.cwd()


class NotPlainFileError(OSError):
    """A link, folder, pipe, socket or device is where a regular file is expected.

    Args:
        path: The path.
        kind: What is there, with its article.
    """

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(errno.EINVAL, f"it is {kind}, not a plain file", str(path))


class DiskError(OutputError):
    """The system can't write a file.

    Args:
        error: The system's error.
        target: The file or folder that was written to.

    Attributes:
        number: The system's errno; None if unknown.
        target: As passed.
    """

    def __init__(self, error: OSError, target: Path) -> None:
        if error.errno is None and _free_bytes(target) < _NEXT_TO_NOTHING:
            # numpy reports a full disk without the system's errno.
            error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        why = error.strerror or "not all of it could be written"
        hint = REMOVE if isinstance(error, NotPlainFileError) else _advice(error.errno, target)
        super().__init__(f"{target} could not be written: {why}.", hint)
        self.number = error.errno
        self.target = target

    @property
    def is_full(self) -> bool:
        """Whether the disk is full, which is not the fault of the model or the candidate."""
        return self.number in (None, *_FULL)


@contextlib.contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn write errors into errors that name the file and say what to do.

    Raises:
        OutputError: If it can't be written.
    """
    try:
        yield
    except OSError as error:
        raise DiskError(error, target) from None


def full_disk(error: Exception, default: Path) -> DiskError | None:
    """Return a `DiskError` if an error means that the disk is full, else None.

    Args:
        error: Any error; native libraries pass on only its text.
        default: The path to report if the error names no file.
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
    """Return the folder of a file, or its nearest existing ancestor."""
    return next(each for each in (target, *target.absolute().parents) if each.is_dir())


def _free_bytes(target: Path) -> int:
    return shutil.disk_usage(_folder(target)).free
