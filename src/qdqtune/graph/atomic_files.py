"""Atomic file writes that never touch files of others.

A path may have been prepared by a stranger. A link is replaced and never written through, a file
with several hard links is copied before it is appended to, and opening a pipe never blocks.
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
    """Describe what is at a path if it is not a regular file; empty if it is, or if it is missing.

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
    """Open a file for writing that takes its name when it is complete.

    Args:
        target: The name; an existing file stays until then. If it is a link, the link is
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
    """Copy a file; an existing target is replaced.

    Raises:
        OSError: If the source can't be read.
        OutputError: If the copy can't be written.
    """
    with open_plain(source) as file, replacing(target, durable=False) as copy:
        shutil.copyfileobj(file, copy, _CHUNK)


def make_own(path: Path) -> None:
    """Make sure that a file, if it exists, can be changed in place.

    A file with other hard links is replaced by a copy.

    Raises:
        NotPlainFileError: If it is not a regular file.
        OSError: If it can't be read.
        OutputError: If it can't be copied.
    """
    if kind := kind_at(path):
        raise NotPlainFileError(path, kind)
    if path.exists() and path.stat().st_nlink > 1:
        copy_file(path, path)


def open_to_append(path: Path, *, buffering: int = -1) -> BinaryIO:
    """Open a file for appending; it is created if missing.

    Args:
        path: The file.
        buffering: As in `open`.

    Raises:
        OSError: If it can't be opened, or is not a regular file.
        OutputError: If it has other hard links and can't be copied.
    """
    make_own(path)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    return open(path, "ab", buffering, opener=lambda name, _: os.open(name, flags, 0o666))


def check_folder(folder: Path) -> None:
    """Make sure that a folder exists or can be created; links are not accepted.

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
    """Create a folder inside another one; see `check_folder` for all folders in between.

    Raises:
        OSError: If it can't be created.
        OutputError: If something else is in the way.
    """
    for each in (*reversed(folder.relative_to(inside).parents), folder.relative_to(inside)):
        check_folder(inside / each)
        (inside / each).mkdir(exist_ok=True)


def remove(path: Path) -> None:
    """Remove a file, or a folder with its contents, if it exists; links are not followed.

    Raises:
        OSError: If it can't be removed.
    """
    if kind_at(path) == "a folder":
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sha256_of(*files: Path) -> str:
    """Return the hash of a file, or of several files concatenated."""
    digest = hashlib.sha256()
    for path in files:
        with open_plain(path) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
