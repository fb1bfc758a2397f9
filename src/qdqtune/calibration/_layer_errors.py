"""How far the results of a quantized model's ops are from those of its float model.

Both run in one model, as they are written, and are compared inside the engine: what comes back per
sample are a few numbers per op, not the tensors.
"""

from __future__ import annotations

import contextlib
import math
import operator
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qdqtune.calibration._layer_errors_model import (
    NUMBERS,
    OUTPUT,
    ComparingModel,
    Wiring,
    weights_name,
)
from qdqtune.calibration._layer_errors_pairs import Pairing, QuantizedOp
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.calibration._tensor_statistics import Progress
from qdqtune.engines._reference_engine import AS_WRITTEN
from qdqtune.engines._worker import OpenModel, Worker, WorkerFailure
from qdqtune.graph._files import load_model
from qdqtune.records._accuracy import OpError
from qdqtune.records._errors import EngineError, ModelError

Numbers = npt.NDArray[np.float64]


def own_errors(
    worker: Worker, float_model: Path, quantized: Path, samples: Iterable[Feeds]
) -> dict[str, OpError]:
    """What the quantization of each op adds: it reads what the float model computes.

    Args:
        worker: Of the reference engine.
        float_model: The float model, in a folder that may be written to: weights that lie in a
            file there are not copied.
        quantized: A quantized model of it, with the same inputs.
        samples: Input sets, read one at a time.

    Returns:
        The error of every op that reads something quantized, by node name.

    Raises:
        EngineError: If the models don't run.
        ModelError: If there are no samples, or a model can't be read.
    """
    pairing = Pairing(load_model(float_model), load_model(quantized))
    return op_errors(worker, pairing, Wiring.OWN, samples, float_model.absolute().parent)


def op_errors(
    worker: Worker,
    pairing: Pairing,
    wiring: Wiring,
    samples: Iterable[Feeds],
    folder: Path,
    progress: Progress | None = None,
) -> dict[str, OpError]:
    """Compare two models op by op; see `own_errors`.

    Args:
        worker: Of the reference engine.
        pairing: The models.
        wiring: What the quantized ops read.
        samples: Input sets, read one at a time.
        folder: Where to put the model that is run.
        progress: Told after every sample.
    """
    ops = pairing.ops if wiring is Wiring.OWN else pairing.ops_of_fixed_shape()
    if not ops:
        return {}
    sums = {op.tensor: _Sums(op) for op in ops}
    done = 0
    total = operator.length_hint(samples) or None
    model = ComparingModel(pairing, wiring, sums)
    with contextlib.closing(_Session(worker, model, folder)) as session:
        for feeds in samples:
            try:
                numbers = session.run(feeds)
            except WorkerFailure as failure:
                raise EngineError(
                    "The two models don't run side by side, as they are written, on sample "
                    f"{done}: {failure}",
                    "Do both run alone? See `qdqtune bench FLOAT QUANT`.",
                ) from None
            for tensor, found in numbers.items():
                sums[tensor].add(found)
            done += 1
            if progress is not None:
                progress(done, total)
    if not done:
        raise ModelError("There is nothing to run the models on.", "Give at least one sample.")
    return {each.op.node.name or "": each.error() for each in sums.values()}


class _Session:
    """The comparing model at work; it is written and opened anew where a mask is met."""

    def __init__(self, worker: Worker, model: ComparingModel, folder: Path) -> None:
        self._worker = worker
        self._model = model
        self._path = folder / f"errors-{uuid.uuid4().hex}.onnx"
        self._masked: set[str] = set()
        self._order: list[str] = []
        self._opened: OpenModel | None = None

    def run(self, feeds: Feeds) -> dict[str, Numbers]:
        """The numbers of one sample, by tensor."""
        while True:
            if self._opened is None:
                self._order = self._model.write(self._path, self._masked)
                self._opened = self._worker.open(self._path, AS_WRITTEN)
            numbers = self._worker.run(self._opened, feeds)[OUTPUT].astype(np.float64)
            found = dict(zip(self._order, numbers.reshape(-1, NUMBERS), strict=True))
            strange = {name for name, each in found.items() if not np.isfinite(each[0])}
            if strange <= self._masked:
                return found
            self._masked |= strange
            self._worker.release(self._opened)
            self._opened = None

    def close(self) -> None:
        """Close the model and remove its files."""
        if self._opened is not None:
            with contextlib.suppress(WorkerFailure):
                self._worker.release(self._opened)
        for name in (self._path.name, weights_name(self._path)):
            self._path.with_name(name).unlink(missing_ok=True)


@dataclass
class _Sums:
    """The numbers of an op, of all samples together."""

    op: QuantizedOp
    sums: Numbers = field(default_factory=lambda: np.zeros(3))
    peaks: Numbers = field(default_factory=lambda: np.zeros(3))

    def add(self, numbers: Numbers) -> None:
        """Take in one sample."""
        self.sums += numbers[:3]
        # Of an empty tensor the largest value is minus infinite, and changes nothing.
        self.peaks = np.fmax(self.peaks, numbers[3:] * (1, 1, -1))

    def error(self) -> OpError:
        """The op's error."""
        signal, noise, power = self.sums.tolist()
        off, *extremes = self.peaks.tolist()
        return OpError(
            signal=signal,
            noise=noise,
            power=power,
            max_error=off if math.isfinite(noise) else math.inf,
            max_value=max(extremes),
            node=self.op.node.name or "",
            op_type=self.op.node.op_type,
            tensor=self.op.tensor,
            inputs=self.op.inputs,
        )
