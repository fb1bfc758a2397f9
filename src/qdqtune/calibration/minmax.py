"""Ranges by running the model: the smallest and largest value of every float tensor."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
import onnx
import onnx_ir as ir
from onnx.helper import make_node, make_tensor, make_tensor_value_info

from qdqtune.calibration.inputs import Feeds
from qdqtune.calibration.quality import AS_WRITTEN
from qdqtune.engines.isolated import Worker, WorkerFailure
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.prepared import PreparedModel
from qdqtune.records.errors import EngineError, ModelError
from qdqtune.records.placement import Placement
from qdqtune.records.ranges import CalibrationSource, Ranges

_LOWS, _HIGHS = "qdqtune_lows", "qdqtune_highs"
_logger = logging.getLogger(__name__)


def collect_ranges(
    base: PreparedModel,
    worker: Worker,
    samples: Iterable[Feeds],
    source: CalibrationSource,
    placement: Placement | None = None,
) -> Ranges:
    """Run the model on each sample and keep the extremes, in constant memory.

    The minimum and maximum are taken inside the engine: what comes back per sample are two
    numbers per tensor, not the tensors.

    Args:
        base: The model.
        worker: An ONNX Runtime worker.
        samples: Input sets, read one at a time.
        source: Where the samples come from.
        placement: Watch only what it quantizes; None watches every float tensor.

    Raises:
        EngineError: If the model does not run.
        ModelError: If there are no samples.
    """
    watched = watched_tensors(base.index)
    if placement is not None:
        quantized = {edge.tensor for edge in base.index.effective(placement)}
        watched = [name for name in watched if name in quantized]
    if not watched:
        return Ranges({}, source)
    path = base.write(_with_extremes(base, watched).SerializeToString(), "calibration")
    lows = np.full(len(watched), np.inf)
    highs = np.full(len(watched), -np.inf)
    count = 0
    try:
        opened = worker.open(path, AS_WRITTEN)
        for feeds in samples:
            extremes = worker.run(opened, feeds)
            lows = np.minimum(lows, extremes[_LOWS])
            highs = np.maximum(highs, extremes[_HIGHS])
            count += 1
        worker.release(opened)
    except WorkerFailure as failure:
        raise EngineError(
            f"The float model does not run, so it can't be calibrated: {failure}",
            "If dims are open, fix them in the model first.",
        ) from None
    finally:
        path.unlink(missing_ok=True)
    if not count:
        raise ModelError("There is no calibration data.", "Give at least one sample.")
    finite = np.isfinite(lows) & np.isfinite(highs)
    for name, fine in zip(watched, finite, strict=True):
        if not fine:
            _logger.warning("%s takes infinite or undefined values: it has no range", name)
    ranges = zip(watched, lows.tolist(), highs.tolist(), finite, strict=True)
    return Ranges({name: (low, high) for name, low, high, fine in ranges if fine}, source, count)


def watched_tensors(index: GraphIndex) -> list[str]:
    """Every float tensor of the main graph that is not a constant and not known to be empty."""
    return [
        name
        for name, value in index.value.items()
        if index.is_float(name)
        and not value.is_initializer()
        and 0 not in (index.shape(name) or ())
        and index.readers(name)
    ]


def _with_extremes(base: PreparedModel, tensors: list[str]) -> onnx.ModelProto:
    """The base with two outputs: the minima and the maxima of the tensors, in order."""
    proto: onnx.ModelProto = onnx.ModelProto.FromString(base.whole())
    graph = proto.graph
    del graph.output[:]
    one = "qdqtune_one"
    graph.initializer.append(make_tensor(one, onnx.TensorProto.INT64, [1], [1]))
    for output, op_type in ((_LOWS, "ReduceMin"), (_HIGHS, "ReduceMax")):
        scalars = []
        for position, tensor in enumerate(tensors):
            source = tensor
            if base.index.dtype(tensor) != ir.DataType.FLOAT:
                source = f"{output}_cast_{position}"
                to = onnx.TensorProto.FLOAT
                graph.node.append(make_node("Cast", [tensor], [source], to=to))
            extreme, scalar = f"{output}_{position}", f"{output}_scalar_{position}"
            graph.node.append(make_node(op_type, [source], [extreme], keepdims=0))
            graph.node.append(make_node("Reshape", [extreme, one], [scalar]))
            scalars.append(scalar)
        graph.node.append(make_node("Concat", scalars, [output], axis=0))
        shape = [len(tensors)]
        graph.output.append(make_tensor_value_info(output, onnx.TensorProto.FLOAT, shape))
    return proto
