"""The error of a model's outputs against those of its float model, on logits if there are any."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError
from onnx.helper import make_node, make_tensor

from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._worker import StoredFeeds, Worker
from qdqtune.engines._worker_environment import read_arrays, write_arrays
from qdqtune.graph._atomic_files import replacing
from qdqtune.records._accuracy import OutputError, TensorError

_SCORES = "qdqtune_scores"
_DECIDING = frozenset({"ArgMax", "ArgMin", "LogSoftmax", "Sigmoid", "Softmax", "TopK"})
_PASSING = frozenset(
    {
        "Cast", "DequantizeLinear", "Flatten", "Identity", "QuantizeLinear", "Reshape", "Squeeze",
        "Transpose", "Unsqueeze",
    }
)  # fmt: skip
# From this opset on, a Softmax normalizes along one axis, and its default axis is known.
_AXIS_OPSET, _AXES_INPUT_OPSET = 13, 18

# Two runs on the same inputs may differ by rounding, if threads add up in another order.
_STEADY_DB = 60.0


def add_scores(path: Path) -> tuple[Path, dict[str, str]]:
    """Write a copy of a model next to it that also outputs its scores.

    Args:
        path: A model; its weights may be in files next to it.

    Returns:
        The copy, and its new outputs with the outputs that they determine; the model itself if no
        output is determined by scores.
    """
    try:
        proto = onnx.load(path, load_external_data=False)
    except DecodeError:  # the engine will report it
        return path, {}
    opset = max((each.version for each in proto.opset_import if not each.domain), default=0)
    found: dict[str, str] = {}
    for output, deciding in _decisions(proto.graph):
        name = f"{_SCORES}_{len(found)}"
        _show(proto.graph, deciding, name, opset)
        found[name] = output
    if not found:
        return path, {}
    copy = path.with_name(f"{path.stem}_scores{path.suffix}")
    with replacing(copy) as file:
        file.write(proto.SerializeToString())
    return copy, found


def has_scores(path: Path) -> bool:
    """Whether an output of a model is determined by scores.

    Args:
        path: A model.
    """
    return bool(_decisions(onnx.load(path, load_external_data=False).graph))


def _decisions(graph: onnx.GraphProto) -> list[tuple[str, onnx.NodeProto]]:
    """Return outputs, each with the earliest op before it that turns scores into a decision."""
    producers = {output: node for node in graph.node for output in node.output}
    decisions = []
    for output in graph.output:
        found, name = None, output.name
        for _ in producers:  # no path is longer, unless there is a cycle
            node = producers.get(name)
            if node is None or node.domain or node.op_type not in _DECIDING | _PASSING:
                break
            if node.op_type in _DECIDING:
                found = node
            name = node.input[0] if node.input else ""
        if found is not None:
            decisions.append((output.name, found))
    return decisions


def _show(graph: onnx.GraphProto, deciding: onnx.NodeProto, name: str, opset: int) -> None:
    """Add the scores as an output, without their mean if only their differences matter."""
    source = deciding.input[0]
    if deciding.op_type in ("LogSoftmax", "Softmax") and opset >= _AXIS_OPSET:
        axis = next((each.i for each in deciding.attribute if each.name == "axis"), -1)
        mean = f"{name}_mean"
        if opset >= _AXES_INPUT_OPSET:
            axes = make_tensor(f"{name}_axes", onnx.TensorProto.INT64, [1], [axis])
            graph.initializer.append(axes)
            graph.node.append(make_node("ReduceMean", [source, axes.name], [mean], keepdims=1))
        else:
            graph.node.append(make_node("ReduceMean", [source], [mean], axes=[axis], keepdims=1))
        graph.node.append(make_node("Sub", [source, mean], [name]))
    else:
        graph.node.append(make_node("Identity", [source], [name]))
    graph.output.append(onnx.ValueInfoProto(name=name))  # the engine infers its type


@dataclass
class _Sums:
    """The running sums for an output."""

    error: TensorError | None = None
    is_undefined: bool = True
    equal: int = 0
    elements: int = 0


class SignalToNoise:
    """The error of each output, accumulated sample by sample.

    Attributes:
        missing: Outputs that the reference has and the other model lacks.
    """

    def __init__(self) -> None:
        self.missing: set[str] = set()
        self._sums: defaultdict[str, _Sums] = defaultdict(_Sums)

    def add(
        self, reference: Mapping[str, npt.NDArray[Any]], actual: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        """Add the outputs of one sample; those that only one model has don't count."""
        for name, expected in reference.items():
            if name not in actual:
                self.missing.add(name)
                continue
            found, sums = actual[name], self._sums[name]
            if _is_real(expected.dtype):
                expected, found = expected.astype(np.float64), found.astype(np.float64)
                sums.is_undefined &= expected.size > 0 and bool(np.isnan(expected).all())
                sums.error = _error(expected, found) + (sums.error or TensorError())
            if expected.shape == found.shape:
                sums.equal += int(_equal(expected, found).sum())
            sums.elements += max(expected.size, found.size)

    @property
    def undefined(self) -> set[str]:
        """Return outputs that are always NaN in the reference, so nothing can be compared."""
        return {
            name
            for name, each in self._sums.items()
            if each.error is not None and each.is_undefined
        }

    def decibels(self) -> dict[str, float]:
        """Return the signal-to-noise ratio of every float output that is defined."""
        return {
            name: each.error.sqnr_db
            for name, each in self._sums.items()
            if each.error is not None and not each.is_undefined
        }

    def errors(self) -> tuple[OutputError, ...]:
        """Return the error of every output."""
        return tuple(
            OutputError(name, each.error, each.equal / each.elements if each.elements else 1.0)
            for name, each in self._sums.items()
        )


class Reference:
    """A model's outputs on some samples, kept on disk to compare any number of models with.

    Only one model is open at a time, since it may fill the memory.

    Args:
        worker: The worker that runs models.
        model: The reference.
        samples: Inputs.
        options: How to open the reference; `AS_WRITTEN` for a dialect of another engine.

    Raises:
        WorkerFailure: If the reference does not run.
    """

    def __init__(
        self,
        worker: Worker,
        model: Path,
        samples: Iterable[Feeds],
        *,
        options: SessionOptions | None = None,
    ) -> None:
        self._worker = worker
        self._folder = tempfile.TemporaryDirectory(prefix="outputs-", dir=worker.scratch)
        self._kept: list[tuple[StoredFeeds, Path]] = []
        self._options = options
        try:
            opened = worker.open(model, options)
            for feeds in samples:
                stored = worker.store(feeds)
                outputs = Path(self._folder.name) / f"{len(self._kept)}.npz"
                self._kept.append((stored, outputs))
                write_arrays(outputs, worker.run(opened, stored))
            worker.release(opened)
        except BaseException:
            self.close()
            raise

    def sqnr_db(self, model: Path, options: SessionOptions | None = None) -> dict[str, float]:
        """Compare a model with the reference, output by output.

        Args:
            model: The model to compare.
            options: How to open it; None is like the reference.

        Returns:
            Decibels per float output.

        Raises:
            WorkerFailure: If it does not run.
        """
        return self.compare(model, options).decibels()

    def compare(self, model: Path, options: SessionOptions | None = None) -> SignalToNoise:
        """Like `sqnr_db`, but returns everything that is known about the outputs."""
        compared = SignalToNoise()
        opened = self._worker.open(model, options or self._options)
        for stored, outputs in self._kept:
            compared.add(read_arrays(outputs), self._worker.run(opened, stored))
        self._worker.release(opened)
        return compared

    def close(self) -> None:
        """Delete the samples and outputs."""
        for stored, _ in self._kept:
            self._worker.discard(stored)
        self._folder.cleanup()


def output_sqnr(
    worker: Worker,
    float_model: Path,
    quantized_model: Path,
    samples: Iterable[Feeds],
    *,
    options: SessionOptions | None = None,
) -> dict[str, float]:
    """Compare two models output by output; see `Reference`."""
    with contextlib.closing(Reference(worker, float_model, samples, options=options)) as reference:
        return reference.sqnr_db(quantized_model)


def _error(expected: npt.NDArray[Any], actual: npt.NDArray[Any]) -> TensorError:
    """Return the error; equal infinities and values that are NaN in the float model don't count."""
    if expected.shape != actual.shape:  # the size depends on the data, such as detected boxes
        return TensorError(noise=math.inf, max_error=math.inf)
    apart = ~(np.isnan(expected) | (_equal(expected, actual) & ~np.isfinite(expected)))
    with np.errstate(invalid="ignore"):
        expected, actual = expected[apart], actual[apart]
        off = np.abs(actual - expected)
        noise = float((off**2).sum())
        return TensorError(
            signal=float((expected**2).sum()),
            noise=noise,
            power=float((actual**2).sum()),
            max_error=float(off.max(initial=0.0)) if math.isfinite(noise) else math.inf,
            max_value=float(np.abs(expected).max(initial=0.0)),
        )


def _equal(expected: npt.NDArray[Any], actual: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    equal: npt.NDArray[np.bool_] = expected == actual
    if expected.dtype.kind == "f" and actual.dtype.kind == "f":
        equal |= np.isnan(expected) & np.isnan(actual)
    return equal


def _is_real(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def batch_agreement(
    worker: Worker, small: Path, large: Path, feeds: Feeds, batched: Collection[str]
) -> dict[str, float]:
    """Compare a model on a batch with itself at a smaller batch on the first and last part.

    Args:
        worker: An ONNX Runtime worker.
        small: The model at the smaller batch.
        large: The model at the larger one.
        feeds: Inputs of the larger one.
        batched: Inputs whose leading dim is the batch.

    Returns:
        Signal-to-noise ratio in dB per float output that has the batch as its leading dim. An
        output that varies from run to run is left out.

    Raises:
        WorkerFailure: If one of them does not run.
    """
    opened = worker.open(large)
    whole, again = worker.run(opened, feeds), worker.run(opened, feeds)
    worker.release(opened)
    steady = SignalToNoise()
    steady.add(whole, again)
    comparable = {name for name, db in steady.decibels().items() if db > _STEADY_DB}
    total = feeds[next(iter(batched))].shape[0]
    opened = worker.open(small)
    size = next(spec.shape[0] for spec in opened.inputs if spec.name in batched)
    assert isinstance(size, int)
    ratio = SignalToNoise()
    for rows in (slice(0, size), slice(total - size, total)):
        part = {name: array[rows] if name in batched else array for name, array in feeds.items()}
        alone = worker.run(opened, part)
        within = {
            name: array[rows]
            for name, array in whole.items()
            if name in comparable and array.shape == (total, *alone[name].shape[1:])
        }
        ratio.add({name: alone[name] for name in within}, within)
    worker.release(opened)
    return ratio.decibels()
