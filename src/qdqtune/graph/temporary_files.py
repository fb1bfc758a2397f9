"""Temporary folders and files that go away even if their process was killed.

Each has an owner that others can look for: a lock of the operating system, which is free as soon as
the owner is gone, however it went. Before a process makes its first temporary entry in a folder, it
removes those there that nobody owns any more. A folder's lock is a file beside it, so that
everything inside the folder is the user's; a file is its own lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from qdqtune.graph.disk_errors import writing
from qdqtune.graph.temporary_dir import temporary_place

_PREFIX = "qdqtune-"
_LOCK, _FILE = ".lock", ".tmp"
_OURS = re.compile(rf"\.?{_PREFIX}[0-9a-f]{{8}}({re.escape(_LOCK)}|{re.escape(_FILE)})")

_swept: set[str] = set()
_swept_lock = threading.Lock()


class TemporaryFolder:
    """A new folder that only this user can read; with a `with`, it is removed at the end.

    Else it is removed by `cleanup`, with this object or when the process ends; after a kill, by the
    next process that makes one in the same place.

    Args:
        within: The folder that it is made in, hidden; None is the system's folder for such.

    Attributes:
        path: The folder.

    Raises:
        OutputError: If it can't be made.
    """

    def __init__(self, within: Path | None = None) -> None:
        place = temporary_place() if within is None else within.absolute()
        with writing(place):
            remove_abandoned(place)
            lock, descriptor = _locked_file(place, _LOCK, hidden=within is not None)
            self.path = lock.with_suffix("")
            try:
                self.path.mkdir(mode=0o700)
            except BaseException:
                _remove(self.path, lock, descriptor)
                raise
        self._finalizer = weakref.finalize(self, _remove, self.path, lock, descriptor)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Remove it with all that is in it."""
        self._finalizer()


@contextlib.contextmanager
def temporary_file(folder: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new hidden file to write to, which is removed unless it was renamed.

    Raises:
        OSError: If it can't be made.
    """
    remove_abandoned(folder)
    path, descriptor = _locked_file(folder, _FILE, hidden=True)
    try:
        with open(descriptor, "wb") as file:
            yield path, file
    finally:
        path.unlink(missing_ok=True)


def remove_abandoned(folder: Path) -> None:
    """Remove what processes that were killed have left in a folder; looks there only once."""
    with _swept_lock:
        place = os.path.realpath(folder)
        if place in _swept:
            return
        _swept.add(place)
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _OURS.fullmatch(entry.name):
                with contextlib.suppress(OSError):  # alive, another user's, or just removed
                    _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.suffix == _LOCK:
                _remove_tree(path.with_suffix(""))
            path.unlink()
    finally:
        os.close(descriptor)


def _remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it.

    Raises:
        OSError: If something of it is left; then its lock must stay for the next one who looks.
    """
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _locked_file(folder: Path, suffix: str, *, hidden: bool) -> tuple[Path, int]:
    """A new file that this process has locked."""
    while True:
        path = folder / f"{'.' * hidden}{_PREFIX}{secrets.token_hex(4)}{suffix}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        except FileExistsError:
            continue
        # Where files can't be locked nobody takes it for abandoned, since nobody gets the lock.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists():
            return path, descriptor
        os.close(descriptor)  # somebody found it before it was locked, and took it for abandoned


def _remove(folder: Path, lock: Path, descriptor: int) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            lock.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
