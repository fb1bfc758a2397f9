"""The lines of a journal: one JSON object each, with its kind, schema and checksum.

Whatever its checksum, a line counts as damaged if a field can't be what it says.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from qdqtune.graph._atomic_files import open_to_append, replacing
from qdqtune.records._errors import LimitError
from qdqtune.records._measurement import LEAST_MS, MOST_MS
from qdqtune.records._untrusted_files import (
    LARGEST,
    SCHEMAS,
    check_schema,
    open_plain,
    parse_json,
    size_in_words,
)

QUARANTINE = "measurements.damaged.jsonl"
"""Where damaged lines go."""
SCHEMA = SCHEMAS["journal"]
"""What is written. All from 1 on are read."""

_logger = logging.getLogger(__name__)

_MOST_NAMED = 10
# A journal of 100,000 lines has about 100 MB.
_MOST_LINES, _MOST_BYTES = 500_000, 1 << 30
_LONGEST_LINE, _SHOWN_OF_LONG = 16 << 20, 1 << 16

_Check = Callable[[Any], bool]

# No candidate is ten thousand times as fast as what it is compared with, or as slow.
_LARGEST_LOG_RATIO = math.log(1e4)
_LONGEST_S = 1e12
_LARGEST_COUNT = 2**53
_CANDIDATE_ID = re.compile(r"c[0-9]{4,12}")


def checksum(body: Mapping[str, Any]) -> str:
    """What a line is checked by, and what the lines of a run are known by: that of its header."""
    text = json.dumps(body, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _makes_sense(body: Mapping[str, Any]) -> bool:
    """Whether a line has what its kind must have, and all of it can be; unknown kinds can."""
    kind, whole = body["kind"], _WHOLE.get(body["kind"])
    return (
        all(name in body and check(body[name]) for name, check in _FIELDS.get(kind, {}).items())
        and all(check(body[name]) for name, check in _OPTIONAL.items() if name in body)
        and (whole is None or whole(body))
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_candidate_id(value: Any) -> bool:
    """Whether it is what candidates are called, and their files."""
    return isinstance(value, str) and _CANDIDATE_ID.fullmatch(value) is not None


def _is_between(low: float, high: float, kinds: Any = int | float) -> _Check:
    # NaN is not; integers of any size can be compared.
    return lambda value: (
        isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high
    )


def _or_none(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _list_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _dict_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


_is_count = _is_between(0, _LARGEST_COUNT, int)
_is_latency = _is_between(LEAST_MS, MOST_MS)
_is_log_ratio = _is_between(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
_is_seconds = _is_between(0, _LONGEST_S)
_is_number = _is_between(-LARGEST, LARGEST)


def _is_header(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("engine", {}), dict)
        and _dict_of(_list_of(_or_none(_is_count)))(value.get("shapes", {}))
    )


# What every line may have.
_OPTIONAL: dict[str, _Check] = {
    "run": _is_text,
    "session": _is_count,
    "at_s": _is_seconds,
    "id": lambda value: value == "" or _is_candidate_id(value),
    "sha256": _is_text,
}
# What a line of each kind must have; kinds that are not here are left alone.
_FIELDS: dict[str, dict[str, _Check]] = {
    "run": {"header": _is_header},
    "session": {"number": _is_count},
    "end": {"session": _is_count, "seconds": _is_seconds},
    "shares": {"shares": _dict_of(_is_between(0, LARGEST))},
    "calibration": {"samples": _is_between(1, _LARGEST_COUNT, int)},
    "accuracy": {
        "measure": _is_text,
        "placement": _is_text,
        "conditions": _is_text,
        "value": lambda value: value in (None, "inf", "-inf") or _is_number(value),
    },
    "adopted": {"seconds": _is_seconds},
    "candidate": {"id": _is_candidate_id, "key": _is_text},
    "file": {"id": _is_candidate_id, "key": _is_text, "digest": _is_text},
    "round": {
        "reference": _is_text,
        "effort": _is_text,
        "candidates": _list_of(_is_candidate_id),
        "baseline_ms": _is_latency,
        "latencies_ms": _list_of(_is_latency),
        "log_ratios": _list_of(_is_log_ratio),
    },
    "measurement": {
        "reference": _is_text,
        "candidate": _is_text,
        "effort": _is_text,
        "gain": _or_none(_is_log_ratio),
        "error": _is_between(0, _LARGEST_LOG_RATIO),
        "failure": _or_none(_is_text),
        "latency_ms": _or_none(_is_latency),
        "reference_ms": _or_none(_is_latency),
    },
}
# What the fields of a line must be together.
_WHOLE: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "run": lambda body: body.get("run", checksum(body["header"])) == checksum(body["header"]),
    "round": lambda body: (
        len(body["candidates"]) == len(body["latencies_ms"]) == len(body["log_ratios"])
    ),
    "measurement": lambda body: body["failure"] is not None or body["gain"] is not None,
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
    line = json.dumps({**complete, "checksum": checksum(complete)}, allow_nan=False)
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


def _decode(text: bytes) -> dict[str, Any] | None:
    try:
        body: dict[str, Any] = parse_json(text.decode("utf-8"), "The line")
        is_whole = body.pop("checksum") == checksum(body) and isinstance(body["kind"], str)
        schema = body["schema"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    is_whole = is_whole and type(schema) is int and schema >= 1
    return body if is_whole and (schema > SCHEMA or _makes_sense(body)) else None
