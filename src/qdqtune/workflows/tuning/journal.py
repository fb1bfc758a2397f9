"""Measurements, written down before anything uses them: `measurements.jsonl`.

One JSON object per line with its kind, schema and checksum. A run with the same header finds in it
what was measured already; it makes the same decisions again at no cost.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qdqtune.autotune.trial import Score
from qdqtune.records.errors import OutputError, UsageError

SCHEMA = 1

_logger = logging.getLogger(__name__)

_Key = tuple[str, str, str]


class Journal:
    """The measurements of one run folder.

    Args:
        path: The file; it is made if there is none.
        header: What the measurements depend on. Those made under another one are refused.

    Attributes:
        memo_hits: How often an outcome was known already.
        shares: Where the latency of the float model goes, by node; None if not known yet.

    Raises:
        UsageError: If the file belongs to another model, engine or setting.
        OutputError: If it can't be read or written.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.memo_hits = 0
        self.shares: dict[str, float] | None = None
        self._scores: dict[_Key, Score] = {}
        self._names: dict[str, str] = {}
        self._last = -1
        wanted = json.loads(json.dumps(header))
        try:
            found = self._read(wanted)
            is_cut = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
            self._file = path.open("a", encoding="utf-8")
            if is_cut:  # the last line ended with the process that wrote it
                self._file.write("\n")
            if not found:
                self._append({"kind": "run", "header": wanted})
        except OSError as error:
            raise OutputError(
                f"{path} can't be written: {error.strerror}.", "Choose another --output_dir."
            ) from None

    def close(self) -> None:
        """Close the file; everything is in it already."""
        self._file.close()

    def known(self, reference: str, candidate: str, effort: str) -> Score | None:
        """The outcome of a comparison that was made before."""
        score = self._scores.get((reference, candidate, effort))
        if score is not None:
            self.memo_hits += 1
        return score

    def name_of(self, key: str) -> str:
        """The id of a candidate by its key: the same in every run over the same journal."""
        if key not in self._names:
            self._last += 1
            self._names[key] = f"c{self._last:04d}"
            self._append({"kind": "candidate", "id": self._names[key], "key": key})
        return self._names[key]

    def add(
        self, reference: str, candidate: str, effort: str, score: Score, details: Mapping[str, Any]
    ) -> None:
        """Write a comparison down.

        Args:
            reference: Key of what was compared with.
            candidate: Key of what was compared.
            effort: How thoroughly.
            score: What came out.
            details: What else people may want to know.
        """
        self._append(
            {
                "kind": "measurement",
                "reference": reference,
                "candidate": candidate,
                "effort": effort,
                "id": self._names.get(candidate, ""),
                "gain": None if score.failure is not None else score.gain,
                "error": score.error,
                "failure": score.failure,
                **details,
            }
        )
        self._scores[reference, candidate, effort] = score

    def keep_shares(self, shares: Mapping[str, float]) -> None:
        """Write down where the latency goes: a search that is run again must see the same."""
        self._append({"kind": "shares", "shares": dict(shares)})
        self.shares = dict(shares)

    def _append(self, body: Mapping[str, Any]) -> None:
        complete = {"schema": SCHEMA, **body}
        line = json.dumps({**complete, "checksum": _checksum(complete)}, allow_nan=False)
        try:
            self._file.write(line + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OutputError(
                f"{self.path} could not be written: {error.strerror}.",
                "Check that the disk has room. What was measured so far is in it.",
            ) from None

    def _read(self, wanted: Mapping[str, Any]) -> bool:
        """Take in an earlier run's lines; returns whether there was one."""
        if not self.path.exists():
            return False
        found = False
        for body in read_lines(self.path):
            if body["kind"] == "run":
                self._check(body.get("header"), wanted)
                found = True
            elif not found:
                continue  # nobody knows of what this is a measurement
            elif body["kind"] == "candidate":
                self._names[body["key"]] = body["id"]
                self._last = max(self._last, int(body["id"][1:]))
            elif body["kind"] == "shares":
                self.shares = body["shares"]
            elif body["kind"] == "measurement":
                self._take(body)
        return found

    def _check(self, header: Any, wanted: Mapping[str, Any]) -> None:
        there = header if isinstance(header, dict) else {}
        for field in sorted({*there, *wanted}):
            if there.get(field) != wanted.get(field):
                raise UsageError(
                    f"{self.path.parent} holds a run with another {field}: "
                    f"{there.get(field)!r}, not {wanted.get(field)!r}.",
                    "Choose another --output_dir, or pass --force to replace that run.",
                )

    def _take(self, body: Mapping[str, Any]) -> None:
        failure = body["failure"]
        score = Score.failed(failure) if failure is not None else Score(body["gain"], body["error"])
        self._scores[body["reference"], body["candidate"], body["effort"]] = score


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a journal, in order; what is damaged is left out, and that is said.

    Raises:
        OSError: If it can't be read.
    """
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        body = _body_of(line)
        if body is None:
            _logger.warning("%s:%d is damaged and left out", path, number)
        else:
            yield body


def _checksum(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _body_of(line: str) -> dict[str, Any] | None:
    try:
        body = json.loads(line)
        checksum = body.pop("checksum")
        is_whole = checksum == _checksum(body) and body["schema"] == SCHEMA
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return body if is_whole else None
