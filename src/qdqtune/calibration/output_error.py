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

from qdqtune.calibration.random_inputs import Feeds
from qdqtune.engines.array_transfer import read_arrays, write_arrays
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.isolated import StoredFeeds, Worker
from qdqtune.records.tensor_errors import OutputError, TensorError


class SignalToNoise:
    """How far each output is from what it should be, gathered sample by sample.

    Attributes:
        missing: Outputs that the reference has and the other model lacks.
    """

    def __init__(self) -> None:
        self.missing: set[str] = set()
        self._undefined: dict[str, bool] = {}
        self._errors: dict[str, TensorError] = {}
        self._equal: dict[str, int] = {}
        self._elements: dict[str, int] = {}

    def add(
        self, reference: Mapping[str, npt.NDArray[Any]], actual: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        """Take in the outputs of one sample; those that only one model has don't count."""
        for name, expected in reference.items():
            if name not in actual:
                self.missing.add(name)
                continue
            found = actual[name]
            if _is_real(expected.dtype):
                expected, found = expected.astype(np.float64), found.astype(np.float64)
                is_undefined = expected.size > 0 and bool(np.isnan(expected).all())
                self._undefined[name] = is_undefined and self._undefined.get(name, True)
                error = _error(expected, found)
                self._errors[name] = error + self._errors.get(name, TensorError())
            equal = _equal(expected, found) if expected.shape == found.shape else np.array(False)
            self._equal[name] = self._equal.get(name, 0) + int(equal.sum())
            elements = max(expected.size, found.size)
            self._elements[name] = self._elements.get(name, 0) + elements

    @property
    def undefined(self) -> set[str]:
        """Outputs of which the reference has nothing but NaN: there is nothing to be near to."""
        return {name for name, is_undefined in self._undefined.items() if is_undefined}

    def decibels(self) -> dict[str, float]:
        """The signal-to-noise ratio of every float output that is defined."""
        return {
            name: error.sqnr_db for name, error in self._errors.items() if not self._undefined[name]
        }

    def errors(self) -> tuple[OutputError, ...]:
        """The error of every output."""
        return tuple(
            OutputError(name, self._errors.get(name), self._equal[name] / count if count else 1.0)
            for name, count in self._elements.items()
        )


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
            model: The one in question.
            options: How to open it; None is like the reference.

        Returns:
            Decibels per float output.

        Raises:
            WorkerFailure: If it does not run.
        """
        return self.compare(model, options).decibels()

    def compare(self, model: Path, options: SessionOptions | None = None) -> SignalToNoise:
        """Do what `sqnr_db` does, for all that can be said about the outputs."""
        compared = SignalToNoise()
        opened = self._worker.open(model, options or self._options)
        for stored, outputs in self._kept:
            compared.add(read_arrays(outputs), self._worker.run(opened, stored))
        self._worker.release(opened)
        return compared

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


def _error(expected: npt.NDArray[Any], actual: npt.NDArray[Any]) -> TensorError:
    """What is off; infinities that are alike don't count, nor what is NaN in the float model."""
    if expected.shape != actual.shape:  # as many as the data has: boxes that were found
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
