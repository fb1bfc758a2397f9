"""Files that appear whole or not at all, and temporary files that are removed even after a kill.

Write errors of the operating system become messages that a user can act on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from qdqtune.records._errors import OutputError
from qdqtune.records._untrusted_files import open_plain, real_path

_VARIABLES = ("TMPDIR", "TEMP", "TMP")
_USUAL = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108  (names in there are random and private)

_ROOM = "Check that the disk has room and the folder can be written to."
REMOVE = "Remove it, or choose another place."
"""Advice for the case that something else is at the path."""
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


_PREFIX = "qdqtune-"
_LOCK, _FILE = ".lock", ".tmp"
_OURS = re.compile(rf"\.?{_PREFIX}[0-9a-f]{{8}}({re.escape(_LOCK)}|{re.escape(_FILE)})")

_swept: set[str] = set()
_swept_lock = threading.Lock()

_CHUNK = 1 << 20


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

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Remove it with its contents."""
        self._finalizer()


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
                with contextlib.suppress(OSError):  # in use, another user's, or just removed
                    _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.suffix == _LOCK:
                # If something is left, the lock must stay for the next process that checks.
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(path.with_suffix(""))
            path.unlink()
    finally:
        os.close(descriptor)


def _locked_file(folder: Path, suffix: str, *, hidden: bool) -> tuple[Path, int]:
    """Create a file that this process has locked."""
    while True:
        path = folder / f"{'.' * hidden}{_PREFIX}{secrets.token_hex(4)}{suffix}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        except FileExistsError:
            continue
        # Without file locks, other processes can't consider it abandoned either.
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


def kind_at(path: Path) -> str:
    """Describe what is at a path if it is not a regular file; empty if it is, or if it is missing.

    Returns:
        A noun with its article; links are not followed.
    """
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    kinds = {
        stat.S_IFREG: "",
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
        remove_abandoned(target.parent)
        staged, descriptor = _locked_file(target.parent, _FILE, hidden=True)
        try:
            with open(descriptor, "wb") as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(file.fileno())
                os.replace(staged, target)
        finally:
            staged.unlink(missing_ok=True)
        if durable:
            sync(target.parent)


def copy_file(source: Path, target: Path, *, durable: bool = False) -> None:
    """Copy a file; an existing target is replaced.

    Args:
        source: The file.
        target: The name of the copy.
        durable: See `replacing`.

    Raises:
        OSError: If the source can't be read.
        OutputError: If the copy can't be written.
    """
    with open_plain(source) as file, replacing(target, durable=durable) as copy:
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
