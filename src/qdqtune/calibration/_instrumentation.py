"""Models with additional outputs, and their runs in bounded memory.

Everything that inspects the inside of a model uses this module: statistics of tensors, their values
and shapes, and the first overflow; errors of layers are reduced in the same way. Tensors are
reduced inside the engine, so that a run returns a few numbers for each, however large they are.
"""

from __future__ import annotations

import contextlib
import logging
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper
from onnx.helper import make_node, make_tensor_value_info

from qdqtune.calibration._random_inputs import Feeds
from qdqtune.calibration._range_fitting import Histogram
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._reference_engine import AS_WRITTEN, advice_on, opening_options
from qdqtune.engines._worker import FailureKind, OpenModel, Worker, WorkerFailure
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import is_op
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._weights import constant_of
from qdqtune.qdq._encoding import Array
from qdqtune.records._errors import EngineError, ModelError
from qdqtune.records._placement import Placement

if TYPE_CHECKING:
    from qdqtune.engines._interface import Outputs

Shape = tuple[int, ...]

Progress = Callable[[int, "int | None"], None]
"""Called with the number of samples done, and the total if known."""

_logger = logging.getLogger(__name__)

_BLOCK = 32
_EXTREMES = "qdqtune_extremes"

# The engine's minimum and maximum ignore NaN unless it comes first. A sum of absolute values is NaN
# if and only if one of them is, even if it overflows; it makes runs 6 to 13 % longer.
_REDUCTIONS = ("ReduceMin", "ReduceMax", "ReduceL1")

_ALL_VALUES = 1 << 20
_VALUES_PER_TENSOR = (256, 4096)
_END = np.iinfo(np.int64).max

# Limit for the values taken from one run; the model is run again for the rest.
_BYTES_AT_ONCE = 1 << 28

AXES_INPUT_OPSET = 18
"""From this opset on, reductions take their axes as an input."""

_OTHER_INPUTS = "Feed it with what it gets in use; of open dims, not all sizes may be possible."
_OTHER_SHAPES = "Check the input shapes: --shapes, --dim."


class PackedOutput(ABC):
    """The nodes of a model, interspersed with nodes that reduce tensors into one flat output.

    The cost of nodes depends on their position in the file. ONNX Runtime computes the inputs of a
    node from the last to the first in the file, so tensors reduced late keep their memory to the
    end. It also sorts the list of nodes that could run next when it opens a model: with all
    reductions at the end, all are in that list, and 4,000 nodes take minutes. So the reductions of
    a block of neighbours follow that block in reverse order, and each block is joined to those
    before it.

    Args:
        output: The name of the output, which is the prefix of all added names.

    Attributes:
        nodes: The nodes so far; a caller appends the model's own.
        order: The tensors in the order of the output.
    """

    def __init__(self, output: str) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.order: list[str] = []
        self._output = output
        self._constants: dict[str, onnx.TensorProto] = {}
        self._waiting: list[str] = []
        self._blocks = 0
        self._results: list[str] = []

    @property
    def constants(self) -> Iterable[onnx.TensorProto]:
        """The constants that the nodes read."""
        return self._constants.values()

    def want(self, tensor: str) -> None:
        """Request the reduction of a tensor; its node must be among the nodes."""
        self._waiting.append(tensor)
        if len(self._waiting) >= _BLOCK:
            self._reduce_block()

    def watch(self, base: PreparedModel, tensors: Collection[str]) -> None:
        """Take all nodes of a model, reduce some of its tensors, and finish.

        Args:
            base: The model.
            tensors: The tensors.
        """
        wanted = frozenset(tensors)
        for name in tensors:
            if base.index.value[name].producer() is None:
                self.want(name)
        for node, proto in zip(base.index.nodes, base.nodes, strict=True):
            self.nodes.append(proto)
            for value in node.outputs:
                if value.name in wanted:
                    self.want(value.name)
        self.finish()

    def finish(self) -> None:
        """Reduce the remaining tensors, and join everything into the output."""
        self._reduce_block()
        self._join(self._output)

    @abstractmethod
    def reduce(self, tensor: str, label: str) -> list[str]:
        """Add the nodes that reduce a tensor.

        Args:
            tensor: Its name.
            label: Prefix for the names of the nodes and their outputs.

        Returns:
            The outputs to join into the packed one: vectors of float32.
        """

    def add(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node; returns its output."""
        self.nodes.append(make_node(op_type, inputs, [output], name=output, **attributes))
        return output

    def constant(self, value: int | float | list[int]) -> str:
        """Add a constant: int64 for a list, else float32; returns its name."""
        array = np.array(value, np.int64 if isinstance(value, list) else np.float32)
        name = f"{self._output}_constant_{len(self._constants)}"
        found = self._constants.setdefault(str(value), numpy_helper.from_array(array, name))
        return str(found.name)

    def reduced(self, op_type: str, rows: str, axis: int, output: str, *, opset: int) -> str:
        """Reduce an axis of a tensor away; returns the result.

        Args:
            op_type: How, such as ``ReduceMean``.
            rows: The tensor.
            axis: The axis.
            output: The name of the result.
            opset: That of the model.
        """
        if opset >= AXES_INPUT_OPSET:
            return self.add(op_type, [rows, self.constant([axis])], output, keepdims=0)
        return self.add(op_type, [rows], output, axes=[axis], keepdims=0)

    def flat(self, tensor: str, dtype: ir.DataType | None, label: str) -> str:
        """Return a tensor of any rank and type as a vector of float32."""
        tensor = self.real(tensor, dtype, label)
        return self.add("Reshape", [tensor, self.constant([-1])], f"{label}_flat")

    def real(self, tensor: str, dtype: ir.DataType | None, label: str) -> str:
        """Return a tensor of any type as float32."""
        if dtype == ir.DataType.FLOAT:
            return tensor
        return self.add("Cast", [tensor], f"{label}_float", to=onnx.TensorProto.FLOAT)

    def _reduce_block(self) -> None:
        results: list[str] = []
        for position, tensor in reversed(list(enumerate(self._waiting, len(self.order)))):
            results += self.reduce(tensor, f"{self._output}_{position}")
        self.order += reversed(self._waiting)
        self._waiting.clear()
        self._join(f"{self._output}_joined_{self._blocks}")  # after the reductions of this block
        self._blocks += 1
        self._results += results

    def _join(self, name: str) -> None:
        """Join the pending results, after those that are already joined."""
        if self._results:
            self._results = [self.add("Concat", self._results, name, axis=0)]


def variant(
    base: PreparedModel,
    nodes: Iterable[onnx.NodeProto],
    outputs: Iterable[onnx.ValueInfoProto],
    constants: Iterable[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """Return the base with other nodes and outputs, and with additional constants."""
    content = base.assemble((), base.constant_parts.values())
    proto: onnx.ModelProto = onnx.ModelProto.FromString(content)
    del proto.graph.output[:]
    proto.graph.node.extend(nodes)
    proto.graph.output.extend(outputs)
    proto.graph.initializer.extend(constants)
    return proto


@contextlib.contextmanager
def running(
    base: PreparedModel, worker: Worker, model: onnx.ModelProto, options: SessionOptions | None
) -> Iterator[Callable[[Feeds], Outputs]]:
    """Open a variant of a base inside the context.

    Args:
        base: The base.
        worker: A worker of the reference engine.
        model: The variant.
        options: How to open it.

    Yields:
        A function that runs it.

    Raises:
        WorkerFailure: If it can't be opened.
    """
    path = base.write_for_now(model.SerializeToString(), "instrumented")
    try:
        opened = _open(worker, path, options)
        yield lambda feeds: worker.run(opened, feeds)
        worker.release(opened)
    finally:
        path.unlink(missing_ok=True)


def _open(worker: Worker, path: Path, options: SessionOptions | None) -> OpenModel:
    """Open a model; without optimizations if the engine's optimizations fail on it.

    ONNX Runtime 1.31 fuses the GELU of a GPT-2 although one of its tensors is an output, and then
    reports that tensor as missing.
    """
    try:
        return worker.open(path, options)
    except WorkerFailure as failure:
        if options is AS_WRITTEN or failure.kind is FailureKind.TIMEOUT:
            raise
        try:
            return worker.open(path, AS_WRITTEN)
        except WorkerFailure:
            raise failure from None


class _Statistics(PackedOutput):
    """Reduces tensors to `_REDUCTIONS`, and to some of their values if requested.

    Args:
        base: The model.
        tensors: The tensors to reduce.
        with_values: Whether to return values as well.
    """

    def __init__(self, base: PreparedModel, tensors: Collection[str], *, with_values: bool) -> None:
        super().__init__(_EXTREMES)
        self._index = base.index
        self._with_values = with_values
        self._count = int(np.clip(_ALL_VALUES // max(len(tensors), 1), *_VALUES_PER_TENSOR))
        self.watch(base, tensors)

    def reduce(self, tensor: str, label: str) -> list[str]:
        """Return the reductions, then the number of values and the values."""
        flat = self.flat(tensor, self._index.dtype(tensor), label)
        # For a tensor without elements: inf, -inf and 0, which have no effect.
        results = [
            self.add(op_type, [flat], f"{label}_{op_type}", keepdims=1) for op_type in _REDUCTIONS
        ]
        if self._with_values:
            first, step = self.constant([0]), self._step(tensor, flat, label)
            ends = [first, self.constant([_END]), first, step]
            values = self.add("Slice", [flat, *ends], f"{label}_values")
            size = self.add("Shape", [values], f"{label}_size")
            results.append(self.add("Cast", [size], f"{label}_real", to=onnx.TensorProto.FLOAT))
            results.append(values)
        return results

    def _step(self, tensor: str, flat: str, label: str) -> str:
        """Return the distance between values; an even step would skip half of most channels."""
        shape = known_shape(self._index, tensor)
        if shape is not None:
            return self.constant([even_step(shape, self._count)])
        size = self.add("Shape", [flat], f"{label}_elements")
        times = self.add("Div", [size, self.constant([2 * self._count])], f"{label}_times")
        even = self.add("Mul", [times, self.constant([2])], f"{label}_even")
        return self.add("Add", [even, self.constant([1])], f"{label}_step")

    def parted(self, output: Array) -> tuple[Array, list[Array]]:
        """Split the output of a run.

        Returns:
            An array with a row of `_REDUCTIONS` per tensor, and the values of each.
        """
        rows, values, at = [], [], 0
        for _ in self.order:
            end = at + len(_REDUCTIONS)
            rows.append(output[at:end])
            at = end + 1 + int(output[end]) if self._with_values else end
            values.append(output[end + 1 : at])
        return np.array(rows), values


def even_step(shape: Sequence[int], count: int) -> int:
    """Return a step that takes about this many values of a tensor, evenly from all channels."""
    size = math.prod(shape)
    step = max(-(-size // count), 1)
    # A step that shares no factor with any dim skips no row, column or channel.
    while math.gcd(step, size) != 1 and step < size:
        step += 1
    return step


@dataclass(frozen=True)
class TensorStatistics:
    """The observed statistics of tensors.

    Attributes:
        whole: Smallest and largest value of every tensor that has a range.
        samples: Number of samples that were run.
        strange: Tensors without a range, and the first sample on which they were infinite or
            undefined.
        histograms: Histograms of evenly spread values, by tensor; empty if only extremes were
            requested.
    """

    whole: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    samples: int = 0
    strange: Mapping[str, int] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)


def collect_statistics(
    base: PreparedModel,
    worker: Worker,
    samples: Iterable[Feeds],
    tensors: Collection[str],
    *,
    with_values: bool = False,
    as_written: bool = False,
    total: int | None = None,
    progress: Progress | None = None,
) -> TensorStatistics:
    """Run the model once on each sample, in memory that does not grow with their number.

    Extremes are computed inside the engine; without values, it returns three numbers per tensor and
    sample. Values are counted into histograms as they arrive.

    Args:
        base: The model.
        worker: A worker of the reference engine.
        samples: Input sets, read one at a time.
        tensors: The tensors to observe: float tensors of the main graph.
        with_values: Whether to build histograms.
        as_written: Whether to run every op as it is written, without the engine's optimizations.
        total: Number of samples, if the iterable has no length.
        progress: Called after every sample.

    Raises:
        EngineError: If the model does not run.
        ModelError: If there are no samples.
    """
    if not tensors:
        return TensorStatistics()
    statistics = _Statistics(base, tensors, with_values=with_values)
    output = make_tensor_value_info(_EXTREMES, onnx.TensorProto.FLOAT, [None])
    model = variant(base, statistics.nodes, [output], statistics.constants)
    extremes = _Extremes(statistics.order)
    histograms = {name: Histogram() for name in statistics.order} if with_values else {}
    total = total or operator.length_hint(samples) or None
    # The engine's optimizations stay enabled: watched tensors have a reader, so they are not fused
    # away. Measured on one core with everything watched, against as written (and the bare model):
    # ResNet-18 32 ms against 43 (28), MobileNetV2 19 against 27 (8), ViT 133 against 137 (93).
    options = AS_WRITTEN if as_written else opening_options(len(base.nodes))
    at = ""
    try:
        with running(base, worker, model, options) as run:
            for feeds in samples:
                at = f" on sample {extremes.samples}"
                reduced, values = statistics.parted(run(feeds)[_EXTREMES])
                extremes.add(reduced)
                for histogram, some in zip(histograms.values(), values, strict=False):
                    histogram.add(some)
                if progress is not None:
                    progress(extremes.samples, total)
    except WorkerFailure as failure:
        raise EngineError(
            f"The float model does not run{at}, so it can't be calibrated: {failure}",
            advice_on(failure, base.index.model, worker.engine, _OTHER_INPUTS),
        ) from None
    if not extremes.samples:
        raise ModelError("There is no calibration data.", "Give at least one sample.")
    return TensorStatistics(extremes.ranges(), extremes.samples, extremes.strange, histograms)


def watched_tensors(index: GraphIndex, placement: Placement | None = None) -> list[str]:
    """Return all float tensors of the main graph that are neither constant nor known to be empty.

    Args:
        index: The model.
        placement: Restricts them to those that it quantizes; None means all.
    """
    quantized = None
    if placement is not None:
        quantized = {edge.tensor for edge in index.effective(placement)}
    return [
        name
        for name, value in index.value.items()
        if index.is_float(name)
        and not value.is_initializer()
        and 0 not in (index.shape(name) or ())
        and index.readers(name)
        and (quantized is None or name in quantized)
    ]


def warn_of(strange: Mapping[str, int]) -> None:
    """Warn about tensors that have no range."""
    for name, sample in strange.items():
        _logger.warning(
            "%s takes infinite or undefined values, first in sample %d: it has no range",
            name, sample,
        )  # fmt: skip


class _Extremes:
    """Smallest and largest value per tensor, and the first sample where one has no range."""

    def __init__(self, tensors: Sequence[str]) -> None:
        self.samples = 0
        self.strange: dict[str, int] = {}
        self._tensors = tensors
        self._lows = np.full(len(tensors), np.inf)
        self._highs = np.full(len(tensors), -np.inf)

    def add(self, reductions: Array) -> None:
        lows, highs, sums = reductions.T
        # The minimum of a tensor without elements is infinite, too, but above its maximum.
        infinite = (np.isinf(lows) | np.isinf(highs)) & (lows <= highs)
        for position in np.flatnonzero(infinite | np.isnan(sums)).tolist():
            self.strange.setdefault(self._tensors[position], self.samples)
        self._lows = np.fmin(self._lows, lows)
        self._highs = np.fmax(self._highs, highs)
        self.samples += 1

    def ranges(self) -> dict[str, tuple[float, float]]:
        pairs = zip(self._tensors, self._lows.tolist(), self._highs.tolist(), strict=True)
        return {
            name: (low, high)
            for name, low, high in pairs
            if low <= high and name not in self.strange
        }


def capture_tensors(
    base: PreparedModel, worker: Worker, feeds: Feeds, shapes: Mapping[str, Shape]
) -> Iterator[tuple[str, Array]]:
    """Yield the values of tensors in a run; placeholders if the model can't be run that way.

    Args:
        base: The model.
        worker: A worker of the reference engine.
        feeds: The inputs to run it on.
        shapes: Names of the tensors, with the shapes and types of placeholders.
    """
    given = [name for name in shapes if name in feeds]
    for name in given:
        yield name, np.asarray(feeds[name])
    for part in _parts(base.index, {n: s for n, s in shapes.items() if n not in feeds}):
        try:
            found = _run(base, worker, feeds, part)
        except WorkerFailure as failure:
            _logger.info(
                "values inside the model are placeholders, since it does not run: %s", failure
            )
            found = {}
        for name in part:
            dtype = base.index.dtype(name) or ir.DataType.FLOAT
            values = found.get(name)
            yield name, _placeholder_values(shapes[name], dtype) if values is None else values


def _parts(index: GraphIndex, shapes: Mapping[str, Shape]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for name, shape in shapes.items():
        dtype = index.dtype(name)
        more = math.prod(shape) * (dtype.itemsize if dtype is not None else 4)
        if part and size + more > _BYTES_AT_ONCE:
            yield part
            part, size = [], 0
        part.append(name)
        size += int(more)
    if part:
        yield part


def _run(
    base: PreparedModel, worker: Worker, feeds: Feeds, tensors: Sequence[str]
) -> dict[str, Array]:
    outputs = []
    for name in tensors:
        dtype = base.index.dtype(name)
        kind = dtype.value if dtype is not None else onnx.TensorProto.UNDEFINED
        outputs.append(make_tensor_value_info(name, kind, None))
    options = opening_options(len(base.nodes))
    with running(base, worker, variant(base, base.nodes, outputs), options) as run:
        return dict(run(feeds))


def _placeholder_values(shape: Shape, dtype: ir.DataType) -> Array:
    """Return small numbers of one sign for floats; zeros for types that may be indices."""
    values = np.zeros(shape) if dtype.is_integer() else np.linspace(0.1, 1.0, math.prod(shape))
    return values.reshape(shape).astype(dtype.numpy())


def observe_shapes(base: PreparedModel, worker: Worker, feeds: Feeds) -> dict[str, Shape]:
    """Run the model once and record the shapes that are not known yet.

    They are written into the index's values, but not into the graph's own outputs, whose dims stay
    open. Inside `graph._shapes.at_shapes`, the values are restored when it exits.

    Args:
        base: The model.
        worker: A worker of the reference engine.
        feeds: One set of inputs.

    Returns:
        The shapes found, by tensor; tensors in control-flow bodies are not among them.

    Raises:
        EngineError: If the model does not run.
    """
    unknown = unknown_tensors(base.index)
    if not unknown:
        return {}
    names = {tensor: f"qdqtune_shape_{position}" for position, tensor in enumerate(unknown)}
    nodes = [make_node("Shape", [tensor], [name], name=name) for tensor, name in names.items()]
    kinds = [make_tensor_value_info(n, onnx.TensorProto.INT64, [None]) for n in names.values()]
    model = variant(base, [*base.nodes, *nodes], kinds)
    try:
        with running(base, worker, model, AS_WRITTEN) as run:
            outputs = run(feeds)
    except WorkerFailure as failure:
        raise EngineError(
            f"The model does not run, so its shapes can't be taken from a run: {failure}",
            advice_on(failure, base.index.model, worker.engine, _OTHER_SHAPES),
        ) from None
    found = {tensor: tuple(outputs[name].tolist()) for tensor, name in names.items()}
    for tensor, shape in found.items():
        if tensor not in base.index.outputs:
            base.index.value[tensor].shape = ir.Shape(shape)
    return found


def unknown_tensors(index: GraphIndex) -> list[str]:
    """Return every computed tensor of the main graph whose shape is not fully known."""
    return [
        value.name
        for node in index.nodes
        for value in node.outputs
        if value.name and _is_tensor(value) and known_shape(index, value.name) is None
    ]


def known_shape(index: GraphIndex, tensor: str) -> Shape | None:
    """Return the shape of a tensor if all of its dims are fixed."""
    shape = index.shape(tensor)
    fixed = tuple(dim for dim in shape or () if dim is not None)
    return fixed if shape is not None and len(fixed) == len(shape) else None


def _is_tensor(value: ir.Value) -> bool:
    return value.type is None or isinstance(value.type, ir.TensorType)


def first_overflow(
    model: ir.Model, rounded: Mapping[str, str], worker: Worker, feeds: Feeds, folder: Path
) -> str:
    """Run a model and find the first node whose result overflows.

    Args:
        model: The model, computing in float32; its weights move into the folder.
        rounded: Node name to the value to inspect instead of the node's own result.
        worker: A worker of the reference engine.
        feeds: Inputs.
        folder: Where the model may be written.

    Returns:
        Name of the first node that computes non-finite values from finite ones; empty if there is
        none.

    Raises:
        EngineError: If the model does not run.
    """
    base = PreparedModel(model, folder)
    watched = {}
    for node in base.index.nodes:
        name = rounded.get(node.name or "", node.outputs[0].name or "")
        value = base.index.value.get(name)
        if value is None or value.dtype != ir.DataType.FLOAT or not _is_tensor(value):
            continue
        if not is_op(node, "Cast", "Constant"):
            watched[name] = node
    seen = collect_statistics(base, worker, [feeds], watched, as_written=True)
    strange = {watched[name] for name in seen.strange}
    for node in watched.values():
        if node in strange and strange.isdisjoint(_sources(node)) and _constants_finite(node):
            return node.name or ""
    return ""


def _sources(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes whose results a node reads, looking through Casts."""
    for value in node.inputs:
        producer = value.producer() if value is not None else None
        while producer is not None and is_op(producer, "Cast") and producer.inputs[0] is not None:
            producer = producer.inputs[0].producer()
        if producer is not None:
            yield producer


def _constants_finite(node: ir.Node) -> bool:
    for value in node.inputs:
        tensor = constant_of(value)
        if tensor is not None and tensor.dtype.is_floating_point():
            numbers = tensor.numpy().astype(np.float32)
            if not np.isfinite(numbers).all():
                return False
    return True
