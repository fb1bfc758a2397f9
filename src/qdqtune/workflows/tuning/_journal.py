"""Measurements, recorded before anything uses them: `measurements.jsonl`.

A run with the same header finds earlier measurements in it, and makes the same decisions again at
no cost. A comparison that a kill interrupted is resumed at the round that was lost.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qdqtune._version import __version__
from qdqtune.config import STRUCTURE
from qdqtune.engines._timing import Round
from qdqtune.graph._atomic_files import open_to_append, replacing
from qdqtune.records._errors import OutputError, UsageError
from qdqtune.records._precision import AUTO
from qdqtune.search.strategies._strategy import Score
from qdqtune.workflows.tuning._journal_format import (
    NOTHING_MEASURED,
    Line,
    checksum,
    decode,
    encode,
    first_difference,
    headers_in,
    quarantine,
    read_journal,
)

_Comparison = tuple[str, str, str]
_TrialRun = tuple[str, str, str, tuple[str, ...]]

# A crash or a hang may be the machine's fault: it counts once two runs have seen it.
_ASSUMED = 2
# Kinds of lines of which the last one holds, and the field that says it.
_FACTS = {"build": "seconds", "calibration": "samples", "regions": "by", "shares": "shares"}
_NOT_KEPT = NOTHING_MEASURED - {"regions"} | {"round", "file"}
# Fields of a line that identify the run that wrote it.
_OF_THE_RUN = frozenset({"run", "session", "at_s", "schema"})


class AccuracyKey(NamedTuple):
    """The subject of an accuracy measurement.

    Attributes:
        measure: The quantity.
        placement: Digest of the placement.
        conditions: Digest of everything else the result depends on.
    """

    measure: str
    placement: str
    conditions: str


class Measurements:
    """The contents of a journal.

    Attributes:
        accuracy: Accuracy of placements; None if it could not be measured.
        names: Ids of candidates by their keys.
        earlier_benchmarks: Candidates that earlier runs timed.
        earlier_s: Duration of earlier runs in seconds, as far as it was recorded.
    """

    def __init__(self) -> None:
        self.accuracy: dict[AccuracyKey, float | None] = {}
        self.names: dict[str, str] = {}
        self.earlier_benchmarks = 0
        self.earlier_s = 0.0
        self._scores: dict[_Comparison, Score] = {}
        self._unsure: Counter[_Comparison] = Counter()
        self._rounds: dict[_TrialRun, list[Round]] = {}
        self._digests: dict[str, str] = {}
        self._facts: dict[str, Any] = {}
        self._last = -1

    @property
    def shares(self) -> dict[str, float] | None:
        """Shares of the float model's latency, by node; None if not known yet."""
        return self._facts.get("shares")

    @property
    def samples(self) -> int | None:
        """Number of samples for the ranges, if time was short; None if all were used."""
        return self._facts.get("calibration")

    @property
    def build_s(self) -> float | None:
        """Seconds of the model's first build, where builds are kept; None if not known yet."""
        return self._facts.get("build")

    @property
    def divided_by(self) -> str:
        """What divides the model into regions; structure, if nothing is recorded."""
        return str(self._facts.get("regions", STRUCTURE))

    def knows(self, reference: str, candidate: str, effort: str) -> bool:
        """Whether a comparison was made before."""
        return (reference, candidate, effort) in self._scores

    def rounds(
        self, reference: str, candidates: Sequence[str], effort: str, worker: str = ""
    ) -> list[Round]:
        """Return the recorded rounds of an interrupted comparison.

        Args:
            reference: Key of the reference.
            candidates: Keys of the candidates. If they ran together with others, whose outcome was
                recorded before the end, it is the same comparison.
            effort: The effort of the comparison.
            worker: The worker that continues it, if there are several: those of another one
                belong to another comparison.
        """
        wanted = [self.names.get(candidate, "") for candidate in candidates]
        best: list[Round] = []
        here = (reference, effort, worker)
        for (*where, names), rounds in self._rounds.items():
            is_it = tuple(where) == here and set(wanted) <= set(names)
            if is_it and len(rounds) > len(best):
                places = [names.index(name) for name in wanted]
                best = [_part(each, places) for each in rounds]
        return best

    def _take(self, body: Mapping[str, Any]) -> None:
        kind = body["kind"]
        for name in body["candidates"] if kind == "round" else [body.get("id", "")]:
            # Include candidates whose own line is damaged: their ids must not be reused.
            number = name[1:]
            self._last = max(self._last, int(number) if number.isdecimal() else -1)
        if kind == "candidate":
            self.names[body["key"]] = body["id"]
        elif kind == "file":
            self._digests[body["key"]] = body["digest"]
        elif kind in _FACTS:
            self._facts[kind] = body[_FACTS[kind]]
        elif kind == "accuracy":
            key = AccuracyKey(body["measure"], body["placement"], body["conditions"])
            self.accuracy[key] = None if body["value"] is None else float(body["value"])
        elif kind == "adopted":
            self.earlier_s += body["seconds"]
        elif kind == "round":
            where = body["reference"], body["effort"], body.get("worker", "")
            compared = (*where, tuple(body["candidates"]))
            numbers = tuple(body["latencies_ms"]), tuple(body["log_ratios"])
            self._rounds.setdefault(compared, []).append(Round(body["baseline_ms"], *numbers))
        elif kind == "measurement":
            self._take_measurement(body)

    def _take_measurement(self, body: Mapping[str, Any]) -> None:
        self.earlier_benchmarks += 1
        key = (body["reference"], body["candidate"], body["effort"])
        if body["failure"] is None:
            self._scores[key] = Score(body["gain"], body["error"])
            return
        self._unsure[key] += 1
        if not body.get("unsure") or self._unsure[key] >= _ASSUMED:
            self._scores[key] = Score.failed(body["failure"], body.get("refused", ()))


class Journal(Measurements):
    """The measurements of one run folder.

    Args:
        path: The file; created if missing.
        header: Everything that measurements depend on. A journal with another header is refused.
        elapsed_s: Seconds since this run began; never used to decide anything.
        model: The model's name in messages.

    Attributes:
        memo_hits: Number of outcomes that were already known.
        session: The number of this run over the file, from 1 on.
        kept_lines: The lines to store in a state file, so that a run in another folder can
            continue: all except single rounds and those that are about this folder.

    Raises:
        UsageError: If the file belongs to another model, engine or setting.
        OutputError: If it can't be read or written.
    """

    def __init__(
        self,
        path: Path,
        header: Mapping[str, Any],
        elapsed_s: Callable[[], float] = lambda: 0.0,
        model: str = "",
    ) -> None:
        super().__init__()
        self.path = path
        self.memo_hits = 0
        self.session = 1
        self.kept_lines: list[str] = []
        self._elapsed_s = elapsed_s
        self._run = checksum(header)
        try:
            has_header = path.exists() and self._take_in(header, model)
            self._file = open_to_append(path)
        except OSError as error:
            raise OutputError(
                f"{path} can't be written: {error.strerror}.", "Choose another --output_dir."
            ) from None
        if not has_header:
            self._append({"kind": "run", "header": header})
        session = {"kind": "session", "number": self.session, "version": __version__}
        started = datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds")
        named = {"model": model} if model else {}
        self._append({**session, **named, "started": started})

    def close(self) -> None:
        """Close the file; everything that could be written is already in it."""
        with contextlib.suppress(OSError):
            self._file.close()

    def known(self, reference: str, candidate: str, effort: str) -> Score | None:
        """Return the outcome of a comparison that was made before."""
        score = self._scores.get((reference, candidate, effort))
        if score is not None:
            self.memo_hits += 1
        return score

    def name_of(self, key: str, *, force: bool = True) -> str:
        """Return the id of a candidate by its key: the same in every run over the same journal.

        Args:
            key: The key.
            force: Whether a new one is flushed to disk at once.
        """
        if key not in self.names:
            name = f"c{self._last + 1:04d}"
            self._record({"kind": "candidate", "id": name, "key": key}, force=force)
        return self.names[key]

    def keep_file(self, key: str, digest: str) -> None:
        """Record the digest of a candidate's file before it is measured.

        Args:
            key: The candidate's key.
            digest: Digest of the file and the weights that it refers to.
        """
        if self._digests.get(key) != digest:
            name = self.name_of(key)
            self._record({"kind": "file", "id": name, "key": key, "digest": digest}, force=False)

    def add_round(
        self,
        reference: str,
        candidates: Sequence[str],
        effort: str,
        played: Round,
        worker: str = "",
    ) -> None:
        """Record a round of a comparison, so that a kill can't lose more than one.

        It is not flushed to disk: that would disturb the timing, and only a crash of the whole
        machine could lose it.
        """
        self._append(
            {
                "kind": "round",
                "reference": reference,
                "effort": effort,
                "candidates": [self.name_of(candidate) for candidate in candidates],
                "baseline_ms": played.baseline_ms,
                "latencies_ms": list(played.latencies_ms),
                "log_ratios": list(played.log_ratios),
                **({"worker": worker} if worker else {}),
            },
            force=False,
        )

    def add(
        self, reference: str, candidate: str, effort: str, score: Score, details: Mapping[str, Any]
    ) -> None:
        """Record a comparison.

        Args:
            reference: Key of the reference.
            candidate: Key of the candidate.
            effort: The effort of the comparison.
            score: The outcome.
            details: Additional information for readers; ``unsure`` for a failure that may not be
                the candidate's fault.
        """
        self._append(
            {
                "kind": "measurement",
                "reference": reference,
                "candidate": candidate,
                "effort": effort,
                "id": self.names.get(candidate, ""),
                "gain": None if score.failure is not None else score.gain,
                "error": score.error,
                "failure": score.failure,
                **({"refused": list(score.refused)} if score.refused else {}),
                **details,
            }
        )
        self._scores[reference, candidate, effort] = score

    def adopt(self, lines: Iterable[str]) -> int:
        """Record measurements from another folder that are not known here.

        Args:
            lines: The `kept_lines` of a journal with the same header; damaged ones are left out.

        Returns:
            Number of comparisons taken over.
        """
        known = {*self._scores, *self._unsure}
        there = {_without_run(body) for body in map(decode, self.kept_lines) if body is not None}
        before = self.earlier_benchmarks
        found = [body for body in map(decode, lines) if body and body.get("run") == self._run]
        seconds = sum(_spent_s(found).values())
        for body in found:
            kind = body["kind"]
            if kind == "adopted":
                seconds += body["seconds"]
            elif kind == "candidate":
                self.name_of(body["key"], force=False)
            elif kind == "measurement":
                if (body["reference"], body["candidate"], body["effort"]) not in known:
                    name = self.name_of(body["candidate"], force=False)
                    self._record({**_of_no_run(body), "id": name}, force=False)
            elif (kind != "shares" or self.shares is None) and _without_run(body) not in there:
                self._record(_of_no_run(body), force=False)
        adopted = self.earlier_benchmarks - before
        if adopted:
            self._record({"kind": "adopted", "seconds": seconds})
        return adopted

    def keep_shares(self, shares: Mapping[str, float]) -> None:
        """Record the latency shares: a resumed search must see the same ones."""
        self._record({"kind": "shares", "shares": dict(shares)})

    def keep_samples(self, samples: int) -> None:
        """Record that ranges come from the first samples only: all would give other scales."""
        self._record({"kind": "calibration", "samples": samples})

    def division_for(self, regions: str) -> str:
        """Return what divides the model: for auto, what was recorded if anything was measured."""
        is_open = self.divided_by == STRUCTURE and not self.earlier_benchmarks
        return regions if regions != AUTO or is_open else self.divided_by

    def keep_division(self, by: str) -> None:
        """Record what divides the model into regions: a resumed search must find the same ones."""
        if by != self.divided_by:
            self._record({"kind": "regions", "by": by})

    def keep_build_s(self, build_s: float) -> float:
        """Record the seconds of the first build of the model; returns the recorded ones."""
        if self.build_s is None:
            self._record({"kind": "build", "seconds": build_s})
        return self.build_s or 0.0

    def keep_accuracy(self, key: AccuracyKey, value: float | None) -> None:
        """Record the accuracy of a placement, since measuring it requires runs of the model."""
        is_finite = value is None or math.isfinite(value)
        written = value if is_finite else str(value)  # JSON has no infinity
        self._record({"kind": "accuracy", **key._asdict(), "value": written})

    def _record(self, body: Mapping[str, Any], *, force: bool = True) -> None:
        """Write a line and process it as a later run would."""
        self._append(body, force=force)
        self._take(body)

    def end(self, stopped: str) -> None:
        """Record the end of this run, and its duration."""
        self._append({"kind": "end", "seconds": self._elapsed_s(), "stopped": stopped})

    def _append(self, body: Mapping[str, Any], *, force: bool = True) -> None:
        at_s = round(self._elapsed_s(), 3)
        line = encode({**body, "run": self._run, "session": self.session, "at_s": at_s})
        if body["kind"] not in _NOT_KEPT:
            self.kept_lines.append(line.rstrip("\n"))
        try:
            self._file.write(line.encode())
            self._file.flush()
            if force:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise OutputError(
                f"{self.path} could not be written: {error.strerror}.",
                "Check that the disk has room. What was measured so far is in it: run the same "
                "command again to go on.",
            ) from None

    def _take_in(self, wanted: Mapping[str, Any], model: str) -> bool:
        """Read an earlier run's valid lines; the others are set aside.

        Returns:
            Whether the journal has a header.
        """
        lines = read_journal(self.path)
        headers = headers_in(lines)
        if lines and all(line.kind in NOTHING_MEASURED for line in lines):
            with replacing(self.path):  # a run without results must not block others
                pass
            return False
        self._refuse_another_run(lines, wanted, model)
        damaged = [line for line in lines if not self._belongs(line, bool(headers))]
        sound = [line for line in lines if self._belongs(line, bool(headers))]
        if damaged:
            quarantine(self.path, damaged, sound)
        elif lines and not _ends_with_line(self.path):
            with open_to_append(self.path) as file:  # complete except for its line end
                file.write(b"\n")
        bodies = [line.body for line in sound if line.body is not None]
        for body in bodies:
            self._take(body)
        self.kept_lines = [line.text.decode() for line in sound if line.kind not in _NOT_KEPT]
        spent_s = _spent_s(bodies)
        self.earlier_s += sum(spent_s.values())
        self.session = max(spent_s, default=0) + 1
        return bool(headers)

    def _belongs(self, line: Line, has_header: bool) -> bool:
        """Whether a line is valid, and known to belong to this model, engine and settings."""
        if line.body is None:
            return False
        return line.body["run"] == self._run if "run" in line.body else has_header

    def _refuse_another_run(
        self, lines: Sequence[Line], wanted: Mapping[str, Any], model: str
    ) -> None:
        """Refuse measurements with another header, even if only their lines show it."""
        advice = "Choose another --output_dir, or pass --restart to set that run aside."
        headers = headers_in(lines)
        for header in headers:
            field, other = first_difference(header, wanted)
            if field == "model":  # fingerprints are meaningless to people
                names = [line.body.get("model") for line in lines if line.body is not None]
                known = [name for name in names if isinstance(name, str)]
                other = f"model, {known[-1]}" if known else "model"
                other += " before it was changed" if model in known[-1:] else ""
            if field:
                raise UsageError(f"{self.path.parent} holds a run with another {other}.", advice)
        runs = {line.body["run"] for line in lines if line.body and "run" in line.body}
        if runs and not headers and self._run not in runs:
            raise UsageError(
                f"{self.path} holds measurements of something else; the line that says of what "
                "is damaged.",
                advice,
            )


def _ends_with_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _of_no_run(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a line, without the run that wrote it."""
    return {name: value for name, value in body.items() if name not in _OF_THE_RUN}


def _without_run(body: Mapping[str, Any]) -> str:
    return json.dumps(_of_no_run(body), sort_keys=True)


def _spent_s(bodies: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Return the duration of each session in seconds, as far as its lines show."""
    spent_s: dict[int, float] = {}
    for body in bodies:
        number = body.get("session", 0)
        spent_s[number] = max(spent_s.get(number, 0.0), body.get("at_s", 0.0))
    return spent_s


def _part(played: Round, places: Sequence[int]) -> Round:
    return Round(
        played.baseline_ms,
        tuple(played.latencies_ms[place] for place in places),
        tuple(played.log_ratios[place] for place in places),
    )
