"""How far a quantized model's outputs are from the float model's."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtune.calibration.inputs import Feeds
from qdqtune.engines.arrays import read_arrays, write_arrays
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.isolated import StoredFeeds, Worker


class SignalToNoise:
    """Signal-to-quantization-noise ratio of each output, gathered sample by sample."""

    def __init__(self) -> None:
        self._signal: dict[str, float] = {}
        self._noise: dict[str, float] = {}

    def add(
        self, reference: Mapping[str, npt.NDArray[Any]], actual: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        """Take in the outputs of one sample; outputs that are not floats don't count."""
        for name, expected in reference.items():
            if name not in actual or not _is_real(expected.dtype):
                continue
            signal, noise = _powers(expected.astype(np.float64), actual[name].astype(np.float64))
            self._signal[name] = self._signal.get(name, 0.0) + signal
            self._noise[name] = self._noise.get(name, 0.0) + noise

    def decibels(self) -> dict[str, float]:
        """The ratio per output in dB: infinite if equal, minus infinite if not a number."""
        return {name: _decibels(self._signal[name], noise) for name, noise in self._noise.items()}


class Reference:
    """A model's outputs on some samples, kept on disk: any number of others are compared with them.

    No two models are open at once: one may fill the memory.

    Args:
        worker: Where models run.
        model: The reference.
        samples: Inputs.
        options: How to open the reference; `engines.reference.AS_WRITTEN` for a dialect of
            another engine.

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
        opened = worker.open(model, options)
        for feeds in samples:
            stored = worker.store(feeds)
            outputs = Path(self._folder.name) / f"{len(self._kept)}.npz"
            write_arrays(outputs, worker.run(opened, stored))
            self._kept.append((stored, outputs))
        worker.release(opened)

    def sqnr_db(self, model: Path, options: SessionOptions | None = None) -> dict[str, float]:
        """Compare a model with the reference, output by output.

        Args:
            model: The one in question.
            options: How to open it; None is like the reference.

        Returns:
            Decibels per float output.

        Raises:
            WorkerFailure: If it does not run.
        """
        ratio = SignalToNoise()
        opened = self._worker.open(model, options or self._options)
        for stored, outputs in self._kept:
            ratio.add(read_arrays(outputs), self._worker.run(opened, stored))
        self._worker.release(opened)
        return ratio.decibels()

    def close(self) -> None:
        """Forget the samples and outputs."""
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


def _powers(expected: npt.NDArray[Any], actual: npt.NDArray[Any]) -> tuple[float, float]:
    """The power of a signal and of the noise in it; what is infinite in both alike has neither."""
    if expected.shape != actual.shape:  # as many as the data has: boxes that were found
        return 0.0, math.inf
    equal = (expected == actual) | (np.isnan(expected) & np.isnan(actual))
    apart = ~(equal & ~np.isfinite(expected))
    with np.errstate(invalid="ignore"):
        noise = float(((actual[apart] - expected[apart]) ** 2).sum())
    return float((expected[apart] ** 2).sum()), noise


def _is_real(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def _decibels(signal: float, noise: float) -> float:
    if not math.isfinite(noise):
        return -math.inf
    if noise == 0.0:
        return math.inf
    return 10.0 * math.log10(signal / noise) if signal > 0.0 else -math.inf
