"""Ranges that cut off rare values, so that the others get finer steps.

Which is better, the whole range or a clipped one, depends on the model: on a trained MobileNetV2
clipping lifted the output from 12.8 to 18 dB, on an audio embedding it cost 9 dB. Workflows try
all ways.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx.helper import make_node, make_tensor, make_tensor_value_info

from qdqtune.calibration.inputs import Feeds
from qdqtune.engines.isolated import Worker, WorkerFailure
from qdqtune.graph.prepared import PreparedModel
from qdqtune.qdq.encoding import TensorFormat, dequantize, encode_range, quantize
from qdqtune.records.errors import EngineError
from qdqtune.records.ranges import RangeMethod, Ranges

_MOST_SAMPLES = 32
_MOST_BYTES = 64 << 20
_VALUES_PER_SAMPLE = (256, 4096)
_PERCENTILE = 99.99
_FACTORS = np.linspace(1.0, 0.3, 29)

_OUTPUT = "qdqtune_values"


def clip_ranges(
    base: PreparedModel,
    worker: Worker,
    samples: Iterable[Feeds],
    ranges: Ranges,
    layout: TensorFormat,
) -> dict[RangeMethod, Ranges]:
    """Shrink every range, in two ways.

    To where the mean squared error of quantization is least (`MSE`), and to what all but one in
    ten thousand values fit into (`PERCENTILE`). Both look at evenly spread values of each tensor,
    in bounded memory.

    Args:
        base: The model that the ranges are of.
        worker: An ONNX Runtime worker.
        samples: Input sets; the first few dozen are run.
        ranges: Smallest and largest values.
        layout: The format that they are quantized in.

    Raises:
        EngineError: If the model does not run.
    """
    tensors = [name for name, (low, high) in ranges.by_tensor.items() if low < high]
    values = _spread_values(base, worker, samples, tensors)
    squared, frequent = dict(ranges.by_tensor), dict(ranges.by_tensor)
    for name in tensors:
        squared[name] = _least_error(values[name], *ranges.by_tensor[name], layout)
        frequent[name] = _frequent(values[name], *ranges.by_tensor[name])
    return {
        RangeMethod.MSE: Ranges(squared, ranges.source, ranges.samples),
        RangeMethod.PERCENTILE: Ranges(frequent, ranges.source, ranges.samples),
    }


def _frequent(values: npt.NDArray[Any], low: float, high: float) -> tuple[float, float]:
    """What most values fit into; the whole range where nearly all of them are one number."""
    if not values.size:
        return low, high
    least, most = np.percentile(values, [100.0 - _PERCENTILE, _PERCENTILE])
    return (float(least), float(most)) if least < most else (low, high)


def _least_error(
    values: npt.NDArray[Any], low: float, high: float, layout: TensorFormat
) -> tuple[float, float]:
    """The range, shrunk from both ends alike, with the least squared error."""
    errors = []
    for factor in _FACTORS:
        encoding = encode_range(low * factor, high * factor, layout)
        rounded = dequantize(quantize(values, encoding), encoding.scale, encoding.zero_point, 0)
        errors.append(float(((rounded - values) ** 2).sum()))
    factor = float(_FACTORS[int(np.argmin(errors))])
    return low * factor, high * factor


def _spread_values(
    base: PreparedModel, worker: Worker, samples: Iterable[Feeds], tensors: Sequence[str]
) -> dict[str, npt.NDArray[Any]]:
    """Some values of every tensor, from every sample alike."""
    if not tensors:
        return {}
    affordable = _MOST_BYTES // (4 * _MOST_SAMPLES * len(tensors))
    count = int(np.clip(affordable, *_VALUES_PER_SAMPLE))
    path = base.write(_with_values(base, tensors, count).SerializeToString(), "values")
    taken: list[list[npt.NDArray[Any]]] = [[] for _ in tensors]
    try:
        opened = worker.open(path)
        for feeds in itertools.islice(samples, _MOST_SAMPLES):
            outputs = worker.run(opened, feeds)
            for position, kept in enumerate(taken):
                kept.append(outputs[f"{_OUTPUT}_{position}"])
        worker.release(opened)
    except WorkerFailure as failure:
        raise EngineError(
            f"The float model does not run, so it can't be calibrated: {failure}",
            "Check the input shapes (--shapes, --dim) and the data.",
        ) from None
    finally:
        path.unlink(missing_ok=True)
    return {name: np.concatenate(kept) for name, kept in zip(tensors, taken, strict=True)}


def _with_values(base: PreparedModel, tensors: Sequence[str], count: int) -> onnx.ModelProto:
    """The base with one output per tensor: about `count` values, evenly spread."""
    proto: onnx.ModelProto = onnx.ModelProto.FromString(base.whole())
    graph = proto.graph
    del graph.output[:]
    numbers = {
        "flat": -1,
        "first": 0,
        "last": np.iinfo(np.int64).max,
        "one": 1,
        "two": 2,
        "count": 2 * count,
    }
    graph.initializer.extend(
        make_tensor(f"{_OUTPUT}_{name}", onnx.TensorProto.INT64, [1], [int(number)])
        for name, number in numbers.items()
    )
    flat, first, last, one, two, many = (f"{_OUTPUT}_{name}" for name in numbers)
    # Backwards, so that each tensor is looked at as soon as it is there: see `minmax`.
    for position, tensor in reversed(list(enumerate(tensors))):
        name = f"{_OUTPUT}_{position}"
        graph.node.extend(
            [
                make_node("Cast", [tensor], [f"{name}_real"], to=onnx.TensorProto.FLOAT),
                make_node("Reshape", [f"{name}_real", flat], [f"{name}_flat"]),
                make_node("Shape", [f"{name}_flat"], [f"{name}_size"]),
                make_node("Div", [f"{name}_size", many], [f"{name}_times"]),
                # An odd step: an even one would pass over half of most channels.
                make_node("Mul", [f"{name}_times", two], [f"{name}_even"]),
                make_node("Add", [f"{name}_even", one], [f"{name}_step"]),
                make_node("Slice", [f"{name}_flat", first, last, first, f"{name}_step"], [name]),
            ]
        )
    for position in range(len(tensors)):
        output = make_tensor_value_info(f"{_OUTPUT}_{position}", onnx.TensorProto.FLOAT, [None])
        graph.output.append(output)
    return proto
