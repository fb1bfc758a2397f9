"""Whether a model gives for a batch what it gives for its parts."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from qdqtune.calibration.output_error import SignalToNoise
from qdqtune.calibration.random_inputs import Feeds
from qdqtune.engines.isolated import Worker

# Two runs on the same inputs may differ by rounding, where threads add up in another order.
_STEADY_DB = 60.0


def batch_agreement(
    worker: Worker, small: Path, large: Path, feeds: Feeds, batched: Collection[str]
) -> dict[str, float]:
    """Run a model on a batch, and the same model at a smaller batch on the first and last part.

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
