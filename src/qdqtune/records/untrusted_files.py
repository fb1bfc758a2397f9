"""Reading of untrusted files and text within limits.

The memory that a parsed text takes depends on its size and its number of elements, so both are
checked before parsing.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any, BinaryIO

from qdqtune.records.errors import LimitError

TEXT_BYTES = 128 << 20
"""The largest file that is read and parsed as a whole."""

# An object or a list takes about 100 bytes on average at worst, so these take less than 1 GB.
_MOST_PARTS = 8_000_000
_CHECK = "Check that it is the file you mean."
_PART_STARTS = ("{", "[", ",")


def open_plain(path: str | os.PathLike[str], *, linked: bool = True) -> BinaryIO:
    """Open a regular file for reading.

    Args:
        path: The file.
        linked: Whether it may be a symbolic link, or have several hard links.

    Raises:
        OSError: If it can't be read, or is not a regular file: reading a pipe could block forever.
    """
    # Non-blocking: opening a pipe would wait for a writer.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags if linked else flags | os.O_NOFOLLOW)
    facts = os.fstat(descriptor)
    mode = facts.st_mode
    if stat.S_ISREG(mode) and (linked or facts.st_nlink == 1):
        return open(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "It is not a plain file", str(path))


def real_path(path: str | os.PathLike[str]) -> Path:
    """Resolve a path; links that form a cycle are left unresolved, without an error."""
    return Path(os.path.realpath(path))


def read_bytes(path: str | os.PathLike[str], most: int = TEXT_BYTES) -> bytes:
    """Read a regular file, up to a size limit.

    Args:
        path: The file.
        most: The largest accepted size in bytes.

    Raises:
        OSError: If it can't be read, or is not a regular file.
        LimitError: If it is larger.
    """
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= most:
            content = file.read(most + 1)
            size = len(content)  # it may have grown
    if size > most:
        raise LimitError(
            f"{path} has {size_in_words(size)}; files of its kind are read up to "
            f"{size_in_words(most)}.",
            _CHECK,
        )
    return content


def read_text(path: str | os.PathLike[str], most: int = TEXT_BYTES) -> str:
    """Read a regular file of UTF-8 text, up to a size limit.

    Raises:
        OSError: If it can't be read, or is not a regular file.
        UnicodeDecodeError: If it is not UTF-8.
        LimitError: If it is larger.
    """
    return read_bytes(path, most).decode("utf-8")


def parse_json(text: str | bytes, source: str, *, strict: bool = True) -> Any:
    """Parse JSON within limits on size and nesting depth.

    Args:
        text: The text.
        source: Its name in an error message.
        strict: Whether control characters in strings must be escaped.

    Raises:
        ValueError: If it is not JSON.
        LimitError: If it is too large, has too many parts, or is nested too deeply.
    """
    if len(text) > TEXT_BYTES:
        raise LimitError(
            f"{source} has {size_in_words(len(text))}; JSON is read up to "
            f"{size_in_words(TEXT_BYTES)}.",
            _CHECK,
        )
    if isinstance(text, bytes):
        parts = sum(text.count(start.encode()) for start in _PART_STARTS)
    else:
        parts = sum(text.count(start) for start in _PART_STARTS)
    if parts > _MOST_PARTS:
        raise LimitError(
            f"{source} has about {parts:,} values; JSON is read up to {_MOST_PARTS:,} of them.",
            _CHECK,
        )
    try:
        return json.loads(text, strict=strict)
    except RecursionError:
        raise LimitError(
            f"{source} is nested too deeply: JSON is read up to about "
            f"{sys.getrecursionlimit():,} lists or objects inside each other.",
            _CHECK,
        ) from None


def size_in_words(size: int) -> str:
    """Format a number of bytes."""
    return f"{size / (1 << 20):,.0f} MB" if size >= 1 << 20 else f"{size:,} bytes"
