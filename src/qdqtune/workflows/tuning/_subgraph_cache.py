"""The findings of subgraph mode, for a resumed run: `autotune_cache.json`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from qdqtune.graph._atomic_files import remove, writing
from qdqtune.graph._files import write_text
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._json_form import json_form
from qdqtune.records._placement import Placement
from qdqtune.records._tuning import Batch, SubgraphTimes, checked_ms
from qdqtune.records._untrusted_files import SCHEMAS, check_schema, parse_json, read_text
from qdqtune.search.subgraphs._observed_costs import ObservedCosts
from qdqtune.workflows.tuning._journal_format import checksum

KIND = "autotune_cache"
SCHEMA = SCHEMAS[KIND]

_logger = logging.getLogger(__name__)


class TimedGroup(NamedTuple):
    """A fusion group with its time in the float model.

    Attributes:
        nodes: Names of its nodes.
        ms: Milliseconds.
        part: The layer that it shares with other groups, compiled as a whole; else empty.
    """

    nodes: tuple[str, ...]
    ms: float
    part: str = ""


class SeenInPlace(NamedTuple):
    """A whole model that was built before the search, to see what its groups cost.

    Attributes:
        nodes: Names of the ops that were quantized.
        costs: What was seen, by the numbers of groups.
    """

    nodes: tuple[str, ...]
    costs: ObservedCosts

    def placement(self, planner: QuantizationPlanner) -> Placement:
        """Return what was quantized, as far as it still may be."""
        return planner.placement([name for name in self.nodes if name in planner.units])


@dataclass
class WholeModels:
    """What was found out by building whole models.

    Attributes:
        in_place: Those that were built to see what their groups cost.
        refused: Names of the ops that one could not be built with.
        predictions: Predicted speedups, by what was compared, as they were before it was measured.
        batches: The trials of phase 3 so far.
    """

    in_place: tuple[SeenInPlace, ...] = ()
    refused: tuple[str, ...] = ()
    predictions: Mapping[str, float] = field(default_factory=dict)
    batches: tuple[Batch, ...] = ()


class SubgraphCache:
    """The file and its contents.

    Args:
        path: The file, which may not exist.
        header: Everything that its contents depend on. Contents with another header are ignored.
        told_by: The source of the groups, if not the engine: if it changes, subgraphs stay known.

    Attributes:
        groups: Names of the nodes of each fusion group, with the milliseconds it takes in the float
            model; None while unknown.
        parts: Of each group, the name of the layer whose time it shares with other groups, so that
            its own time is a guess; empty if it has one of its own.
        structural: Number of groups that no engine layer reported.
        subgraphs: Times by key.
        is_profiled: Whether phase 2 is complete.
        seen: Observed costs of whole models, by the key of their placement, with the meaning of the
            unit numbers.
        build_s: Seconds that the first build of the float model took.
        large_ms: Milliseconds of a large product, to tell which times can't be; 0 if it was not
            timed, None while unknown.
        whole_models: What else was found out by building whole models.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], told_by: str = "") -> None:
        self.path = path
        self.groups: list[TimedGroup] | None = None
        self.structural = 0
        self.subgraphs: dict[str, SubgraphTimes] = {}
        self.is_profiled = False
        self.seen: dict[str, tuple[str, ObservedCosts]] = {}
        self.build_s: float | None = None
        self.large_ms: float | None = None
        self.whole_models = WholeModels()
        self._told_by = told_by
        self._header = dict(header)
        self._details: dict[str, Any] = {}
        self._read()

    @property
    def home_of(self) -> dict[str, int]:
        """The number of the group that each node is in."""
        return {name: n for n, group in enumerate(self.groups or ()) for name in group.nodes}

    def spent_ms(self, numbers: Iterable[int]) -> float:
        """Return the milliseconds that some groups take in the float model, together."""
        assert self.groups is not None
        return sum(self.groups[number].ms for number in numbers)

    def keep_groups(self, groups: Sequence[TimedGroup], structural: int) -> None:
        """Store the fusion groups."""
        self.groups, self.structural = list(groups), structural
        self._write()

    def keep_build_s(self, build_s: float) -> float:
        """Store the duration of a build, unless one is known; returns the known one."""
        if self.build_s is None:
            self.build_s = build_s
            self._write()
        return self.build_s

    def keep_large_ms(self, large_ms: float) -> None:
        """Store the duration of a large product."""
        self.large_ms = large_ms
        self._write()

    def describe(self, details: Mapping[str, Mapping[str, Any]]) -> None:
        """Add human-readable details of subgraphs, by key, to be written with their times."""
        self._details = {key: dict(each) for key, each in details.items()}

    def keep_subgraph(self, times: SubgraphTimes) -> None:
        """Store the times of a subgraph."""
        self.subgraphs[times.key] = times
        self._write()

    def keep_profiled(self) -> None:
        """Store that every subgraph was profiled."""
        self.is_profiled = True
        self._write()

    def keep_seen(self, key: str, seen: ObservedCosts, meant: str) -> None:
        """Store the observed costs of a whole model, and the meaning of the unit numbers."""
        self.seen[key] = (meant, seen)
        self._write()

    def seen_in(self, key: str, meant: str) -> ObservedCosts | None:
        """Return the observed costs of a whole model, if units have the same meaning as then."""
        then, seen = self.seen.get(key, ("", None))
        return seen if then == meant else None

    def keep_in_place(self, wholes: Sequence[SeenInPlace]) -> None:
        """Store what whole models told of their groups."""
        self.whole_models.in_place = tuple(wholes)
        self._write()

    def keep_refused(self, names: Iterable[str]) -> None:
        """Store ops that a whole model could not be built with."""
        self.whole_models.refused = tuple(dict.fromkeys((*self.whole_models.refused, *names)))
        self._write()

    def keep_predictions(self, predictions: Mapping[str, float]) -> None:
        """Store what is predicted of whole models that are about to be measured."""
        known = self.whole_models.predictions
        if not predictions.keys() <= known.keys():
            self.whole_models.predictions = {**predictions, **known}
            self._write()

    def keep_batches(self, batches: Sequence[Batch]) -> None:
        """Store the trials so far."""
        if tuple(batches) != self.whole_models.batches:
            self.whole_models.batches = tuple(batches)
            self._write()

    def _write(self) -> None:
        whole = self.whole_models
        body = {
            "kind": KIND,
            "schema": SCHEMA,
            "run": checksum(self._header),
            "header": self._header,
            "build_s": self.build_s,
            "phase_1": {
                "told_by": self._told_by,
                "structural": self.structural,
                "groups": [
                    {"nodes": list(nodes), "ms": ms, **({"part": part} if part else {})}
                    for nodes, ms, part in self.groups or ()
                ],
            },
            "phase_2": {
                "complete": self.is_profiled,
                "large_ms": self.large_ms,
                "refused": list(whole.refused),
                "in_place": [
                    {"nodes": list(nodes), **json_form(costs)} for nodes, costs in whole.in_place
                ],
                "pieces": [
                    {**times.to_dict(), "details": self._details.get(key, {})}
                    for key, times in self.subgraphs.items()
                ],
            },
            "phase_3": {
                "predicted": dict(whole.predictions),
                "batches": [batch.to_dict() for batch in whole.batches],
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
        """Return the attributes in a file; none if it belongs to another run."""
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
            "large_ms": None if (ms := second.get("large_ms")) is None else checked_ms(ms),
            "subgraphs": {each.key: each for each in times},
            "_details": details,
        }
        refused = tuple(map(str, second.get("refused", ())))
        if first["told_by"] != self._told_by:
            # Other groups, so the observed costs mean nothing.
            return known | {"whole_models": WholeModels(refused=refused)}
        groups = [
            TimedGroup(tuple(map(str, g["nodes"])), checked_ms(g["ms"]), str(g.get("part", "")))
            for g in first["groups"]
        ]
        return known | {
            "structural": int(first["structural"]),
            "groups": groups or None,
            "is_profiled": bool(second["complete"]),
            "whole_models": WholeModels(
                tuple(
                    SeenInPlace(tuple(map(str, each["nodes"])), _seen_from_dict(each))
                    for each in second.get("in_place", ())
                ),
                refused,
                {str(key): checked_ms(value) for key, value in third.get("predicted", {}).items()},
                tuple(map(Batch.from_dict, third["batches"])),
            ),
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
        checked_ms(value.get("divided_ms", 0.0)),
    )
