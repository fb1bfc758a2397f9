"""One run per folder."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
from pathlib import Path

from qdqtune.graph.atomic_files import kind_at
from qdqtune.records.errors import OutputError, UsageError

LOCK = ".lock"

_logger = logging.getLogger(__name__)

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class FolderLock:
    """Holds a folder until it is closed, or the process ends in whatever way.

    The lock is the kernel's: that of a process that is gone is free. The file stays where it is
    and says who had it last.

    Args:
        folder: The folder; it exists.

    Raises:
        UsageError: If another run holds it.
        OutputError: If the folder can't be written to.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK
        if kind := kind_at(path):
            raise OutputError(
                f"{path} is {kind}, where a run has its lock.",
                "Remove it, or choose another --output_dir.",
            )
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise OutputError(
                f"The folder {folder} can't be written to: {error.strerror}.", "Choose another one."
            ) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                _logger.warning(
                    "%s lies on a file system without locks: see to it that no other run uses it",
                    folder,
                )
                return
            owner = self._owner()
            os.close(self._descriptor)
            raise UsageError(
                f"Another run is using {folder}{owner}.",
                "Wait until it is over, stop it, or choose another --output_dir.",
            ) from None
        self._sign()

    def close(self) -> None:
        """Let the folder go."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _sign(self) -> None:
        if self._has_other_names:
            return
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text, 0)
        except OSError as error:  # a full disk: the lock holds, it only says nothing
            _logger.info("the lock can't be signed: %s", error.strerror)

    @property
    def _has_other_names(self) -> bool:
        """Whether it is another file as well, which is not ours to write to."""
        return os.fstat(self._descriptor).st_nlink > 1

    def _owner(self) -> str:
        if self._has_other_names:
            return ""
        try:
            found = json.loads(os.pread(self._descriptor, 4096, 0))
            return f" (process {int(found['pid'])} on {str(found['host'])[:100]})"
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return ""
