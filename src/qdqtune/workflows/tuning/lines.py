"""The lines of a journal: one JSON object each, with its kind, schema and checksum."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from qdqtune.graph.whole_files import replacing
from qdqtune.records.errors import LimitError, UsageError
from qdqtune.records.reading import open_plain, parse_json, size_in_words

SCHEMA = 2
"""What is written. All from 1 on are read."""

_logger = logging.getLogger(__name__)

_MOST_NAMED = 10
# A journal of 100,000 lines has about 100 MB.
_MOST_LINES, _MOST_BYTES = 500_000, 1 << 30
_LONGEST_LINE, _SHOWN_OF_LONG = 16 << 20, 1 << 16
_NUMBER = (int, float)
_MAYBE = (int, float, type(None))
# What every line may have.
_COMMON: dict[str, type | tuple[type, ...]] = {
    "run": str,
    "session": int,
    "at_s": _NUMBER,
    "id": str,
}
# What a line of each kind must have; kinds that are not here are left alone.
_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "run": {"header": dict},
    "session": {"number": int},
    "end": {"session": int, "seconds": _NUMBER},
    "shares": {"shares": dict},
    "calibration": {"samples": int},
    "accuracy": {
        "measure": str,
        "placement": str,
        "conditions": str,
        "value": (int, float, str, type(None)),
    },
    "adopted": {"seconds": _NUMBER},
    "candidate": {"id": str, "key": str},
    "round": {
        "reference": str,
        "effort": str,
        "candidates": list,
        "baseline_ms": _NUMBER,
        "latencies_ms": list,
        "log_ratios": list,
    },
    "measurement": {
        "reference": str,
        "candidate": str,
        "effort": str,
        "gain": _MAYBE,
        "error": _NUMBER,
        "failure": (str, type(None)),
        "latency_ms": _MAYBE,
        "reference_ms": _MAYBE,
    },
}
_INFINITE = ("inf", "-inf")
_LISTS: dict[str, type | tuple[type, ...]] = {
    "candidates": str,
    "latencies_ms": _NUMBER,
    "log_ratios": _NUMBER,
}


@dataclass(frozen=True)
class Line:
    """A line of a journal.

    Attributes:
        number: From 1 on.
        text: As it stands in the file.
        body: What it says; None if it is damaged.
    """

    number: int
    text: bytes
    body: dict[str, Any] | None

    @property
    def kind(self) -> str:
        """What it is about; empty if it is damaged."""
        return self.body["kind"] if self.body is not None else ""


def encode(body: Mapping[str, Any]) -> str:
    """A line of the newest schema, with its end.

    Args:
        body: What it says, with its kind.
    """
    complete = {"schema": SCHEMA, **body}
    line = json.dumps({**complete, "checksum": _checksum(complete)}, allow_nan=False)
    return line + "\n"


def decode(text: str) -> dict[str, Any] | None:
    """What a line says; None if it is damaged, or of a schema that only newer versions know."""
    body = _decode(text.encode())
    return body if body is not None and body["schema"] <= SCHEMA else None


def read_journal(path: Path) -> list[Line]:
    """All lines of a journal, damaged ones included.

    Raises:
        OSError: If it can't be read.
        UsageError: If a line is of a schema that only newer versions know, or there are too many.
    """
    with open_plain(path) as file:
        lines = [
            Line(number, text, _decode(text)) for number, text in enumerate(_texts(file, path), 1)
        ]
    for line in lines:
        if line.body is not None and line.body["schema"] > SCHEMA:
            raise UsageError(
                f"{path}:{line.number} was written by a newer version of qdqtune.",
                "Use that version, or choose another --output_dir.",
            )
    return lines


def _texts(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """The lines of a journal without their ends; of one that is too long, the beginning."""
    count = size = 0
    while text := file.readline(_LONGEST_LINE):
        count, size = count + 1, size + len(text)
        if count > _MOST_LINES or size > _MOST_BYTES:
            raise LimitError(
                f"{path} has more than {_MOST_LINES:,} lines or {size_in_words(_MOST_BYTES)}, "
                "which is the most that is read of a journal.",
                "Check that a run wrote it, or choose another --output_dir.",
            )
        rest = text
        while not rest.endswith(b"\n") and (rest := file.readline(_LONGEST_LINE)):
            text = text[:_SHOWN_OF_LONG]
        yield text.removesuffix(b"\n")


def whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """What the sound lines of a journal say, in order; what is damaged is named in the log.

    Raises:
        OSError: If it can't be read.
        UsageError: If a line is of a schema that only newer versions know.
    """
    for line in read_journal(path):
        if line.body is None:
            _logger.warning("%s:%d is damaged and left out", path, line.number)
        else:
            yield line.body


def quarantine(path: Path, damaged: list[Line], quarantined: Path) -> None:
    """Move lines out of a journal into a file of their own, with where they came from.

    Args:
        path: The journal; it is replaced whole or not at all.
        damaged: Lines of it.
        quarantined: The file that they are added to.

    Raises:
        OSError: If it can't be read, or the lines not be kept.
        OutputError: If it can't be replaced.
    """
    with quarantined.open("a", encoding="utf-8") as file:
        for line in damaged:
            text = line.text.decode("utf-8", "backslashreplace")
            file.write(json.dumps({"file": path.name, "line": line.number, "text": text}) + "\n")
        file.flush()
        os.fsync(file.fileno())
    numbers = {line.number for line in damaged}
    kept = [line.text for line in read_journal(path) if line.number not in numbers]
    with replacing(path) as journal:
        journal.write(b"".join(text + b"\n" for text in kept))
    for line in damaged[:_MOST_NAMED]:
        _logger.warning(
            "%s:%d is damaged: it was moved to %s, and is measured again if it is needed",
            path, line.number, quarantined.name,
        )  # fmt: skip
    if len(damaged) > _MOST_NAMED:
        _logger.warning("%s: so were %d more lines", path, len(damaged) - _MOST_NAMED)


def _checksum(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _decode(text: bytes) -> dict[str, Any] | None:
    try:
        body = parse_json(text, "The line")
        checksum = body.pop("checksum")
        is_whole = checksum == _checksum(body) and isinstance(body["kind"], str)
        schema = body["schema"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not is_whole or type(schema) is not int or schema < 1:
        return None
    if schema <= SCHEMA and not _has_fields(body):
        return None
    return dict(body)


def _has_fields(body: Mapping[str, Any]) -> bool:
    wanted = _FIELDS.get(body["kind"], {})
    also = {name: kinds for name, kinds in _COMMON.items() if name in body}
    if not all(name in body and _is(body[name], kinds) for name, kinds in (wanted | also).items()):
        return False
    if body["kind"] == "accuracy" and isinstance(body["value"], str):
        return body["value"] in _INFINITE
    if body["kind"] == "shares" and not all(_is(each, _NUMBER) for each in body["shares"].values()):
        return False
    return body["kind"] != "round" or all(
        len(body[name]) == len(body["candidates"]) and all(_is(each, kinds) for each in body[name])
        for name, kinds in _LISTS.items()
    )


def _is(value: object, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)
