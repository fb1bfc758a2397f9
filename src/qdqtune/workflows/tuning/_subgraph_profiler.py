"""Time each distinct subgraph in a few forms, and the conversions at its borders."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx.helper import (
    make_graph,
    make_model,
    make_node,
    make_opsetid,
    make_tensor,
    make_tensor_value_info,
)

from qdqtune.engines._comparison import compare_files
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._options import Shapes, range_options, without_ranges
from qdqtune.engines._worker import StoredFeeds, Worker
from qdqtune.engines._worker_environment import write_arrays
from qdqtune.engines.layers._latency import Borders, split_at_borders
from qdqtune.graph._atomic_files import replacing
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import DEQUANTIZE, QUANTIZE
from qdqtune.graph._prepared_model import Dims, PreparedModel, extract
from qdqtune.graph._weights import WeightStore
from qdqtune.qdq._encoding import TensorFormat
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._errors import ModelError, UsageError
from qdqtune.records._measurement import LayerTime, Measurement
from qdqtune.records._tuning import BY_LAYERS, BY_TOTAL, SchemeTimes, SubgraphTimes
from qdqtune.search.strategies._strategy import Effort
from qdqtune.search.subgraphs._distinct_subgraphs import NONE, Content, Subgraph, placement_inside
from qdqtune.workflows.tuning._time_budget import Preset

Array = npt.NDArray[Any]

_IR_VERSION = 9
_HALF = 0.5
# Of what a whole model may take to be timed, a subgraph gets this part.
_PART_OF_EFFORT = 0.25
_FEWEST_ROUNDS = 6
# What conversions alone are seen to cost may be more than what they cost in a subgraph.
_LEAST_INSIDE = 0.05
_MUCH_UNTOLD = 0.7
_NOT_IN_NAMES = re.compile(r"\W+")


@dataclass
class Conversions:
    """Times conversions, each kind once.

    Attributes:
        folder: Where the models are written.
        layout: To what is quantized.
        opset: In which ONNX opset.
        store: Writes inputs down.
        time: Times files beside each other.
    """

    folder: Path
    layout: TensorFormat
    opset: int
    store: Callable[[str, dict[str, Array]], StoredFeeds]
    time: Callable[[list[Path], StoredFeeds], list[Measurement]]
    _known: dict[tuple[ir.DataType, tuple[int, ...]], float] = field(
        default_factory=dict, init=False
    )

    def ms(self, dtype: ir.DataType, shape: tuple[int, ...]) -> float:
        """Milliseconds of one direction: half of what both together add to a model."""
        kind = (dtype, shape)
        if kind not in self._known:
            name = f"conversion_{dtype.name.lower()}_{'x'.join(map(str, shape))}"
            files = [self._write(name, kind, with_pair=each) for each in (False, True)]
            values = np.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape)
            feeds = self.store(name, {"x": values.astype(dtype.numpy())})
            plain, both = self.time(files, feeds)
            more_ms = both.latency_ms - plain.latency_ms if plain.ok and both.ok else 0.0
            self._known[kind] = max(0.0, _HALF * more_ms)
        return self._known[kind]

    def _write(
        self, name: str, kind: tuple[ir.DataType, tuple[int, ...]], *, with_pair: bool
    ) -> Path:
        dtype, shape = kind
        last = make_node("Relu", ["back" if with_pair else "x"], ["y"], name="last")
        scales = [
            make_tensor("scale", dtype.value, [], [0.01]),
            make_tensor("zero_point", self.layout.dtype.value, [], [0]),
        ]
        pair = [
            make_node(QUANTIZE, ["x", "scale", "zero_point"], ["quantized"], name="to"),
            make_node(DEQUANTIZE, ["quantized", "scale", "zero_point"], ["back"], name="from"),
        ]
        graph = make_graph(
            [*pair, last] if with_pair else [last],
            "conversion",
            [make_tensor_value_info("x", dtype.value, shape)],
            [make_tensor_value_info("y", dtype.value, shape)],
            scales if with_pair else [],
        )
        opset = make_opsetid("", self.opset)
        path = self.folder / f"{name}.{'pair' if with_pair else 'none'}.onnx"
        model = make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)
        with replacing(path, durable=False) as file:
            file.write(model.SerializeToString())
        return path


@dataclass
class SubgraphProfiler:
    """Times subgraphs of a model.

    Attributes:
        worker: The engine.
        inserter: Writes candidates of the whole model; ranges, dialect and quant type are taken
            over.
        planner: What can be quantized in the model.
        index: The model, with the size of every tensor.
        dims: Shapes of tensors as the model has them, open where it is.
        folder: Where the subgraphs are written.
        preset: How thorough to be.
        benchmarks: Forms of subgraphs that were built and timed.
        failed: Those that the engine refused.
    """

    worker: Worker
    inserter: Inserter
    planner: QuantizationPlanner
    index: GraphIndex
    dims: Mapping[str, Dims | None]
    folder: Path
    preset: Preset
    benchmarks: int = field(default=0, init=False)
    failed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._store = WeightStore(self.folder, keep_index=True)
        layout, model = self.inserter.encoder.format.activation, self.inserter.base.index.model
        self._conversions = Conversions(
            self.folder, layout, model.opset_imports[""], self._feeds, self._time
        )

    def profile(
        self,
        subgraph: Subgraph,
        values: Mapping[str, Array],
        float_ms: float | None = None,
        ranges: Mapping[str, Shapes] | None = None,
    ) -> SubgraphTimes:
        """Time a subgraph as float and with each of its schemes.

        Args:
            subgraph: The subgraph.
            values: What its inputs are in a run of the model.
            float_ms: What it costs as float, if that need not be measured.
            ranges: What shapes its inputs may have, for an engine that is told such.
        """
        name = f"subgraph_{subgraph.groups[0]:04d}"
        content = subgraph.content
        try:
            base = self._cut_out(content)
        except ModelError as error:
            return SubgraphTimes(subgraph.key, BY_TOTAL, (SchemeTimes(NONE, error=error.what),))
        inserter = self.inserter.of_part(base)
        plain = base.write(base.whole(), f"{name}.{NONE}")
        files = [plain] if float_ms is None else []
        models = [GraphIndex(base.load(base.whole()))] if float_ms is None else []
        forms = {NONE: 0} if float_ms is None else {}
        errors: dict[str, str] = {}
        for scheme in subgraph.schemes:
            places = placement_inside(
                scheme.placement(content, self.planner), content, self.planner
            )
            try:
                file = f"{name}.{_NOT_IN_NAMES.sub('_', scheme.name)}"
                files.append(inserter.write(places, file))
                models.append(GraphIndex(inserter.model(places)))
                forms[scheme.name] = len(files) - 1
            except UsageError as error:
                errors[scheme.name] = error.what
        feeds = self._feeds(name, {tensor: values[tensor] for tensor in content.inputs})
        layers: dict[int, list[LayerTime]] = {}
        measured = self._time(files, feeds, layers.__setitem__, ranges)
        feeds.path.unlink(missing_ok=True)
        has_layers = all(layers.get(n) for n, each in enumerate(measured) if each.ok)
        times = []
        if float_ms is not None:
            nothing = (0.0,) * (len(content.inputs) + len(content.outputs))
            times.append(SchemeTimes(NONE, float_ms, float_ms, nothing, nothing))
        split: dict[int, Borders] = {}
        for number in (n for n in forms.values() if measured[n].ok):
            model = models[number]
            if has_layers:
                split[number] = split_at_borders(
                    model, layers[number], content.inputs, content.outputs
                )
            else:
                split[number] = self._from_total(measured[number], model, content)
        if has_layers:
            _add_untold(split, measured)
        for scheme_name, number in forms.items():
            if number in split:
                times.append(_times(scheme_name, measured[number], split[number], content))
            else:
                times.append(SchemeTimes(scheme_name, error=measured[number].error))
        times += [SchemeTimes(each, error=why) for each, why in errors.items()]
        return SubgraphTimes(
            subgraph.key, BY_LAYERS if has_layers else BY_TOTAL, tuple(times), plain.name
        )

    def _cut_out(self, content: Content) -> PreparedModel:
        dims: dict[str, Dims] = {}
        for tensor in (*content.inputs, *content.outputs):
            found = self.dims.get(tensor) or self.index.shape(tensor)
            if found is not None:
                dims[tensor] = found
        model = extract(self.inserter.base, content.nodes, content.inputs, content.outputs, dims)
        return PreparedModel(model, self.folder, store=self._store)

    def _feeds(self, name: str, values: Mapping[str, Array]) -> StoredFeeds:
        path = self.worker.scratch / f"{name}.npz"
        write_arrays(path, values)
        return StoredFeeds(path)

    def _time(
        self,
        files: list[Path],
        feeds: StoredFeeds,
        take_layers: Callable[[int, list[LayerTime]], None] | None = None,
        ranges: Mapping[str, Shapes] | None = None,
    ) -> list[Measurement]:
        rounds, seconds = self.preset.rounds[Effort.SCREEN], self.preset.seconds[Effort.SCREEN]
        measured, _ = compare_files(
            self.worker,
            files,
            feeds,
            rounds=max(_FEWEST_ROUNDS, rounds // 2),
            budget_s=seconds * _PART_OF_EFFORT,
            options=self._options(ranges or {}),
            take_layers=take_layers,
        )
        self.benchmarks += len(files)
        self.failed += sum(not each.ok for each in measured)
        return measured

    def _options(self, ranges: Mapping[str, Shapes]) -> SessionOptions:
        """How a subgraph is opened: with shapes of its own, not with those of the whole model."""
        options = self.worker.options
        own = {**without_ranges(options.engine_options), **range_options(ranges)}
        return replace(options, engine_options=own)

    def _from_total(self, measured: Measurement, model: GraphIndex, content: Content) -> Borders:
        """Without layers, what conversions cost alone is taken off the whole."""
        borders = Borders()
        for tensor, edge in ((t, e) for t in content.inputs for e in model.readers(t)):
            if edge.node and model.node[edge.node].op_type == QUANTIZE:
                borders.conversion_ms[tensor] = self._conversion_ms(tensor)
        for tensor in content.outputs:
            maker = model.value[tensor].producer()
            if maker is not None and maker.op_type == DEQUANTIZE:
                borders.conversion_ms[tensor] = self._conversion_ms(tensor)
        rest_ms = measured.latency_ms - sum(borders.conversion_ms.values())
        borders.inside_ms = max(rest_ms, _LEAST_INSIDE * measured.latency_ms)
        return borders

    def _conversion_ms(self, tensor: str) -> float:
        shape = tuple(1 if dim is None else dim for dim in self.index.shape(tensor) or ())
        return self._conversions.ms(self.index.dtype(tensor) or ir.DataType.FLOAT, shape)


def _add_untold(split: Mapping[int, Borders], measured: Sequence[Measurement]) -> None:
    """Count what an engine's layers don't account for as work, if that is much of some form.

    Seen: a Concat whose layers take no time, and which takes 0.12 ms alone.
    """
    missing = {n: measured[n].latency_ms - each.total_ms for n, each in split.items()}
    if any(ms > _MUCH_UNTOLD * measured[n].latency_ms for n, ms in missing.items()):
        for number, borders in split.items():
            borders.inside_ms += max(0.0, missing[number])


def _times(scheme: str, measured: Measurement, borders: Borders, content: Content) -> SchemeTimes:
    tensors = (*content.inputs, *content.outputs)
    return SchemeTimes(
        scheme,
        measured.latency_ms,
        borders.inside_ms,
        tuple(borders.conversion_ms.get(tensor, 0.0) for tensor in tensors),
        tuple(borders.layout_ms.get(tensor, 0.0) for tensor in tensors),
    )
