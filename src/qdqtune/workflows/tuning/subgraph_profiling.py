"""Phase 2 of subgraph mode, all of it: what is not known yet is timed, and written down."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qdqtune.autotune.subgraphs.distinct_subgraphs import Subgraph
from qdqtune.calibration.tensor_capture import Array, capture_tensors
from qdqtune.engines import registry
from qdqtune.graph.extraction import Dims
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.prepared_model import PreparedModel
from qdqtune.records.subgraphs import SubgraphTimes
from qdqtune.records.tuning import BY_BUDGET, FINISHED, INTERRUPTED
from qdqtune.workflows.tuning.context import RunContext
from qdqtune.workflows.tuning.setup import TuningTarget
from qdqtune.workflows.tuning.shape_ranges import MAX, MIN, OPT, Shapes, shape_arguments
from qdqtune.workflows.tuning.subgraph_cache import SubgraphCache
from qdqtune.workflows.tuning.subgraph_profiler import SubgraphProfiler

# What the inputs of subgraphs may take of memory at once.
_BYTES_AT_ONCE = 1 << 28
_MOST_OPS_SHOWN = 6


@dataclass(frozen=True)
class TensorSizes:
    """What is known of the shapes of tensors.

    Attributes:
        index: The model, with the size of every tensor.
        dims: Shapes as the model has them, open where it is.
        ranges: Smallest and largest shapes of tensors, if they were given.
    """

    index: GraphIndex
    dims: Mapping[str, Dims | None]
    ranges: Mapping[str, Shapes]


class SubgraphProfiling:
    """Times subgraphs until all are known, or somebody has had enough.

    Args:
        ctx: The run.
        target: What is tuned.
        base: The float model.
        profiler: Times one subgraph.
        cache: What is known, and where times go.
        sizes: The shapes of tensors.
    """

    def __init__(
        self,
        ctx: RunContext,
        target: TuningTarget,
        base: PreparedModel,
        profiler: SubgraphProfiler,
        cache: SubgraphCache,
        sizes: TensorSizes,
    ) -> None:
        self._ctx = ctx
        self._target = target
        self._base = base
        self._profiler = profiler
        self._cache = cache
        self._sizes = sizes

    def run(self, subgraphs: Sequence[Subgraph], *, measure_float: bool) -> str:
        """Time every subgraph that is not known yet, those with the largest share first.

        Args:
            subgraphs: All of them.
            measure_float: Whether float forms are timed alone, too, where their time in the model
                is known.

        Returns:
            Why it ended, as the summary has it.
        """
        cache, reporter = self._cache, self._ctx.reporter
        cache.describe({subgraph.key: self._details(subgraph) for subgraph in subgraphs})
        missing = [subgraph for subgraph in subgraphs if not self._is_known(subgraph)]
        missing.sort(key=lambda subgraph: -self._share_ms(subgraph))
        known = len(subgraphs) - len(missing)
        reporter.search_begins()
        done, longest_s = 0, 0.0
        try:
            for subgraph, values in self._with_values(missing):
                if not self._ctx.pace.has_time_for(longest_s):
                    return BY_BUDGET
                began = time.monotonic()
                float_ms = self._share_ms(subgraph) / len(subgraph.groups)
                alone = measure_float or not float_ms
                times = self._profiler.profile(
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
        times = self._cache.subgraphs.get(subgraph.key)
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
            feeds = next(iter(self._target.provider.evaluation_samples()))
            values = dict(capture_tensors(self._base, self._ctx.engines.runner, feeds, shapes))
            for subgraph in part:
                yield subgraph, values

    def _bytes(self, subgraph: Subgraph) -> int:
        return sum(4 * math.prod(self._size(tensor)) for tensor in subgraph.content.inputs)

    def _size(self, tensor: str) -> tuple[int, ...]:
        return tuple(1 if dim is None else dim for dim in self._sizes.index.shape(tensor) or ())

    def _share_ms(self, subgraph: Subgraph) -> float:
        assert self._cache.groups is not None
        return sum(self._cache.groups[number][1] for number in subgraph.groups)

    def _details(self, subgraph: Subgraph) -> dict[str, Any]:
        """What people may want to know of a subgraph."""
        inputs = subgraph.content.inputs
        shapes = self._shapes(inputs)
        is_open = any(_is_open(self._sizes.dims.get(tensor)) for tensor in inputs)
        return {
            "groups": list(subgraph.groups),
            "nodes": list(subgraph.content.nodes),
            "shapes": shapes,
            "arguments": shape_arguments(shapes) if is_open else [],
            "skipped": dict(subgraph.skipped),
        }

    def _shapes(self, inputs: Iterable[str]) -> dict[str, Shapes]:
        return {
            label: {t: self._sizes.ranges.get(label, {}).get(t, self._size(t)) for t in inputs}
            for label in (MIN, OPT, MAX)
        }

    def _told_ranges(self, subgraph: Subgraph) -> dict[str, Shapes]:
        """Shapes of the subgraph's open inputs, if there is an engine that is told them."""
        is_told = registry.entry(self._target.request.engine).takes_shape_ranges
        if not is_told or not self._sizes.ranges:
            return {}
        is_open = (t for t in subgraph.content.inputs if _is_open(self._sizes.dims.get(t)))
        return self._shapes(list(is_open))

    def _told(self, subgraph: Subgraph, times: SubgraphTimes) -> str:
        ordered = sorted(subgraph.content.nodes, key=self._sizes.index.position.__getitem__)
        shown = ordered[:_MOST_OPS_SHOWN]
        ops = " + ".join(self._sizes.index.node[name].op_type for name in shown)
        also = " + …" if len(shown) < len(ordered) else ""
        forms = ", ".join(
            f"{form.scheme} {form.total_ms:.3f} ms" if form.error is None else f"no {form.scheme}"
            for form in times.forms
        )
        return f"{ordered[0]} ({ops}{also}), {len(subgraph.groups)} times: {forms}"


def _is_open(dims: Dims | None) -> bool:
    return dims is None or not all(isinstance(dim, int) for dim in dims)
