"""Phase 2 of subgraph mode: each distinct subgraph is timed in a few forms, with its borders."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import ModelProto
from onnx.helper import (
    make_graph,
    make_model,
    make_node,
    make_opsetid,
    make_tensor,
    make_tensor_value_info,
)

from qdqtune.calibration._instrumentation import capture_tensors
from qdqtune.engines import _registry as registry
from qdqtune.engines._comparison import compare_files
from qdqtune.engines._options import MAX, MIN, OPT, Shapes, range_options, without_ranges
from qdqtune.engines._pool import Job
from qdqtune.engines._worker import StoredFeeds, Worker
from qdqtune.engines._worker_environment import write_arrays
from qdqtune.engines.layers._latency import Borders, split_at_borders
from qdqtune.graph._atomic_files import replacing
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import DEQUANTIZE, QUANTIZE
from qdqtune.graph._prepared_model import Dims, PreparedModel, extract
from qdqtune.graph._weights import WeightStore
from qdqtune.qdq._encoding import Array
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._errors import ModelError, UsageError
from qdqtune.records._measurement import LayerTime, Measurement
from qdqtune.records._tuning import (
    BY_BUDGET,
    BY_LAYERS,
    BY_TOTAL,
    FINISHED,
    INTERRUPTED,
    SchemeTimes,
    SubgraphTimes,
)
from qdqtune.search.strategies._strategy import Effort
from qdqtune.search.subgraphs._quantizable_groups import NONE, Content, Subgraph, placement_inside
from qdqtune.workflows._sample_provider import shape_arguments
from qdqtune.workflows.tuning._cache_folder import subgraph_conditions
from qdqtune.workflows.tuning._folder import SUBGRAPHS
from qdqtune.workflows.tuning._run_records import TuningRun
from qdqtune.workflows.tuning._subgraph_cache import SubgraphCache
from qdqtune.workflows.tuning._subgraph_plan import make_plan
from qdqtune.workflows.tuning._throughput import SIZE, large_product, least_ms, multiply_adds

_IR_VERSION = 9
# Limit for the memory of subgraph inputs at a time.
_BYTES_AT_ONCE = 1 << 28
_MOST_OPS_SHOWN = 6
# A subgraph's share of the time limit for timing a whole model.
_PART_OF_EFFORT = 0.25
_FEWEST_ROUNDS = 6
# Conversions measured alone may cost more than inside a subgraph.
_LEAST_INSIDE = 0.05
_MUCH_UNTOLD = 0.7
# In which a large product is timed: those that GPUs have fast units for.
_PRODUCT_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_NOT_IN_NAMES = re.compile(r"\W+")


@dataclass
class ProfilerCounts:
    """What a profiler has done so far.

    Attributes:
        benchmarks: Forms of subgraphs that were built and timed.
        failed: Those that the engine refused.
    """

    benchmarks: int = 0
    failed: int = 0


@dataclass(frozen=True)
class _SharedTimes:
    """What is timed once for all subgraphs, by the worker that needs it first.

    Attributes:
        lock: Held while it is timed; the other workers wait for it.
        conversions_ms: One direction, by type and shape.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    conversions_ms: dict[tuple[ir.DataType, tuple[int, ...]], float] = field(default_factory=dict)


@dataclass
class SubgraphProfiler:
    """Times subgraphs of a model until all are known, or the run ends.

    Attributes:
        run: The run.
        cache: Has known times, and stores new ones.
        inserter: Writes candidates of the whole model; subgraphs use its ranges, dialect and quant
            type.
        planner: Knows what can be quantized in the model.
        index: The model, with all shapes known.
        dims: Shapes of tensors as in the model, including open dims.
        ranges: Smallest and largest shapes of tensors, if given.
        counts: What it has done so far.
        added: Times of subgraphs that were not known before.
    """

    run: TuningRun
    cache: SubgraphCache
    inserter: Inserter
    planner: QuantizationPlanner
    index: GraphIndex
    dims: Mapping[str, Dims | None]
    ranges: Mapping[str, Shapes]
    counts: ProfilerCounts = field(default_factory=ProfilerCounts, init=False)
    added: list[SubgraphTimes] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._store = WeightStore(self.run.folder / SUBGRAPHS, keep_index=True)
        self._shared = _SharedTimes()
        self._lock = threading.Lock()  # held while subgraphs are written and counted

    def profile_all(
        self, subgraphs: Sequence[Subgraph], candidates: int, *, measure_float: bool
    ) -> str:
        """Time every subgraph that is not known yet, those with the largest share first.

        Args:
            subgraphs: All of them.
            candidates: Whole models that the search may try afterwards.
            measure_float: Whether to also time float forms alone whose time in the model is known.
                Those of groups that share a layer are always timed.

        Returns:
            Why it ended, in the summary's terms.
        """
        cache, reporter = self.cache, self.run.reporter
        cache.describe({subgraph.key: self._details(subgraph) for subgraph in subgraphs})
        self._use_shared(subgraphs, measure_float=measure_float)
        missing = [subgraph for subgraph in subgraphs if not self._is_known(subgraph)]
        missing.sort(key=lambda subgraph: -self._share_ms(subgraph))
        known = len(subgraphs) - len(missing)
        forms_s = _PART_OF_EFFORT * self.run.request.preset.seconds[Effort.SCREEN]
        plan = make_plan(self.run.budget, missing, len(self.index.nodes), forms_s, candidates)
        if missing:
            reporter.tell("plan", str(plan), known=known, planned=len(subgraphs))
        reporter.search_begins()
        began, longest_s, done = time.monotonic(), plan.subgraphs_s / max(1, len(missing)), 0

        def has_time() -> bool:
            return time.monotonic() - began + longest_s <= plan.limit_s

        try:
            for part, values in self._with_values(missing):
                jobs = [
                    self._job(each, values, self.told_float_ms(each, measure_float=measure_float))
                    for each in part
                ]
                for number, (times, took_s) in self.run.pool.each(jobs, has_time):
                    cache.keep_subgraph(times)
                    self.added.append(times)
                    longest_s = max(longest_s if done else 0.0, took_s)  # the first was a guess
                    done += 1
                    reporter.tell(
                        "subgraphs", self._told(part[number], times), benchmarks=done, known=known,
                        planned=len(subgraphs),
                    )  # fmt: skip
        except KeyboardInterrupt:
            return INTERRUPTED
        if done < len(missing):
            return BY_BUDGET
        cache.keep_profiled()
        return FINISHED

    def _job(
        self, subgraph: Subgraph, values: Mapping[str, Array], float_ms: float | None
    ) -> Job[tuple[SubgraphTimes, float]]:
        """Return the profiling of a subgraph as a job, which also returns the seconds it takes."""

        def work(worker: Worker) -> tuple[SubgraphTimes, float]:
            began = time.monotonic()
            times = self.profile(worker, subgraph, values, float_ms)
            return times, time.monotonic() - began

        return Job(f"subgraph {subgraph.groups[0]}", work)

    def told_float_ms(
        self, subgraph: Subgraph, *, measure_float: bool, divided: bool = False
    ) -> float | None:
        """Return the time of a subgraph in the float model, if that need not be measured alone.

        Args:
            subgraph: The subgraph.
            measure_float: Whether all that can be is measured alone.
            divided: Whether its part of a layer that it shares with others will do.
        """
        float_ms = self._share_ms(subgraph) / len(subgraph.groups)
        is_told = float_ms and not measure_float and (divided or not self._shares_layer(subgraph))
        is_told = is_told and float_ms >= self._least_ms(self.run.engine, subgraph.content)
        return float_ms if is_told else None

    def _use_shared(self, subgraphs: Sequence[Subgraph], *, measure_float: bool) -> None:
        """Take what runs of other models found out about subgraphs of equal content.

        With a range of shapes, equal content may have been built for another range.
        """
        shared = self.run.shared
        if shared is None or self.ranges:
            return
        known = shared.times_under(subgraph_conditions(self.run.header))
        found = [each for each in subgraphs if not self._is_known(each) and each.key in known]
        for subgraph in found:
            times = replace(known[subgraph.key], file="")
            float_ms = self.told_float_ms(subgraph, measure_float=measure_float)
            if float_ms is not None:
                others = [form for form in times.forms if form.scheme != NONE]
                times = replace(times, forms=(told_form(float_ms, subgraph.content), *others))
            names = {form.scheme for form in times.forms}
            if names.issuperset((NONE, *(scheme.name for scheme in subgraph.schemes))):
                self.cache.keep_subgraph(times)
        told = f"{len(found)} of {len(subgraphs)} subgraphs are known from other runs"
        self.run.reporter.tell("cache", told)

    def profile(
        self,
        worker: Worker,
        subgraph: Subgraph,
        values: Mapping[str, Array],
        float_ms: float | None = None,
    ) -> SubgraphTimes:
        """Time a subgraph as float and with each of its schemes.

        Args:
            worker: The worker that times it.
            subgraph: The subgraph.
            values: The values of its inputs in a run of the model.
            float_ms: Its time in float, if that need not be measured.
        """
        name, content = f"subgraph_{subgraph.groups[0]:04d}", subgraph.content
        times = [] if float_ms is None else [told_form(float_ms, content)]
        try:
            with self._lock:
                plain, forms, errors = self._write_forms(subgraph, name)
        except ModelError as error:
            return SubgraphTimes(subgraph.key, BY_TOTAL, (SchemeTimes(NONE, error=error.what),))
        forms = forms if float_ms is None else forms[1:]
        feeds = self._feeds(name, {tensor: values[tensor] for tensor in content.inputs})
        layers: dict[int, list[LayerTime]] = {}
        ranges, files = self._told_ranges(subgraph), [file for _, file, _ in forms]
        measured = self._time(worker, files, feeds, layers.__setitem__, ranges)
        feeds.path.unlink(missing_ok=True)
        has_layers = all(layers.get(n) for n, each in enumerate(measured) if each.ok)
        split = {
            n: split_at_borders(model, layers[n], content.inputs, content.outputs)
            if has_layers
            else self._from_total(worker, measured[n], model, content)
            for n, (_, _, model) in enumerate(forms)
            if measured[n].ok
        }
        if has_layers:
            _add_untold(split, measured)
        times += (
            self._checked(worker, _times(scheme, measured[n], split.get(n), content), content)
            for n, (scheme, _, _) in enumerate(forms)
        )
        how = BY_LAYERS if has_layers else BY_TOTAL
        return SubgraphTimes(subgraph.key, how, (*times, *errors), plain.name)

    def _write_forms(
        self, subgraph: Subgraph, name: str
    ) -> tuple[Path, list[tuple[str, Path, GraphIndex]], list[SchemeTimes]]:
        """Write a subgraph in all its forms, float first.

        Returns:
            The float form, all forms by their schemes, and those that can't be written.
        """
        content = subgraph.content
        base = self._cut_out(content)
        inserter = self.inserter.of_part(base)
        plain = base.write(base.whole(), f"{name}.{NONE}")
        forms = [(NONE, plain, GraphIndex(base.load(base.whole())))]
        errors: list[SchemeTimes] = []
        for scheme in subgraph.schemes:
            placement = scheme.placement(content, self.planner)
            places = placement_inside(placement, content, self.planner)
            try:
                file = inserter.write(places, f"{name}.{_NOT_IN_NAMES.sub('_', scheme.name)}")
                forms.append((scheme.name, file, GraphIndex(inserter.model(places))))
            except UsageError as error:
                errors.append(SchemeTimes(scheme.name, error=error.what))
        return plain, forms, errors

    def _cut_out(self, content: Content) -> PreparedModel:
        dims: dict[str, Dims] = {}
        for tensor in (*content.inputs, *content.outputs):
            found = self.dims.get(tensor) or self.index.shape(tensor)
            if found is not None:
                dims[tensor] = found
        model = extract(self.inserter.base, content.nodes, content.inputs, content.outputs, dims)
        return PreparedModel(model, self.run.folder / SUBGRAPHS, store=self._store)

    def _feeds(self, name: str, values: Mapping[str, Array]) -> StoredFeeds:
        path = self.run.engine.scratch / f"{name}.npz"
        write_arrays(path, values)
        return StoredFeeds(path)

    def _time(
        self,
        worker: Worker,
        files: list[Path],
        feeds: StoredFeeds,
        take_layers: Callable[[int, list[LayerTime]], None] | None = None,
        ranges: Mapping[str, Shapes] = MappingProxyType({}),
    ) -> list[Measurement]:
        """Time files against each other, with their own shapes instead of the whole model's."""
        options, preset = worker.options, self.run.request.preset
        own = {**without_ranges(options.engine_options), **range_options(ranges)}
        measured, _ = compare_files(
            worker,
            files,
            feeds,
            rounds=max(_FEWEST_ROUNDS, preset.rounds[Effort.SCREEN] // 2),
            budget_s=preset.seconds[Effort.SCREEN] * _PART_OF_EFFORT,
            options=replace(options, engine_options=own),
            take_layers=take_layers,
        )
        with self._lock:
            self.counts.benchmarks += len(files)
            self.counts.failed += sum(not each.ok for each in measured)
        return measured

    def _from_total(
        self, worker: Worker, measured: Measurement, model: GraphIndex, content: Content
    ) -> Borders:
        """Without layers, subtract the cost of conversions, measured alone, from the total."""
        borders = Borders()
        for tensor, edge in ((t, e) for t in content.inputs for e in model.readers(t)):
            if edge.node and model.node[edge.node].op_type == QUANTIZE:
                borders.conversion_ms[tensor] = self.conversion_ms(worker, tensor)
        for tensor in content.outputs:
            maker = model.value[tensor].producer()
            if maker is not None and maker.op_type == DEQUANTIZE:
                borders.conversion_ms[tensor] = self.conversion_ms(worker, tensor)
        rest_ms = measured.latency_ms - sum(borders.conversion_ms.values())
        borders.inside_ms = max(rest_ms, _LEAST_INSIDE * measured.latency_ms)
        return borders

    def conversion_ms(self, worker: Worker, tensor: str) -> float:
        """Return the milliseconds of one direction: half of what both together add to a model."""
        with self._shared.lock:
            return self._conversion_ms_alone(worker, tensor)

    def _conversion_ms_alone(self, worker: Worker, tensor: str) -> float:
        kind = dtype, shape = self.index.dtype(tensor) or ir.DataType.FLOAT, self.size(tensor)
        known = self._shared.conversions_ms
        if kind not in known:
            name = f"conversion_{dtype.name.lower()}_{'x'.join(map(str, shape))}"
            folder = self.run.folder / SUBGRAPHS
            files = [folder / f"{name}.{each}.onnx" for each in ("none", "pair")]
            to = self.inserter.encoder.format.activation.dtype
            opset = self.inserter.base.index.model.opset_imports[""]
            for path in files:
                model = _conversion_model(dtype, shape, opset, None if path == files[0] else to)
                with replacing(path, durable=False) as file:
                    file.write(model.SerializeToString())
            values = np.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape)
            feeds = self._feeds(name, {"x": values.astype(dtype.numpy())})
            plain, both = self._time(worker, files, feeds)
            more_ms = both.latency_ms - plain.latency_ms if plain.ok and both.ok else 0.0
            known[kind] = max(0.0, more_ms / 2)
        return known[kind]

    def _checked(self, worker: Worker, times: SchemeTimes, content: Content) -> SchemeTimes:
        """Refuse a time that the products in a subgraph can't be computed in."""
        least_ms = self._least_ms(worker, content, quantized=times.scheme != NONE)
        if times.error is not None or times.inside_ms >= least_ms:
            return times
        with self._lock:
            self.counts.failed += 1
        told = (
            f"{times.inside_ms:.4f} ms can't be: the engine's fastest product would take at least "
            f"{least_ms:.4f} ms"
        )
        return SchemeTimes(times.scheme, error=told)

    def _least_ms(self, worker: Worker, content: Content, *, quantized: bool = False) -> float:
        """Return the least milliseconds of a subgraph's products; 0 if nothing is known."""
        work = multiply_adds(self.index, content.nodes)
        return least_ms(work, self._large_ms(worker), quantized=quantized) if work else 0.0

    def _large_ms(self, worker: Worker) -> float:
        """Return the milliseconds of a large product, which only a GPU computes in no time."""
        cache = self.cache
        with self._shared.lock:
            if cache.large_ms is None:
                is_fast = registry.entry(self.run.request.engine).keeps_builds
                cache.keep_large_ms(self._time_large_product(worker) if is_fast else 0.0)
        return cache.large_ms or 0.0

    def _time_large_product(self, worker: Worker) -> float:
        index = self.inserter.base.index
        floats = (index.dtype(value.name or "") for value in index.model.graph.outputs)
        dtype = next((t for t in floats if t in _PRODUCT_TYPES), ir.DataType.FLOAT)
        path = self.run.folder / SUBGRAPHS / f"large_product_{dtype.name.lower()}.onnx"
        with replacing(path, durable=False) as file:
            model = large_product(dtype, index.model.opset_imports[""])
            file.write(model.SerializeToString())
        values = np.linspace(-1.0, 1.0, SIZE * SIZE).reshape(SIZE, SIZE).astype(dtype.numpy())
        feeds = self._feeds("large_product", {"a": values, "b": values})
        layers: dict[int, list[LayerTime]] = {}
        (measured,) = self._time(worker, [path], feeds, layers.__setitem__)
        feeds.path.unlink(missing_ok=True)
        if not measured.ok:
            return 0.0
        longest_ms = max((layer.ms for layer in layers.get(0, ())), default=0.0)
        return longest_ms or measured.latency_ms  # without copies of inputs and outputs

    def _is_known(self, subgraph: Subgraph) -> bool:
        """Whether an earlier run timed a subgraph, with a time for each of its borders."""
        times = self.cache.subgraphs.get(subgraph.key)
        borders = len(subgraph.content.inputs) + len(subgraph.content.outputs)
        return times is not None and all(
            len(form.conversion_ms) == borders for form in times.forms if form.error is None
        )

    def _with_values(
        self, subgraphs: Sequence[Subgraph]
    ) -> Iterator[tuple[list[Subgraph], dict[str, Array]]]:
        """Yield subgraphs with the values they read in a run, some at a time to limit memory."""
        waiting = list(subgraphs)
        while waiting:
            part: list[Subgraph] = []
            size = 0
            while waiting and (not part or size + self._bytes(waiting[0]) <= _BYTES_AT_ONCE):
                size += self._bytes(waiting[0])
                part.append(waiting.pop(0))
            shapes = {tensor: self.size(tensor) for each in part for tensor in each.content.inputs}
            feeds = next(iter(self.run.provider.evaluation_samples()))
            runner = self.run.runner
            values = dict(capture_tensors(self.inserter.base, runner, feeds, shapes))
            yield part, values

    def _bytes(self, subgraph: Subgraph) -> int:
        return sum(4 * math.prod(self.size(tensor)) for tensor in subgraph.content.inputs)

    def size(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of a tensor in this run."""
        return tuple(1 if dim is None else dim for dim in self.index.shape(tensor) or ())

    def _share_ms(self, subgraph: Subgraph) -> float:
        return self.cache.spent_ms(subgraph.groups)

    def _shares_layer(self, subgraph: Subgraph) -> bool:
        assert self.cache.groups is not None
        return any(self.cache.groups[number].part for number in subgraph.groups)

    def _details(self, subgraph: Subgraph) -> dict[str, Any]:
        """Return human-readable details of a subgraph."""
        shapes = self._shapes(subgraph.content.inputs)
        return {
            "groups": list(subgraph.groups),
            "nodes": list(subgraph.content.nodes),
            "shapes": shapes,
            "arguments": shape_arguments(shapes) if self._open_inputs(subgraph) else [],
            "skipped": dict(subgraph.skipped),
        }

    def _shapes(self, inputs: Iterable[str]) -> dict[str, Shapes]:
        return {
            label: {t: self.ranges.get(label, {}).get(t, self.size(t)) for t in inputs}
            for label in (MIN, OPT, MAX)
        }

    def _told_ranges(self, subgraph: Subgraph) -> dict[str, Shapes]:
        """Return shapes of the subgraph's open inputs, if the engine needs them."""
        is_told = registry.entry(self.run.request.engine).takes_shape_ranges
        return self._shapes(self._open_inputs(subgraph)) if is_told and self.ranges else {}

    def _open_inputs(self, subgraph: Subgraph) -> list[str]:
        return [
            tensor
            for tensor in subgraph.content.inputs
            if not all(isinstance(dim, int) for dim in self.dims.get(tensor) or (None,))
        ]

    def _told(self, subgraph: Subgraph, times: SubgraphTimes) -> str:
        ordered = sorted(subgraph.content.nodes, key=self.index.position.__getitem__)
        shown = ordered[:_MOST_OPS_SHOWN]
        ops = " + ".join(self.index.node[name].op_type for name in shown)
        also = " + …" if len(shown) < len(ordered) else ""
        forms = ", ".join(
            f"{form.scheme} {form.total_ms:.3f} ms" if form.error is None else f"no {form.scheme}"
            for form in times.forms
        )
        return f"{ordered[0]} ({ops}{also}), {len(subgraph.groups)} times: {forms}"


def told_form(float_ms: float, content: Content) -> SchemeTimes:
    """Return the float form of a subgraph whose time in the model is known."""
    nothing = (0.0,) * (len(content.inputs) + len(content.outputs))
    return SchemeTimes(NONE, float_ms, float_ms, nothing, nothing)


def _conversion_model(
    dtype: ir.DataType, shape: tuple[int, ...], opset: int, quantized: ir.DataType | None
) -> ModelProto:
    """Build a model of one Relu, preceded by a conversion to a type and back if requested."""
    nodes = [make_node("Relu", ["x" if quantized is None else "back"], ["y"], name="last")]
    scales = []
    if quantized is not None:
        encoding = ["scale", "zero_point"]
        nodes[:0] = [
            make_node(QUANTIZE, ["x", *encoding], ["quantized"], name="to"),
            make_node(DEQUANTIZE, ["quantized", *encoding], ["back"], name="from"),
        ]
        scales = [
            make_tensor("scale", dtype.value, [], [0.01]),
            make_tensor("zero_point", quantized.value, [], [0]),
        ]
    x, y = (make_tensor_value_info(name, dtype.value, shape) for name in ("x", "y"))
    graph = make_graph(nodes, "conversion", [x], [y], scales)
    return make_model(graph, opset_imports=[make_opsetid("", opset)], ir_version=_IR_VERSION)


def _add_untold(split: Mapping[int, Borders], measured: Sequence[Measurement]) -> None:
    """Count time that an engine's layers don't account for as work, if it is a large part.

    A Concat was found whose layers take no time, but which takes 0.12 ms alone.
    """
    missing = {n: measured[n].latency_ms - each.total_ms for n, each in split.items()}
    if any(ms > _MUCH_UNTOLD * measured[n].latency_ms for n, ms in missing.items()):
        for number, borders in split.items():
            borders.inside_ms += max(0.0, missing[number])


def _times(
    scheme: str, measured: Measurement, borders: Borders | None, content: Content
) -> SchemeTimes:
    if borders is None:
        return SchemeTimes(scheme, error=measured.error)
    tensors = (*content.inputs, *content.outputs)
    return SchemeTimes(
        scheme,
        measured.latency_ms,
        borders.inside_ms,
        tuple(borders.conversion_ms.get(tensor, 0.0) for tensor in tensors),
        tuple(borders.layout_ms.get(tensor, 0.0) for tensor in tensors),
    )
