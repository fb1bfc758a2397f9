"""The mean errors of a quantized model's ops against those of its float model, per channel."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qdqtune.calibration._layer_errors import OUTPUT, ComparingModel, Wiring
from qdqtune.calibration._layer_errors_pairs import Pairing
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines._reference_engine import AS_WRITTEN
from qdqtune.engines._worker import Worker, WorkerFailure
from qdqtune.graph._files import load_model
from qdqtune.graph._op_classes import CONV_OPS
from qdqtune.records._errors import EngineError

Means = npt.NDArray[np.float64]


def mean_errors(
    worker: Worker,
    float_model: Path,
    quantized: Path,
    channels: Mapping[str, int],
    samples: Iterable[Feeds],
) -> dict[str, Means]:
    """Return how much the quantization of each op shifts its output on average, per channel.

    Each op reads the float model's values, through its own Q and DQ, so that the shift is its own.

    Args:
        worker: A worker of the reference engine.
        float_model: The float model, in a folder that may be written to.
        quantized: A quantized model of it, with the same inputs.
        channels: Weighted ops to look at, by name, and the number of their output channels.
        samples: Input sets, read one at a time.

    Returns:
        The shifts by op; ops that can't be compared, and those whose values are not finite, are
        missing.

    Raises:
        EngineError: If the models don't run.
    """
    pairing = Pairing(load_model(float_model), load_model(quantized))
    ops = {
        op.tensor: op.name
        for op in pairing.ops
        if op.name in channels and pairing.original.shape(pairing.float_of[op.tensor])
    }
    if not ops:
        return {}
    path = float_model.absolute().with_name(f"means-{uuid.uuid4().hex}.onnx")
    sums, done = np.zeros(sum(channels[name] for name in ops.values())), 0
    with contextlib.ExitStack() as stack:
        for file in (path, ComparingModel.weights_file(path)):
            stack.callback(file.unlink, missing_ok=True)
        order = _MeansModel(pairing, Wiring.OWN, ops).write(path)
        try:
            opened = worker.open(path, AS_WRITTEN)
            for feeds in samples:
                sums += worker.run(opened, feeds)[OUTPUT].astype(np.float64)
                done += 1
            worker.release(opened)
        except WorkerFailure as failure:
            raise EngineError(
                f"The two models don't run side by side, as they are written: {failure}",
                "Do both run alone? See `qdqtune bench FLOAT QUANT`.",
            ) from None
    ends = np.cumsum([channels[ops[tensor]] for tensor in order])
    parts = np.split(sums / max(done, 1), ends[:-1])
    means = dict(zip((ops[tensor] for tensor in order), parts, strict=True))
    return {name: mean for name, mean in means.items() if np.isfinite(mean).all()}


class _MeansModel(ComparingModel):
    """A model that contains the float and the quantized graph, and outputs their mean distances."""

    def reduce(self, tensor: str, label: str) -> list[str]:
        """Return the mean difference of each channel of a pair."""
        original, quantized = self.pairing.original, self.pairing.quantized
        source = self.pairing.float_of[tensor]
        producer = quantized.value[tensor].producer()
        rank = len(original.shape(source) or ())
        axis = 1 if producer is not None and producer.op_type in CONV_OPS else rank - 1
        before = self.real(source, original.dtype(source), f"{label}_0")
        after = self.real(self.prefix + tensor, quantized.value[tensor].dtype, f"{label}_1")
        off = self.add("Sub", [after, before], f"{label}_difference")
        order = [axis, *(each for each in range(rank) if each != axis)]
        off = self.add("Transpose", [off], f"{label}_by_channel", perm=order)
        off = self.add("Reshape", [off, self.constant([0, -1])], f"{label}_rows")
        opset = quantized.model.opset_imports.get("", 0)
        return [self.reduced("ReduceMean", off, 1, f"{label}_mean", opset=opset)]
