"""Temporary folders and files that are removed even if their process was killed.

Each has an owner that other processes can check: an operating system lock, which is released when
the owner ends for any reason. Before a process creates its first temporary entry in a folder, it
removes those that no longer have an owner. A folder's lock is a file next to it, so that everything
inside the folder belongs to the user; a file is its own lock.
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
    """A new folder that only this user can read; usable as a context manager that removes it.

    Otherwise it is removed by `cleanup`, with this object, or when the process ends; after a kill,
    by the next process that creates one in the same place.

    Args:
        within: The parent folder, where it is hidden; None for the system's temporary folder.

    Attributes:
        path: The folder.

    Raises:
        OutputError: If it can't be created.
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
        """Remove it with its contents."""
        self._finalizer()


@contextlib.contextmanager
def temporary_file(folder: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Create a hidden file to write to, which is removed unless it was renamed.

    Raises:
        OSError: If it can't be created.
    """
    remove_abandoned(folder)
    path, descriptor = _locked_file(folder, _FILE, hidden=True)
    try:
        with open(descriptor, "wb") as file:
            yield path, file
    finally:
        path.unlink(missing_ok=True)


def remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left in a folder; checks each folder only once."""
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
    """Remove a folder with its contents.

    Raises:
        OSError: If something is left; then its lock must stay for the next process that checks.
    """
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _locked_file(folder: Path, suffix: str, *, hidden: bool) -> tuple[Path, int]:
    """Create a file that this process has locked."""
    while True:
        path = folder / f"{'.' * hidden}{_PREFIX}{secrets.token_hex(4)}{suffix}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        except FileExistsError:
            continue
        # Where files can't be locked, no other process can take it for abandoned either.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists():
            return path, descriptor
        os.close(descriptor)  # another process found it before it was locked, and removed it


def _remove(folder: Path, lock: Path, descriptor: int) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            lock.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
