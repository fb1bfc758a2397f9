"""The lines of a journal: one JSON object each, with its kind, schema and checksum.

Even with a correct checksum, a line counts as damaged if a field is implausible. The header of a
journal has everything that its measurements depend on, and identifies a run.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from qdqtune.config import SCOPE, STRUCTURE
from qdqtune.graph._atomic_files import open_to_append, replacing
from qdqtune.records._errors import LimitError, UsageError
from qdqtune.records._inputs import shape_text
from qdqtune.records._measurement import LEAST_MS, MOST_MS
from qdqtune.records._tuning import AS_GIVEN
from qdqtune.records._untrusted_files import (
    LARGEST,
    SCHEMAS,
    check_schema,
    open_plain,
    parse_json,
    size_in_words,
)

QUARANTINE = "measurements.damaged.jsonl"
"""The file for damaged lines."""
SCHEMA = SCHEMAS["journal"]
"""The schema that is written. All schemas from 1 on can be read."""

_logger = logging.getLogger(__name__)

_MOST_NAMED = 10
# A journal of 100,000 lines takes about 100 MB.
_MOST_LINES, _MOST_BYTES = 500_000, 1 << 30
_LONGEST_LINE, _SHOWN_OF_LONG = 16 << 20, 1 << 16

_Check = Callable[[Any], bool]

# No candidate is ten thousand times faster or slower than its reference.
_LARGEST_LOG_RATIO = math.log(1e4)
_LONGEST_S = 1e12
_LARGEST_COUNT = 2**53
_CANDIDATE_ID = re.compile(r"c[0-9]{4,12}")


def checksum(body: Mapping[str, Any]) -> str:
    """Return the checksum of a line; that of a header identifies the lines of its run."""
    text = json.dumps(body, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _makes_sense(body: Mapping[str, Any]) -> bool:
    """Whether a line has the fields of its kind, all plausible; unknown kinds are accepted."""
    kind, whole = body["kind"], _WHOLE.get(body["kind"])
    return (
        all(name in body and check(body[name]) for name, check in _FIELDS.get(kind, {}).items())
        and all(check(body[name]) for name, check in _OPTIONAL.items() if name in body)
        and (whole is None or whole(body))
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_candidate_id(value: Any) -> bool:
    """Whether a value is a valid id of a candidate, which is also its file name."""
    return isinstance(value, str) and _CANDIDATE_ID.fullmatch(value) is not None


def _is_between(low: float, high: float, kinds: Any = int | float) -> _Check:
    # NaN fails; integers of any size can be compared.
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


# Optional fields of every line.
_OPTIONAL: dict[str, _Check] = {
    "run": _is_text,
    "session": _is_count,
    "at_s": _is_seconds,
    "id": lambda value: value == "" or _is_candidate_id(value),
    "sha256": _is_text,
    "worker": _is_text,
}
# Required fields of each kind of line; unlisted kinds are not checked.
_FIELDS: dict[str, dict[str, _Check]] = {
    "run": {"header": _is_header},
    "session": {"number": _is_count},
    "end": {"session": _is_count, "seconds": _is_seconds},
    "shares": {"shares": _dict_of(_is_between(0, LARGEST))},
    "calibration": {"samples": _is_between(1, _LARGEST_COUNT, int)},
    "build": {"seconds": _is_seconds},
    "regions": {"by": lambda value: value in (STRUCTURE, SCOPE)},
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
# Conditions on several fields of a line.
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
        number: Line number, from 1 on.
        text: The line as written in the file.
        body: Its content; None if it is damaged.
    """

    number: int
    text: bytes
    body: dict[str, Any] | None

    @property
    def kind(self) -> str:
        """Its kind; empty if it is damaged."""
        return self.body["kind"] if self.body is not None else ""


def encode(body: Mapping[str, Any]) -> str:
    """Encode a line in the newest schema, including the line end.

    Args:
        body: Its content, including its kind.
    """
    complete = {"schema": SCHEMA, **body}
    line = json.dumps({**complete, "checksum": checksum(complete)}, allow_nan=False)
    return line + "\n"


def decode(text: str) -> dict[str, Any] | None:
    """Return the content of a line; None if it is damaged, or has a schema of a newer version."""
    body = _decode(text.encode())
    return body if body is not None and body["schema"] <= SCHEMA else None


def read_journal(path: Path) -> list[Line]:
    """Read all lines of a journal, including damaged ones.

    Raises:
        OSError: If it can't be read.
        UsageError: If a line has a schema of a newer version, or there are too many lines.
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
    """Mark lines as damaged that assign one id to two candidates, or two ids to one candidate.

    Two candidates with the same id would be written to the same file, and one measured as the
    other.
    """
    pairs: dict[tuple[Any, str, str], str] = {}
    kept = []
    for line in lines:
        if line.body is not None and line.kind == "candidate":
            run, name, key = line.body.get("run"), line.body["id"], line.body["key"]
            its_key = pairs.setdefault((run, "id", name), key)
            its_name = pairs.setdefault((run, "key", key), name)
            line = line if (its_name, its_key) == (name, key) else replace(line, body=None)
        kept.append(line)
    return kept


def _texts(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the lines of a journal without line ends; only the start of a line that is too long."""
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
    """Yield the contents of valid lines of a journal, in order; damaged lines are logged.

    Raises:
        OSError: If it can't be read.
        UsageError: If a line has a schema of a newer version.
    """
    damaged = 0
    for line in read_journal(path):
        if line.body is not None:
            yield line.body
            continue
        damaged += 1
        if damaged <= _MOST_NAMED:
            _logger.warning("%s:%d is damaged and left out", path, line.number)
    if damaged > _MOST_NAMED:
        _logger.warning("%s: so were %d more lines", path, damaged - _MOST_NAMED)


def quarantine(path: Path, damaged: list[Line], sound: list[Line]) -> None:
    """Move damaged lines of a journal to a separate file, with their line numbers.

    Args:
        path: The journal; it is replaced atomically.
        damaged: The lines to move.
        sound: All other lines.

    Raises:
        OSError: If it can't be read, or the lines can't be saved.
        OutputError: If it can't be replaced.
    """
    quarantined = path.with_name(QUARANTINE)
    with open_to_append(quarantined) as file:
        for line in damaged:
            text = line.text.decode("utf-8", "backslashreplace")
            kept_line = json.dumps({"file": path.name, "line": line.number, "text": text})
            file.write(f"{kept_line}\n".encode())
        file.flush()
        os.fsync(file.fileno())
    with replacing(path) as journal:
        journal.write(b"".join(line.text + b"\n" for line in sound))
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


NOTHING_MEASURED = frozenset({"build", "regions", "run", "session", "end"})
"""Kinds of lines that contain no measurements."""

# Engine fields that earlier versions did not record: they follow from the others, such as the float
# type in effect from device, version and options.
_LATER_FIELDS = ("float_type",)
# Defaults of entries that a header may lack; compared before the fields that depend on them.
_UNSAID = {"precision": AS_GIVEN}
_CALLED = {
    "engine.name": "engine",
    "engine.version": "version of the engine",
    "engine.device": "device",
    "engine.isa": "instruction set",
    "engine.threads": "number of threads",
    "engine.float_type": "float type",
}


def as_said_before(journal: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """Return a header without fields that an earlier run in the same journal did not record.

    Args:
        journal: The journal, which may not exist.
        header: Everything that measurements depend on.
    """
    engine, before = header["engine"], (_earlier_header(journal) or {}).get("engine")
    if not isinstance(before, dict):
        return dict(header)
    unsaid = [field for field in _LATER_FIELDS if field not in before]
    return {**header, "engine": {key: engine[key] for key in engine if key not in unsaid}}


def precision_of(journal: Path) -> str | None:
    """Return the float type that an earlier run tuned in; None if nothing was measured."""
    header = _earlier_header(journal)
    return None if header is None else str(header.get("precision", AS_GIVEN))


def headers_in(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the headers of the runs that wrote a journal."""
    return [line.body["header"] for line in lines if line.kind == "run" and line.body]


def _earlier_header(journal: Path) -> Mapping[str, Any] | None:
    """Return the header of an earlier run; None if nothing was measured."""
    lines = read_journal(journal) if journal.exists() else []
    if all(line.kind in NOTHING_MEASURED for line in lines):
        return None
    return next(iter(headers_in(lines)), None)


def first_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[str, str]:
    """Return the first field in which two headers differ, and a description.

    Returns:
        The path of the field, and text such as ``number of threads: 1, not 2``; both are empty if
        the headers are equal.
    """
    for field, one, other in _differences({**_UNSAID, **there}, {**_UNSAID, **here}):
        return field, _difference_text(field, one, other)
    return "", ""


def check_state(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse the state of another run; fields that only one header has are ignored.

    Args:
        path: The state file.
        there: Its header.
        here: The header of this run, as far as it is known.

    Raises:
        UsageError: If they differ.
    """
    there, here = {**_UNSAID, **there}, {**_UNSAID, **here}
    field, text = first_difference(_said_by(there, here), _said_by(here, there))
    if field:
        # A fingerprint distinguishes models, but means nothing to people.
        raise UsageError(
            f"{path} is the state of a run with another {field if field == 'model' else text}.",
            "Name another state file, or none.",
        )


def _said_by(header: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return a header without fields that the other one lacks, including those of the engine."""
    found = {field: value for field, value in header.items() if field in other}
    own, others = found.get("engine"), other.get("engine")
    if isinstance(own, dict) and isinstance(others, dict):  # a state file may contain anything
        found["engine"] = {field: value for field, value in own.items() if field in others}
    return found


def _differences(
    there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield each field in which two headers differ, nested ones by their path, in order."""
    for field in dict.fromkeys([*here, *there]):
        one, other = there.get(field), here.get(field)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _differences(one, other, f"{prefix}{field}.")
        elif one != other:
            yield prefix + field, one, other


def _difference_text(field: str, there: Any, here: Any) -> str:
    group, _, rest = field.partition(".")
    if group == "shapes" and rest:
        name = f"shape of the input {rest!r}"
    elif rest.startswith("options."):
        name = f"engine option {rest.removeprefix('options.')}"
    else:
        name = _CALLED.get(field, field.replace("_", " "))
    return f"{name}: {_value_text(there)}, not {_value_text(here)}"


def _value_text(value: Any) -> str:
    if value is None:
        return "the default"
    return shape_text(value) if isinstance(value, list | tuple) else str(value)
