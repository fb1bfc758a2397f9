"""What subgraph mode found out, for a run that goes on: `autotune_cache.json`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqtune.graph._atomic_files import remove, writing
from qdqtune.graph._files import write_text
from qdqtune.records._json_form import json_form
from qdqtune.records._tuning import Batch, SubgraphTimes, checked_ms
from qdqtune.records._untrusted_files import SCHEMAS, check_schema, parse_json, read_text
from qdqtune.search.subgraphs._assembly import ObservedCosts
from qdqtune.workflows.tuning._journal_format import checksum

KIND = "autotune_cache"
SCHEMA = SCHEMAS[KIND]

_logger = logging.getLogger(__name__)


class SubgraphCache:
    """The file and what is in it.

    Args:
        path: The file; there may be none.
        header: What everything in it depends on. What was found out under another one is left
            out.
        told_by: Who told the groups, if it wasn't the engine: if that changes, subgraphs stay
            known.

    Attributes:
        groups: Names of the nodes of each fusion group, with the milliseconds of the float model
            that go into it; None while they are not known.
        structural: How many of them no layer of the engine told.
        subgraphs: Times by key.
        is_profiled: Whether phase 2 is complete.
        seen: What whole models spend their time on, by the key of their placement; with what the
            numbers of units meant.
        build_s: Seconds that the float model took to build when it was first seen.
        batches: What phase 3 tried so far.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], told_by: str = "") -> None:
        self.path = path
        self.groups: list[tuple[tuple[str, ...], float]] | None = None
        self.structural = 0
        self.subgraphs: dict[str, SubgraphTimes] = {}
        self.is_profiled = False
        self.seen: dict[str, tuple[str, ObservedCosts]] = {}
        self.build_s: float | None = None
        self.batches: list[Batch] = []
        self._told_by = told_by
        self._header = dict(header)
        self._details: dict[str, Any] = {}
        self._read()

    def keep_groups(self, groups: Sequence[tuple[tuple[str, ...], float]], structural: int) -> None:
        """Write the fusion groups down."""
        self.groups, self.structural = list(groups), structural
        self._write()

    def keep_build_s(self, build_s: float) -> float:
        """Write down how long a build takes, unless that is known; returns what is known."""
        if self.build_s is None:
            self.build_s = build_s
            self._write()
        return self.build_s

    def describe(self, details: Mapping[str, Mapping[str, Any]]) -> None:
        """Take details of subgraphs for people, by key, to be written with their times."""
        self._details = {key: dict(each) for key, each in details.items()}

    def keep_subgraph(self, times: SubgraphTimes) -> None:
        """Write the times of a subgraph down."""
        self.subgraphs[times.key] = times
        self._write()

    def keep_profiled(self) -> None:
        """Write down that every subgraph was looked at."""
        self.is_profiled = True
        self._write()

    def keep_seen(self, key: str, seen: ObservedCosts, meant: str) -> None:
        """Write down what a whole model spends its time on, and what the numbers of units mean."""
        self.seen[key] = (meant, seen)
        self._write()

    def seen_in(self, key: str, meant: str) -> ObservedCosts | None:
        """What a whole model was seen to spend its time on, if units are what they were then."""
        then, seen = self.seen.get(key, ("", None))
        return seen if then == meant else None

    def keep_batches(self, batches: Sequence[Batch]) -> None:
        """Write down what was tried so far."""
        if list(batches) != self.batches:
            self.batches = list(batches)
            self._write()

    def _write(self) -> None:
        body = {
            "kind": KIND,
            "schema": SCHEMA,
            "run": checksum(self._header),
            "header": self._header,
            "build_s": self.build_s,
            "phase_1": {
                "told_by": self._told_by,
                "structural": self.structural,
                "groups": [{"nodes": list(n), "ms": ms} for n, ms in self.groups or ()],
            },
            "phase_2": {
                "complete": self.is_profiled,
                "pieces": [
                    {**times.to_dict(), "details": self._details.get(key, {})}
                    for key, times in self.subgraphs.items()
                ],
            },
            "phase_3": {
                "batches": [batch.to_dict() for batch in self.batches],
                "seen": {
                    key: {"units": meant, **json_form(seen)}
                    for key, (meant, seen) in self.seen.items()
                },
            },
        }
        write_text(self.path, json.dumps(body, indent=1) + "\n", force=True)

    def _read(self) -> None:
        try:
            found = self._parsed(parse_json(read_text(self.path), self.path.name))
            vars(self).update(found)
        except FileNotFoundError:
            return
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
            moved = self.path.with_suffix(".damaged.json")
            _logger.warning(
                "%s can't be read and was moved to %s: subgraphs are timed again",
                self.path, moved.name,
            )  # fmt: skip
            with writing(moved):
                remove(moved)
                os.replace(self.path, moved)

    def _parsed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes that a file says; none if it is of another run."""
        if body["kind"] == KIND:
            check_schema(KIND, body["schema"], str(self.path))
        if body["kind"] != KIND or body["schema"] != SCHEMA:
            raise ValueError("not a cache that this version can read")
        if body["run"] != checksum(self._header):
            _logger.warning("%s belongs to another run and is not used", self.path)
            return {}
        first, second, third = body["phase_1"], body["phase_2"], body["phase_3"]
        details = {str(entry["key"]): entry.pop("details", {}) for entry in second["pieces"]}
        times = map(SubgraphTimes.from_dict, second["pieces"])
        known = {
            "build_s": None if body["build_s"] is None else checked_ms(body["build_s"]),
            "subgraphs": {each.key: each for each in times},
            "_details": details,
        }
        if first["told_by"] != self._told_by:
            return known  # other groups: what was seen of them means nothing
        groups = [(tuple(map(str, g["nodes"])), checked_ms(g["ms"])) for g in first["groups"]]
        return known | {
            "structural": int(first["structural"]),
            "groups": groups or None,
            "is_profiled": bool(second["complete"]),
            "batches": [Batch.from_dict(each) for each in third["batches"]],
            "seen": {
                key: (str(each["units"]), _seen_from_dict(each))
                for key, each in third["seen"].items()
            },
        }


def _seen_from_dict(value: Mapping[str, Any]) -> ObservedCosts:
    return ObservedCosts(
        frozenset(map(int, value["quantized"])),
        {int(number): checked_ms(ms) for number, ms in value["unit_ms"].items()},
        checked_ms(value["rest_ms"]),
        {str(tensor): checked_ms(ms) for tensor, ms in value["quantize_ms"].items()},
        {str(tensor): checked_ms(ms) for tensor, ms in value["dequantize_ms"].items()},
        frozenset(map(int, value["otherwise"])),
    )
