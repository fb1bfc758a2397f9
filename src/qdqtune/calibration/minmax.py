"""Ranges by running the model: the smallest and largest value of every float tensor."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
import onnx_ir as ir
from onnx.helper import make_node, make_tensor, make_tensor_value_info

from qdqtune.calibration.inputs import Feeds
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.isolated import Worker, WorkerFailure
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.prepared import PreparedModel
from qdqtune.records.errors import EngineError, ModelError
from qdqtune.records.ranges import CalibrationSource, Ranges

_LOWS, _HIGHS = "qdqtune_lows", "qdqtune_highs"
# Fusing would only hide tensors that are looked at.
_OPTIONS = SessionOptions(engine_options={"graph_optimization_level": "disable_all"})


def collect_ranges(
    base: PreparedModel, worker: Worker, samples: Iterable[Feeds], source: CalibrationSource
) -> Ranges:
    """Run the model on each sample and keep the extremes, in constant memory.

    The minimum and maximum are taken inside the engine: what comes back per sample are two
    numbers per tensor, not the tensors.

    Args:
        base: The model.
        worker: An ONNX Runtime worker.
        samples: Input sets, read one at a time.
        source: Where the samples come from.

    Raises:
        EngineError: If the model does not run.
        ModelError: If a tensor takes values that are not numbers, or there are no samples.
    """
    watched = watched_tensors(base.index)
    path = base.write(_with_extremes(base, watched).SerializeToString(), "calibration")
    lows = np.full(len(watched), np.inf)
    highs = np.full(len(watched), -np.inf)
    count = 0
    try:
        opened = worker.open(path, _OPTIONS)
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
    broken = [name for name, low, high in zip(watched, lows, highs, strict=True)
              if not np.isfinite([low, high]).all()]  # fmt: skip
    if broken:
        raise ModelError(
            f"The tensor {broken[0]!r} takes infinite or undefined values on these inputs "
            f"({len(broken)} tensors do).",
            "Calibrate with real data, or check the model.",
        )
    ranges = zip(lows.tolist(), highs.tolist(), strict=True)
    return Ranges(dict(zip(watched, ranges, strict=True)), source, count)


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
