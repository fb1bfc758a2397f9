"""The lines of a journal: one JSON object each, with its kind, schema and checksum."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from qdqtune.graph.atomic_files import open_to_append, replacing
from qdqtune.records.errors import LimitError
from qdqtune.records.schemas import SCHEMAS, check_schema
from qdqtune.records.untrusted_files import open_plain, parse_json, size_in_words
from qdqtune.workflows.tuning.journal_fields import makes_sense

SCHEMA = SCHEMAS["journal"]
"""What is written. All from 1 on are read."""

_logger = logging.getLogger(__name__)

_MOST_NAMED = 10
# A journal of 100,000 lines has about 100 MB.
_MOST_LINES, _MOST_BYTES = 500_000, 1 << 30
_LONGEST_LINE, _SHOWN_OF_LONG = 16 << 20, 1 << 16


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
        if line.body is not None:
            check_schema("journal", line.body["schema"], f"{path}:{line.number}")
    return _without_contradictions(lines)


def _without_contradictions(lines: list[Line]) -> list[Line]:
    """Count a line as damaged that gives an id to a second candidate, or a candidate a second id.

    Two candidates with one id would be written to one file, and one of them measured as the other.
    """
    keys: dict[tuple[Any, str], str] = {}
    ids: dict[tuple[Any, str], str] = {}
    kept = []
    for line in lines:
        if line.body is not None and line.kind == "candidate":
            name, key = line.body["id"], line.body["key"]
            run = line.body.get("run")
            is_first = keys.setdefault((run, name), key) == key
            if ids.setdefault((run, key), name) != name or not is_first:
                line = replace(line, body=None)
        kept.append(line)
    return kept


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
    with open_to_append(quarantined) as file:
        for line in damaged:
            text = line.text.decode("utf-8", "backslashreplace")
            kept_line = json.dumps({"file": path.name, "line": line.number, "text": text})
            file.write(f"{kept_line}\n".encode())
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
        body = parse_json(text.decode("utf-8"), "The line")
        checksum = body.pop("checksum")
        is_whole = checksum == _checksum(body) and isinstance(body["kind"], str)
        schema = body["schema"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not is_whole or type(schema) is not int or schema < 1:
        return None
    if schema <= SCHEMA and not makes_sense(body):
        return None
    return dict(body)
