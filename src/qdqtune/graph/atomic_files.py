"""Files that are whole or not there, and that are nobody else's.

What lies at a path may have been put there by a stranger. A link is replaced and never written
through, a file with a second name is copied before it is added to, and nothing waits at a pipe.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from qdqtune.graph.disk_errors import REMOVE, NotPlainFileError
from qdqtune.graph.disk_errors import writing as writing
from qdqtune.graph.temporary_files import temporary_file
from qdqtune.records.errors import OutputError
from qdqtune.records.untrusted_files import open_plain

_CHUNK = 1 << 20


def kind_at(path: Path) -> str:
    """What is at a path, if it is no plain file: empty if it is one, or if nothing is there.

    Returns:
        A noun with its article; links are not followed.
    """
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return _kind(mode)


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return ""
    kinds = {
        stat.S_IFLNK: "a link",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


@contextlib.contextmanager
def replacing(target: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write to, which takes a name when it is complete.

    Args:
        target: The name; what had it before is there until then. If that is a link, the link is
            replaced.
        durable: Whether it must survive a crash of the machine, not only of this process.

    Raises:
        OutputError: If it can't be written.
    """
    with writing(target):
        with temporary_file(target.parent) as (staged, file):
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
            os.replace(staged, target)
        if durable:
            sync(target.parent)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file; what has the target's name is replaced.

    Raises:
        OSError: If the source can't be read.
        OutputError: If the copy can't be written.
    """
    with open_plain(source) as file, replacing(target, durable=False) as copy:
        shutil.copyfileobj(file, copy, _CHUNK)


def make_own(path: Path) -> None:
    """Make sure that what is at a path may be changed in place; there may be nothing.

    A file that has other names as well is replaced by a copy.

    Raises:
        NotPlainFileError: If it is no plain file.
        OSError: If it can't be read.
        OutputError: If it can't be copied.
    """
    if kind := kind_at(path):
        raise NotPlainFileError(path, kind)
    if path.exists() and path.stat().st_nlink > 1:
        copy_file(path, path)


def open_to_append(path: Path, *, buffering: int = -1) -> BinaryIO:
    """Open a file to add to its end; it is made if there is none.

    Args:
        path: The file.
        buffering: As in `open`.

    Raises:
        OSError: If it can't be opened, or is no plain file.
        OutputError: If it has other names as well, and can't be copied.
    """
    make_own(path)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    return open(path, "ab", buffering, opener=lambda name, _: os.open(name, flags, 0o666))


def check_folder(folder: Path) -> None:
    """Make sure that a folder is one, or can be made: what a link leads to is not written to.

    Raises:
        OutputError: If something else is there.
    """
    kind = kind_at(folder)
    if kind != "a folder" and os.path.lexists(folder):
        raise OutputError(
            f"{folder} is {kind or 'a file'}, where a folder is expected.",
            f"{REMOVE} What a link leads to is never written to." if kind == "a link" else REMOVE,
        )


def make_folder(folder: Path, inside: Path) -> None:
    """Make a folder inside another one; see `check_folder` for all on the way.

    Raises:
        OSError: If it can't be made.
        OutputError: If there is something else on the way.
    """
    for each in (*reversed(folder.relative_to(inside).parents), folder.relative_to(inside)):
        check_folder(inside / each)
        (inside / each).mkdir(exist_ok=True)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, if there is one; links are not followed.

    Raises:
        OSError: If it can't be removed.
    """
    if kind_at(path) == "a folder":
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sha256_of(*files: Path) -> str:
    """The hash of a file, or of some one after the other."""
    digest = hashlib.sha256()
    for path in files:
        with open_plain(path) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
