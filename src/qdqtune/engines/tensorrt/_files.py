"""Files of TensorRT: built engines by what they were built from, kernel timings, build logs."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from qdqtune.graph._atomic_files import TemporaryFolder, open_to_append, replacing
from qdqtune.graph._fingerprint import model_digest
from qdqtune.records._errors import OutputError
from qdqtune.records._untrusted_files import open_plain

PLAN, LAYERS = ".plan", ".layers.json"
"""Endings of what is kept: the engine, and what is known of its layers."""

_MOST_BYTES = 4 << 30
_MOST_LOG_BYTES = 4 << 20

NO_CACHE = "none"
"""What the option says if no file is wanted."""
_logger = logging.getLogger(__name__)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.]+")


class PlanCache:
    """A folder with built engines, which several processes may use at once.

    Args:
        folder: Where they lie; made when the first one is kept.
        most_bytes: How large all of them may be together; those that nobody asked for go first.
    """

    def __init__(self, folder: str | os.PathLike[str], most_bytes: int = _MOST_BYTES) -> None:
        self.folder = Path(folder)
        self._most_bytes = most_bytes

    def path_for(self, key: str, ending: str = PLAN) -> Path:
        """Where something is kept, whether it is there or not."""
        return self.folder / f"{key}{ending}"

    def find(self, key: str, ending: str = PLAN) -> Path | None:
        """What is kept; None if it isn't. It may go at any time: `take` it if it has to stay."""
        path = self.path_for(key, ending)
        try:
            if path.stat().st_size == 0:
                return None
            os.utime(path)  # whatever is used last goes last
        except OSError:
            return None
        return path

    def take(self, key: str, target: Path, ending: str = PLAN) -> bool:
        """Puts what is kept at another place, where it stays; False if it isn't there any more."""
        found = self.find(key, ending)
        if found is None:
            return False
        target.unlink(missing_ok=True)
        try:
            _link_or_copy(found, target)
        except FileNotFoundError:  # another process dropped it just now
            return False
        return True

    def keep(self, key: str, content: bytes | Path, ending: str = PLAN) -> Path:
        """Keeps an engine: whoever looks for it finds all of it, or nothing.

        Args:
            key: What `plan_key` made of what it was built from.
            content: The engine; nobody may write into that file later.
            ending: What it is.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path_for(key, ending)
        with TemporaryFolder(self.folder) as folder:
            new = folder / path.name
            if isinstance(content, bytes):
                new.write_bytes(content)
            else:
                _link_or_copy(content, new)
            os.replace(new, path)
        self._drop_oldest(path)
        return path

    def _drop_oldest(self, newest: Path) -> None:
        files = []
        for path in self.folder.glob("[!.]*"):
            with contextlib.suppress(OSError):  # another process dropped it
                seen = path.stat()
                files.append((path == newest, seen.st_mtime_ns, seen.st_size, path))
        size = sum(each[2] for each in files)
        for is_newest, _, bytes_, path in sorted(files):
            if size <= self._most_bytes or is_newest:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            size -= bytes_


def plan_key(model: str | os.PathLike[str], parts: Iterable[str]) -> str:
    """A name for what a build makes: equal for equal models, wherever they lie.

    Args:
        model: The model file; of files beside it, those bytes count that it refers to.
        parts: What the result depends on beside the model: version, device, options.

    Raises:
        ModelError: If the model or its weights can't be read.
    """
    digest = hashlib.sha256()
    for part in (*parts, model_digest(Path(model))):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()[:40]


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another disk, or on one without links
        shutil.copyfile(source, target)


def library_stamp(path: str) -> str:
    """What changes when a library is rebuilt; one that isn't here may be on the loader's path."""
    try:
        found = os.stat(path)
    except OSError:
        return path
    return f"{path} {found.st_size} {found.st_mtime_ns}"


def default_path(engine: str, version: str, device: str) -> Path:
    """The user's own file for one GPU and one version: what holds for one holds for no other."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "qdqtune", "timing", f"{_key(engine, version, device)}.cache")


class TimingCacheFile:
    """A timing cache on disk.

    Args:
        path: The file; it need not be there.
        engine: The engine's name.
        version: Its version.
        device: The GPU.

    Attributes:
        is_trusted: Whether a build that failed also fails without the file; None as long as it
            wasn't tried. If it doesn't, the file is not used again.
    """

    def __init__(
        self, path: str | os.PathLike[str], engine: str, version: str, device: str
    ) -> None:
        self.path = Path(path)
        self._own_path = self.path.with_name(
            f"{self.path.stem}.{_key(engine, version, device)}{self.path.suffix}"
        )
        self.is_trusted: bool | None = None

    def attach(self, config: Any) -> Any:
        """Gives a build what the file knows; the result has to live as long as the build.

        A file of another GPU or version is left as it is, and one beside it is used.
        """
        for path in dict.fromkeys((self.path, self._own_path)):
            cache = config.create_timing_cache(b"" if self.is_trusted is False else _read(path))
            if cache is not None and config.set_timing_cache(cache, False):
                self.path = path
                return cache
        self.path = self._own_path  # what is broken there may be replaced
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, False)
        return cache

    @property
    def is_doubtful(self) -> bool:
        """Whether a build got something from the file that may be why it failed."""
        return self.is_trusted is None and bool(_read(self.path))

    def save(self, config: Any) -> None:
        """Adds what a build found out; a file that can't be written spoils no build."""
        cache = config.get_timing_cache()
        if cache is None or self.is_trusted is False:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # One writer at a time; the lock is a file beside, which stays.
            with open_to_append(self.path.with_name(f"{self.path.name}.lock")) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                others = config.create_timing_cache(_read(self.path))
                if others is not None:
                    cache.combine(others, False)
                with replacing(self.path, durable=False) as file:
                    file.write(bytes(cache.serialize()))
        except (OSError, OutputError) as error:
            _logger.warning("the timing cache %s can't be written: %s", self.path, error)


def _key(engine: str, version: str, device: str) -> str:
    return _NOT_IN_NAMES.sub("-", f"{engine}-{version}-{device}")


def _read(path: Path) -> bytes:
    try:
        with open_plain(path) as file:
            return file.read()
    except OSError:
        return b""


class BuildLog:
    """A log that is open; without a file, what is written is dropped.

    Args:
        file: Where it goes.
    """

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self._file = file
        self._room = max(0, _MOST_LOG_BYTES - file.tell()) if file is not None else 0

    def write(self, content: bytes) -> None:
        """Append, as long as there is room."""
        if self._file is not None and self._room:
            with contextlib.suppress(OSError):
                self._file.write(content[: self._room])
            self._room -= min(self._room, len(content))


@contextmanager
def open_log(path: Path | None) -> Iterator[BuildLog]:
    """Open a log to append to it; None or a file that can't be opened is a log without a file."""
    with ExitStack() as stack:
        file: IO[bytes] | None = None
        if path is not None:
            with contextlib.suppress(OSError, OutputError):
                file = stack.enter_context(open_to_append(path, buffering=0))
        yield BuildLog(file)
