"""Phase 2 of subgraph mode: what `autotune_cache.json` does not know is profiled and kept there."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtune.calibration._tensor_capture import Array, capture_tensors
from qdqtune.engines import _registry as registry
from qdqtune.graph._atomic_files import remove, writing
from qdqtune.graph._files import write_text
from qdqtune.graph._prepared_model import Dims
from qdqtune.records._tuning import (
    BY_BUDGET,
    FINISHED,
    INTERRUPTED,
    Batch,
    SubgraphTimes,
    checked_ms,
)
from qdqtune.records._untrusted_files import SCHEMAS, check_schema, parse_json, read_text
from qdqtune.search.subgraphs._costs import ObservedCosts
from qdqtune.search.subgraphs._distinct_subgraphs import Subgraph
from qdqtune.workflows._shape_ranges import MAX, MIN, OPT, Shapes, shape_arguments
from qdqtune.workflows.tuning._context import RunContext
from qdqtune.workflows.tuning._journal_format import checksum
from qdqtune.workflows.tuning._setup import TuningTarget
from qdqtune.workflows.tuning._subgraph_profiler import SubgraphProfiler

KIND = "autotune_cache"
SCHEMA = SCHEMAS[KIND]

_logger = logging.getLogger(__name__)
# What the inputs of subgraphs may take of memory at once.
_BYTES_AT_ONCE = 1 << 28
_MOST_OPS_SHOWN = 6


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
                    key: {"units": meant, **_seen_to_dict(seen)}
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
            _logger.warning("%s is of another run and is not used", self.path)
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


def _seen_to_dict(seen: ObservedCosts) -> dict[str, Any]:
    return {
        "quantized": sorted(seen.quantized),
        "otherwise": sorted(seen.otherwise),
        "unit_ms": {str(number): ms for number, ms in seen.unit_ms.items()},
        "rest_ms": seen.rest_ms,
        "quantize_ms": dict(seen.quantize_ms),
        "dequantize_ms": dict(seen.dequantize_ms),
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


@dataclass(frozen=True)
class SubgraphProfiling:
    """Times subgraphs until all are known, or somebody has had enough.

    Attributes:
        ctx: The run.
        target: What is tuned.
        profiler: Times one subgraph.
        cache: What is known, and where times go.
        ranges: Smallest and largest shapes of tensors, if they were given.
    """

    ctx: RunContext
    target: TuningTarget
    profiler: SubgraphProfiler
    cache: SubgraphCache
    ranges: Mapping[str, Shapes]

    def run(self, subgraphs: Sequence[Subgraph], *, measure_float: bool) -> str:
        """Time every subgraph that is not known yet, those with the largest share first.

        Args:
            subgraphs: All of them.
            measure_float: Whether float forms are timed alone, too, where their time in the model
                is known.

        Returns:
            Why it ended, as the summary has it.
        """
        cache, reporter = self.cache, self.ctx.reporter
        cache.describe({subgraph.key: self._details(subgraph) for subgraph in subgraphs})
        missing = [subgraph for subgraph in subgraphs if not self._is_known(subgraph)]
        missing.sort(key=lambda subgraph: -self._share_ms(subgraph))
        known = len(subgraphs) - len(missing)
        reporter.search_begins()
        done, longest_s = 0, 0.0
        try:
            for subgraph, values in self._with_values(missing):
                if not self.ctx.budget.has_time_for(longest_s):
                    return BY_BUDGET
                began = time.monotonic()
                float_ms = self._share_ms(subgraph) / len(subgraph.groups)
                alone = measure_float or not float_ms
                times = self.profiler.profile(
                    subgraph, values, None if alone else float_ms, self._told_ranges(subgraph)
                )
                cache.keep_subgraph(times)
                longest_s = max(longest_s, time.monotonic() - began)
                done += 1
                reporter.tell(
                    "subgraphs", self._told(subgraph, times), benchmarks=done, known=known,
                    planned=len(subgraphs),
                )  # fmt: skip
        except KeyboardInterrupt:
            return INTERRUPTED
        cache.keep_profiled()
        return FINISHED

    def _is_known(self, subgraph: Subgraph) -> bool:
        """Whether an earlier run has timed a subgraph, with a time for each of its borders."""
        times = self.cache.subgraphs.get(subgraph.key)
        borders = len(subgraph.content.inputs) + len(subgraph.content.outputs)
        return times is not None and all(
            len(form.conversion_ms) == borders for form in times.forms if form.error is None
        )

    def _with_values(
        self, subgraphs: Sequence[Subgraph]
    ) -> Iterator[tuple[Subgraph, dict[str, Array]]]:
        """Subgraphs with what they read in a run, some at a time: memory is limited."""
        waiting = list(subgraphs)
        while waiting:
            part: list[Subgraph] = []
            size = 0
            while waiting and (not part or size + self._bytes(waiting[0]) <= _BYTES_AT_ONCE):
                size += self._bytes(waiting[0])
                part.append(waiting.pop(0))
            wanted = dict.fromkeys(
                tensor for subgraph in part for tensor in subgraph.content.inputs
            )
            shapes = {tensor: self._size(tensor) for tensor in wanted}
            feeds = next(iter(self.target.provider.evaluation_samples()))
            base, runner = self.profiler.inserter.base, self.ctx.engines.runner
            values = dict(capture_tensors(base, runner, feeds, shapes))
            for subgraph in part:
                yield subgraph, values

    def _bytes(self, subgraph: Subgraph) -> int:
        return sum(4 * math.prod(self._size(tensor)) for tensor in subgraph.content.inputs)

    def _size(self, tensor: str) -> tuple[int, ...]:
        return tuple(1 if dim is None else dim for dim in self.profiler.index.shape(tensor) or ())

    def _share_ms(self, subgraph: Subgraph) -> float:
        assert self.cache.groups is not None
        return sum(self.cache.groups[number][1] for number in subgraph.groups)

    def _details(self, subgraph: Subgraph) -> dict[str, Any]:
        """What people may want to know of a subgraph."""
        inputs = subgraph.content.inputs
        shapes = self._shapes(inputs)
        is_open = any(_is_open(self.profiler.dims.get(tensor)) for tensor in inputs)
        return {
            "groups": list(subgraph.groups),
            "nodes": list(subgraph.content.nodes),
            "shapes": shapes,
            "arguments": shape_arguments(shapes) if is_open else [],
            "skipped": dict(subgraph.skipped),
        }

    def _shapes(self, inputs: Iterable[str]) -> dict[str, Shapes]:
        return {
            label: {t: self.ranges.get(label, {}).get(t, self._size(t)) for t in inputs}
            for label in (MIN, OPT, MAX)
        }

    def _told_ranges(self, subgraph: Subgraph) -> dict[str, Shapes]:
        """Shapes of the subgraph's open inputs, if there is an engine that is told them."""
        is_told = registry.entry(self.target.request.engine).takes_shape_ranges
        if not is_told or not self.ranges:
            return {}
        is_open = (t for t in subgraph.content.inputs if _is_open(self.profiler.dims.get(t)))
        return self._shapes(list(is_open))

    def _told(self, subgraph: Subgraph, times: SubgraphTimes) -> str:
        ordered = sorted(subgraph.content.nodes, key=self.profiler.index.position.__getitem__)
        shown = ordered[:_MOST_OPS_SHOWN]
        ops = " + ".join(self.profiler.index.node[name].op_type for name in shown)
        also = " + …" if len(shown) < len(ordered) else ""
        forms = ", ".join(
            f"{form.scheme} {form.total_ms:.3f} ms" if form.error is None else f"no {form.scheme}"
            for form in times.forms
        )
        return f"{ordered[0]} ({ops}{also}), {len(subgraph.groups)} times: {forms}"


def _is_open(dims: Dims | None) -> bool:
    return dims is None or not all(isinstance(dim, int) for dim in dims)
