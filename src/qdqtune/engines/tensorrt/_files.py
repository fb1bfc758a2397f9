"""TensorRT's files: a cache of built engines, kernel timings, and build logs."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import hmac
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from qdqtune.engines._worker_environment import plans_folder, scratch_folder
from qdqtune.graph._atomic_files import TemporaryFolder, open_to_append, replacing
from qdqtune.graph._fingerprint import network_digest
from qdqtune.records._errors import OutputError
from qdqtune.records._untrusted_files import open_plain

PLAN, LAYERS = ".plan", ".layers.json"
"""File endings in the cache: the engine, and its layer information."""

_MOST_BYTES = 4 << 30
_MOST_BYTES_OF_A_RUN = 2 << 30
_SECRET_BYTES = 32
_MOST_LOG_BYTES = 4 << 20

NO_CACHE = "none"
"""Value of the option that disables the file."""
_logger = logging.getLogger(__name__)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.]+")


class PlanCache:
    """A folder with built engines, which several processes may use at once.

    To load an engine is to run code. With a secret, entries are named after a digest that only
    those who know it can compute, and others are ignored: a folder may have come from a stranger.

    Args:
        folder: The folder; created when the first engine is stored.
        most_bytes: Limit for their total size; the least recently used ones are removed first.
        secret: The secret; empty for a folder that is trusted.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        most_bytes: int = _MOST_BYTES,
        secret: bytes = b"",
    ) -> None:
        self.folder = Path(folder)
        self._most_bytes = most_bytes
        self._secret = secret

    def path_for(self, key: str, ending: str = PLAN, content: bytes = b"") -> Path:
        """Return the path of an entry, whether it exists or not."""
        return self.folder / f"{key}{self._sign(key, content)}{ending}"

    def find(self, key: str, ending: str = PLAN) -> Path | None:
        """Return the path of an entry, or None. Others may remove it: `take` it if it must stay."""
        paths = [self.path_for(key, ending)]
        if self._secret:
            paths = [path for path in self.folder.glob(f"{key}.*") if path.name.endswith(ending)]
        for path in paths:
            try:
                if path.stat().st_size == 0 or not self._is_genuine(key, path, ending):
                    continue
                os.utime(path)  # the most recently used is removed last
            except OSError:
                continue
            return path
        return None

    def _is_genuine(self, key: str, path: Path, ending: str) -> bool:
        if not self._secret:
            return True
        with open_plain(path) as file:
            name = self.path_for(key, ending, file.read()).name
        return hmac.compare_digest(name, path.name)

    def _sign(self, key: str, content: bytes) -> str:
        if not self._secret:
            return ""
        digest = hashlib.blake2b(key.encode() + b":", key=self._secret, digest_size=16)
        digest.update(content)
        return f".{digest.hexdigest()}"

    def take(self, key: str, target: Path, ending: str = PLAN) -> bool:
        """Link or copy an entry to a path where it can stay; False if it no longer exists."""
        found = self.find(key, ending)
        if found is None:
            return False
        target.unlink(missing_ok=True)
        try:
            _link_or_copy(found, target)
        except FileNotFoundError:  # another process just removed it
            return False
        return True

    def keep(self, key: str, content: bytes | Path, ending: str = PLAN) -> Path:
        """Store an engine atomically: readers find all of it or nothing.

        Args:
            key: The key from `plan_key`.
            content: The engine; if it is a file, it must not be modified later.
            ending: The kind of file.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path_for(key, ending)
        if self._secret:
            written = content if isinstance(content, bytes) else content.read_bytes()
            path = self.path_for(key, ending, written)
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
            with contextlib.suppress(OSError):  # another process removed it
                seen = path.stat()
                files.append((path == newest, seen.st_mtime_ns, seen.st_size, path))
        size = sum(each[2] for each in files)
        for is_newest, _, bytes_, path in sorted(files):
            if size <= self._most_bytes or is_newest:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            size -= bytes_


def plans_of(chosen: str) -> PlanCache:
    """Return the cache of built engines: the user's folder, that of a run, or a temporary one.

    Args:
        chosen: The folder that the user names; empty for none.
    """
    if chosen:
        return PlanCache(chosen)
    if (kept := plans_folder()) is not None:
        return PlanCache(kept, _MOST_BYTES_OF_A_RUN, plan_secret())
    return PlanCache(scratch_folder() / "plans")


@functools.cache
def plan_secret() -> bytes:
    """Return the user's secret for engines in folders that others may have written to.

    Without a place to keep one, it is a new one, and nobody else's engines are loaded.
    """
    path = _user_cache() / "plans.key"
    new = secrets.token_bytes(_SECRET_BYTES)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFolder(path.parent) as folder:
            (folder / path.name).touch(mode=0o600)
            (folder / path.name).write_bytes(new)
            with contextlib.suppress(FileExistsError):
                os.link(folder / path.name, path)
    found = _read(path)
    return found if len(found) == _SECRET_BYTES else new


def plan_key(model: str | os.PathLike[str], parts: Iterable[str]) -> str:
    """Return a key for the result of a build: the same for equal models, wherever they are stored.

    Args:
        model: The model file; of its external data, the bytes that it refers to count.
        parts: What the result depends on besides the model: version, device, options.

    Raises:
        ModelError: If the model or its weights can't be read.
    """
    digest = hashlib.sha256()
    for part in (*parts, network_digest(Path(model))):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()[:40]


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another disk, or on one without links
        shutil.copyfile(source, target)


def library_stamp(path: str) -> str:
    """Return a stamp that changes when a library is rebuilt; the loader may find a missing one."""
    try:
        found = os.stat(path)
    except OSError:
        return path
    return f"{path} {found.st_size} {found.st_mtime_ns}"


def default_path(engine: str, version: str, device: str) -> Path:
    """Return the user's default file for one GPU and version, since timings apply to no other."""
    return _user_cache() / "timing" / f"{_key(engine, version, device)}.cache"


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "qdqtune")


class TimingCacheFile:
    """A timing cache on disk, and what this process has added to it.

    Builds of one process share one cache in memory. Version 8.6 can't read back what it wrote once
    a part of a model was compiled as a whole (`Myelin error from unknown graph`, seen on an H200):
    from the file alone, every build would time all kernels again.

    Args:
        path: The file; it need not exist.
        engine: The engine's name.
        version: Its version.
        device: The GPU.

    Attributes:
        is_trusted: Whether a failed build also failed without the file; None if that has not been
            tried. If False, the file is not used again.
    """

    def __init__(
        self, path: str | os.PathLike[str], engine: str, version: str, device: str
    ) -> None:
        self.path = Path(path)
        self._own_path = self.path.with_name(
            f"{self.path.stem}.{_key(engine, version, device)}{self.path.suffix}"
        )
        self.is_trusted: bool | None = None
        self._live: Any = None

    def attach(self, config: Any) -> Any:
        """Attach the file's timings to a build; the result must live as long as the build.

        A file of another GPU or version is left as it is, and one beside it is used instead.
        """
        if self.is_trusted is False:
            self._live = None
        if self._live is not None and config.set_timing_cache(self._live, False):
            return self._live
        self._live = self._attach_file(config)
        return self._live

    def _attach_file(self, config: Any) -> Any:
        for path in dict.fromkeys((self.path, self._own_path)):
            cache = config.create_timing_cache(b"" if self.is_trusted is False else _read(path))
            if cache is not None and config.set_timing_cache(cache, False):
                self.path = path
                return cache
        self.path = self._own_path  # a broken file there may be replaced
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, False)
        return cache

    @property
    def is_doubtful(self) -> bool:
        """Whether a build used timings from the file that may have caused its failure."""
        return self.is_trusted is None and bool(_read(self.path))

    def save(self, config: Any) -> None:
        """Add the timings of a build; a file that can't be written does not fail the build."""
        cache = config.get_timing_cache()
        if cache is None or self.is_trusted is False:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # One writer at a time; the lock is a separate file, which is never removed.
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
    """An open log; without a file, everything written is dropped.

    Args:
        file: The open file.
    """

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self._file = file
        self._room = max(0, _MOST_LOG_BYTES - file.tell()) if file is not None else 0

    def write(self, content: bytes) -> None:
        """Append, up to the size limit."""
        if self._file is not None and self._room:
            with contextlib.suppress(OSError):
                self._file.write(content[: self._room])
            self._room -= min(self._room, len(content))


@contextmanager
def open_log(path: Path | None) -> Iterator[BuildLog]:
    """Open a log for appending; for None or a file that can't be opened, output is dropped."""
    with ExitStack() as stack:
        file: IO[bytes] | None = None
        if path is not None:
            with contextlib.suppress(OSError, OutputError):
                file = stack.enter_context(open_to_append(path, buffering=0))
        yield BuildLog(file)
