"""Reading untrusted files within limits: sizes, schema versions, JSON fields and their types."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, TypeVar

from qdqtune.records._errors import LimitError, NewerSchemaError

_T = TypeVar("_T")

SCHEMAS: Mapping[str, int] = MappingProxyType(
    {
        "autotune_cache": 1,
        "autotuner_state": 1,
        "calibration": 1,
        "journal": 2,
        "pareto": 1,
        "pattern_cache": 1,
        "placement": 2,
        "ranges": 1,
        "report": 1,
        "summary": 1,
    }
)
"""The newest known schema of each kind of file that is read; reports are only written."""


def check_schema(kind: str, schema: object, source: str) -> None:
    """Reject a file from a newer version: it is not damaged and must not be replaced.

    Args:
        kind: The kind of file.
        schema: The schema it declares.
        source: The file's name in the message.

    Raises:
        NewerSchemaError: If this version does not know the schema.
    """
    newest = SCHEMAS[kind]
    if type(schema) is int and schema > newest:
        raise NewerSchemaError(
            f"{source} was written by a newer version of qdqtune: its {kind} schema is {schema}, "
            f"and this version reads up to {newest}.",
            "Upgrade qdqtune, or name another file or folder. Nothing was changed.",
        )


_UNITS = {
    "": 1, "B": 1,
    "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}  # fmt: skip
_SHOWN = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_LARGEST = 1 << 62


def parse_size(text: str) -> int:
    """Return the number of bytes in a text such as `4GiB`, `512M` or `6e9`.

    Raises:
        ValueError: If the text is not a size.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:[eE]\d{1,2})?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(found[2].upper()) if found is not None else None
    if found is None or unit is None:
        raise ValueError(f"{text!r} is not a memory size; write 4GiB, 512MiB or 6GB")
    size = int(min(float(found[1]) * unit, _LARGEST))
    if size <= 0:
        raise ValueError(f"{text!r} is not a memory size above 0; write 4GiB, 512MiB or 6GB")
    return size


def size_text(size: int) -> str:
    """Format a number of bytes, such as `3.5 GiB`."""
    if size > _LARGEST:
        return "more than 4 million TiB"
    for unit, scale in _SHOWN:
        if size >= scale:
            number = size / scale
            return f"{number:.0f} {unit}" if number == int(number) else f"{number:,.1f} {unit}"
    return f"{size} bytes"


_MOST_WHOLE = 1 << 63


def _of_type(value: object, kind: type[_T], fault: str) -> _T:
    if not isinstance(value, kind):
        raise ValueError(fault)
    return value


def object_in(value: object, name: str) -> dict[str, Any]:
    """Return the object in a field.

    Raises:
        ValueError: If it holds anything else.
    """
    return _of_type(value, dict, f"{name} is not a JSON object")


def versioned(value: object, kind: str, source: str) -> dict[str, Any]:
    """Return the content of a file, if it is of a kind and schema that this version reads.

    Args:
        value: The parsed file.
        kind: The kind of file.
        source: The file's name in messages.

    Raises:
        NewerSchemaError: If a newer version wrote it.
        ValueError: If it is something else.
    """
    body = object_in(value, "it")
    if body.get("kind") != kind:
        raise ValueError(f'it has no "kind": "{kind}"')
    check_schema(kind, body.get("schema"), source)
    schema, newest = body.get("schema"), SCHEMAS[kind]
    if type(schema) is not int or not 1 <= schema <= newest:
        raise ValueError(f"its schema is {schema!r}, not {newest}")
    return body


def list_in(value: object, name: str) -> list[Any]:
    """Return the list in a field; see `object_in`."""
    return _of_type(value, list, f"{name} is not a list")


def text_in(value: object, name: str) -> str:
    """Return the string in a field; see `object_in`."""
    return _of_type(value, str, f"{name} is not text")


def switch_in(value: object, name: str) -> bool:
    """Return the boolean in a field; see `object_in`."""
    return _of_type(value, bool, f"{name} is neither true nor false")


def whole_in(value: object, name: str, least: int = -_MOST_WHOLE) -> int:
    """Return the integer in a field; see `object_in`.

    Args:
        value: The field's value.
        name: The field's name.
        least: The smallest valid value.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < _MOST_WHOLE:
        raise ValueError(f"{name} is not a whole number{'' if least < 0 else f' from {least} on'}")
    return value


def number_in(value: object, name: str, least: float = -math.inf, most: float = math.inf) -> float:
    """Return the finite number in a field; see `object_in`.

    Args:
        value: The field's value.
        name: The field's name.
        least: The smallest valid value.
        most: The largest valid value.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is not a finite number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} is not a finite number")
    if not least <= number <= most:
        raise ValueError(f"{name} can't be {number:g}")
    return number


LARGEST = 1e300
"""The largest number accepted; larger ones would break arithmetic."""

TEXT_BYTES = 128 << 20
"""The largest file that is read and parsed as a whole."""

# An object or a list takes about 100 bytes on average at worst, so these limits mean less than 1
# GB.
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
