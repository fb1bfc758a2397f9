"""Measurements, written down before anything uses them: `measurements.jsonl`.

A run with the same header finds in it what was measured already; it makes the same decisions again
at no cost. A comparison that a kill cut off is resumed at the round that was lost.
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
from qdqtune.engines._timing import Round
from qdqtune.graph._atomic_files import open_to_append, replacing
from qdqtune.records._errors import OutputError, UsageError
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
_TrialRun = tuple[str, str, tuple[str, ...]]

# A crash or a hang may be the machine's fault: it counts when two runs have seen it.
_ASSUMED = 2
_NOT_KEPT = NOTHING_MEASURED | {"round", "file"}
# What a line has from the run that wrote it.
_OF_THE_RUN = frozenset({"run", "session", "at_s", "schema"})


class AccuracyKey(NamedTuple):
    """What an accuracy was measured of.

    Attributes:
        measure: What was measured.
        placement: Digest of the placement.
        conditions: Digest of what else the result depends on.
    """

    measure: str
    placement: str
    conditions: str


class Measurements:
    """What the lines of a journal say.

    Attributes:
        shares: Where the latency of the float model goes, by node; None if not known yet.
        accuracy: How accurate placements are; None where that could not be known.
        samples: On how many samples ranges were calibrated, where time was short; None where all
            were taken.
        names: Ids of candidates by their keys.
        earlier_benchmarks: Candidates that earlier runs timed.
        earlier_s: Seconds that earlier runs took, as far as it was written down.
    """

    def __init__(self) -> None:
        self.shares: dict[str, float] | None = None
        self.accuracy: dict[AccuracyKey, float | None] = {}
        self.samples: int | None = None
        self.names: dict[str, str] = {}
        self.earlier_benchmarks = 0
        self.earlier_s = 0.0
        self._scores: dict[_Comparison, Score] = {}
        self._unsure: Counter[_Comparison] = Counter()
        self._rounds: dict[_TrialRun, list[Round]] = {}
        self._digests: dict[str, str] = {}
        self._last = -1

    def knows(self, reference: str, candidate: str, effort: str) -> bool:
        """Whether a comparison was made before."""
        return (reference, candidate, effort) in self._scores

    def rounds(self, reference: str, candidates: Sequence[str], effort: str) -> list[Round]:
        """The rounds of a comparison that were timed before it was cut off.

        Args:
            reference: Key of what was compared with.
            candidates: Keys of what was compared. If they ran together with others, whose outcome
                was written down before the end, it is the same comparison.
            effort: How thoroughly.
        """
        wanted = [self.names.get(candidate, "") for candidate in candidates]
        best: list[Round] = []
        for (against, how, names), rounds in self._rounds.items():
            is_it = (against, how) == (reference, effort) and set(wanted) <= set(names)
            if is_it and len(rounds) > len(best):
                places = [names.index(name) for name in wanted]
                best = [_part(each, places) for each in rounds]
        return best

    def _take(self, body: Mapping[str, Any]) -> None:
        kind = body["kind"]
        for name in body["candidates"] if kind == "round" else [body.get("id", "")]:
            # Also of a candidate whose own line is damaged: its id must not mean another one.
            number = name[1:]
            self._last = max(self._last, int(number) if number.isdecimal() else -1)
        if kind == "candidate":
            self.names[body["key"]] = body["id"]
        elif kind == "file":
            self._digests[body["key"]] = body["digest"]
        elif kind == "shares":
            self.shares = body["shares"]
        elif kind == "calibration":
            self.samples = body["samples"]
        elif kind == "accuracy":
            key = AccuracyKey(body["measure"], body["placement"], body["conditions"])
            self.accuracy[key] = None if body["value"] is None else float(body["value"])
        elif kind == "adopted":
            self.earlier_s += body["seconds"]
        elif kind == "round":
            compared = (body["reference"], body["effort"], tuple(body["candidates"]))
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
            self._scores[key] = Score.failed(body["failure"])


class Journal(Measurements):
    """The measurements of one run folder.

    Args:
        path: The file; it is made if there is none.
        header: What the measurements depend on. Those made under another one are refused.
        elapsed_s: Seconds since this run began; never used to decide anything.
        model: What to call the model in messages.

    Attributes:
        memo_hits: How often an outcome was known already.
        session: The number of this run over the file, from 1 on.
        kept_lines: The lines that a state file holds, so that a run in another folder can go on:
            all but single rounds, and what is about this folder alone.

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
            has_header = path.exists() and self._take_in(header)
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
        """Close the file; everything is in it already, as far as it could be written."""
        with contextlib.suppress(OSError):
            self._file.close()

    def known(self, reference: str, candidate: str, effort: str) -> Score | None:
        """The outcome of a comparison that was made before."""
        score = self._scores.get((reference, candidate, effort))
        if score is not None:
            self.memo_hits += 1
        return score

    def name_of(self, key: str, *, force: bool = True) -> str:
        """The id of a candidate by its key: the same in every run over the same journal.

        Args:
            key: The key.
            force: Whether a new one is forced to the disk at once.
        """
        if key not in self.names:
            name = f"c{self._last + 1:04d}"
            self._record({"kind": "candidate", "id": name, "key": key}, force=force)
        return self.names[key]

    def keep_file(self, key: str, digest: str) -> None:
        """Write down what the file of a candidate is like, before it is measured.

        Args:
            key: The candidate's key.
            digest: Of the file and the weights that it refers to.
        """
        if self._digests.get(key) != digest:
            name = self.name_of(key)
            self._record({"kind": "file", "id": name, "key": key, "digest": digest}, force=False)

    def add_round(
        self, reference: str, candidates: Sequence[str], effort: str, played: Round
    ) -> None:
        """Write a round of a comparison down, so that a kill can't lose more than one.

        It is not forced to the disk: that would disturb what is being timed, and only a crash of
        the whole machine could lose it.
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
            },
            force=False,
        )

    def add(
        self, reference: str, candidate: str, effort: str, score: Score, details: Mapping[str, Any]
    ) -> None:
        """Write a comparison down.

        Args:
            reference: Key of what was compared with.
            candidate: Key of what was compared.
            effort: How thoroughly.
            score: What came out.
            details: What else people may want to know; ``unsure`` for a failure that may not be
                the candidate's.
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
                **details,
            }
        )
        self._scores[reference, candidate, effort] = score

    def adopt(self, lines: Iterable[str]) -> int:
        """Write down what was measured in another folder, as far as it is not known here.

        Args:
            lines: What a journal with the same header had `kept_lines`; damaged ones are left out.

        Returns:
            How many comparisons were taken over.
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
        """Write down where the latency goes: a search that is run again must see the same."""
        self._record({"kind": "shares", "shares": dict(shares)})

    def keep_samples(self, samples: int) -> None:
        """Write down that ranges come from the first samples alone: all would give other scales."""
        self._record({"kind": "calibration", "samples": samples})

    def keep_accuracy(self, key: AccuracyKey, value: float | None) -> None:
        """Write down how accurate a placement is: to find it out takes runs of the model."""
        is_finite = value is None or math.isfinite(value)
        written = value if is_finite else str(value)  # JSON has no infinity
        self._record({"kind": "accuracy", **key._asdict(), "value": written})

    def _record(self, body: Mapping[str, Any], *, force: bool = True) -> None:
        """Write a line and take it in, as a later run will."""
        self._append(body, force=force)
        self._take(body)

    def end(self, stopped: str) -> None:
        """Write down that this run is over, and how long it took."""
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

    def _take_in(self, wanted: Mapping[str, Any]) -> bool:
        """Take in an earlier run's lines, those that are sound; the others are set aside.

        Returns:
            Whether the header is there.
        """
        lines = read_journal(self.path)
        headers = headers_in(lines)
        if lines and all(line.kind in NOTHING_MEASURED for line in lines):
            with replacing(self.path):  # a run that came to nothing stands in nobody's way
                pass
            return False
        self._refuse_another_run(lines, wanted)
        damaged = [line for line in lines if not self._belongs(line, bool(headers))]
        sound = [line for line in lines if self._belongs(line, bool(headers))]
        if damaged:
            quarantine(self.path, damaged, sound)
        elif lines and not _ends_with_line(self.path):
            with open_to_append(self.path) as file:  # whole, but for its end
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
        """Whether a line is whole, and known to be of this model, engine and setting."""
        if line.body is None:
            return False
        return line.body["run"] == self._run if "run" in line.body else has_header

    def _refuse_another_run(self, lines: Sequence[Line], wanted: Mapping[str, Any]) -> None:
        """Refuse measurements that were made under another header, if only by what lines say."""
        advice = "Choose another --output_dir, or pass --restart to set that run aside."
        headers = headers_in(lines)
        for header in headers:
            field, other = first_difference(header, wanted)
            if field == "model":  # fingerprints tell models apart, but people nothing
                names = [line.body.get("model") for line in lines if line.body is not None]
                known = [name for name in names if isinstance(name, str)]
                other = f"model: {known[-1]}, as it was then" if known else "model"
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
    """What a line says, whichever run wrote it."""
    return {name: value for name, value in body.items() if name not in _OF_THE_RUN}


def _without_run(body: Mapping[str, Any]) -> str:
    return json.dumps(_of_no_run(body), sort_keys=True)


def _spent_s(bodies: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Seconds that each session took, as far as its lines say."""
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
