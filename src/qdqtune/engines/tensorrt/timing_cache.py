"""What is known of kernels, kept in a file that several processes may use."""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qdqtune.graph.atomic_files import open_to_append, replacing
from qdqtune.records.errors import OutputError
from qdqtune.records.untrusted_files import open_plain

NO_CACHE = "none"
"""What the option says if no file is wanted."""

_logger = logging.getLogger(__name__)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.]+")


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
    """

    def __init__(
        self, path: str | os.PathLike[str], engine: str, version: str, device: str
    ) -> None:
        self.path = Path(path)
        self._own_path = self.path.with_name(
            f"{self.path.stem}.{_key(engine, version, device)}{self.path.suffix}"
        )
        self._is_spoiled = False
        self._is_trusted = False

    def attach(self, config: Any) -> Any:
        """Gives a build what the file knows; the result has to live as long as the build.

        A file of another GPU or version is left as it is, and one beside it is used.
        """
        for path in dict.fromkeys((self.path, self._own_path)):
            cache = config.create_timing_cache(_read(path) if not self._is_spoiled else b"")
            if cache is not None and config.set_timing_cache(cache, False):
                self.path = path
                return cache
        self.path = self._own_path  # what is broken there may be replaced
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, False)
        return cache

    def forget(self) -> None:
        """Begins anew: with what the file knows, a model could not be built."""
        self._is_spoiled = True

    def trust(self) -> None:
        """Takes that back for good: without the file, a model could not be built either."""
        self._is_spoiled, self._is_trusted = False, True

    @property
    def is_doubtful(self) -> bool:
        """Whether a build got something from the file that may be why it failed."""
        return not (self._is_spoiled or self._is_trusted) and bool(_read(self.path))

    def save(self, config: Any) -> None:
        """Adds what a build found out; a file that can't be written spoils no build."""
        cache = config.get_timing_cache()
        if cache is None or self._is_spoiled:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path):
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


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time; the lock is a file beside, which stays."""
    with open_to_append(path.with_name(f"{path.name}.lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
