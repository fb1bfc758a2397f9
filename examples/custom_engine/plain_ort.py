"""An engine of your own, known to every command.

    pip install -e examples/custom_engine
    qdqtune tune model.onnx --engine plain_ort

This one opens ONNX Runtime sessions, so that it runs anywhere; put your runtime's calls in their
place. `test_plain_ort.py` proves that it behaves as an engine must. The class is used in a process
of its own: it may crash, hang or print without harm to the search.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtune.engines import (
    DialectChoice,
    EngineEntry,
    EngineInfo,
    InputSpec,
    LayerTime,
    SessionOptions,
)

Arrays = Mapping[str, npt.NDArray[Any]]

# What is known without importing the runtime, and what pyproject.toml's entry point leads to. The
# dialect says how the engine wants Q/DQ written, and what it can fuse.
ENTRY = EngineEntry(
    "plain_ort",
    install="pip install onnxruntime",
    module="onnxruntime",
    worker_class="plain_ort:PlainOrt",
    dialects=(DialectChoice("onnxruntime"),),
)

_NUMPY_NAMES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(string)": "str"}


class PlainOrt:
    """Opens models."""

    def info(self, options: SessionOptions) -> EngineInfo:
        """Describe everything that a time depends on: other times are never compared with it."""
        import onnxruntime

        version, device = onnxruntime.__version__, onnxruntime.get_device()
        return EngineInfo(
            "plain_ort", version, device, "cpu", options.threads, options.engine_options
        )

    def open(self, path: str, options: SessionOptions) -> PlainOrtSession:
        """Open a model; any exception becomes the error of one candidate."""
        if options.engine_options:
            raise ValueError(f"unknown option {min(options.engine_options)!r}; there are none")
        return PlainOrtSession(path, options.threads)


class PlainOrtSession:
    """A model in the runtime."""

    def __init__(self, path: str, threads: int | None) -> None:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads or 0
        self._session = onnxruntime.InferenceSession(
            path, settings, providers=["CPUExecutionProvider"]
        )
        self.inputs = tuple(
            InputSpec(each.name, _numpy_name(each.type), tuple(each.shape))
            for each in self._session.get_inputs()
        )
        self._feeds: Arrays | None = None

    def set_feeds(self, feeds: Arrays) -> None:
        """Keep the inputs of timed runs."""
        self.run(feeds)  # refuses what does not fit
        self._feeds = feeds

    def run(self, feeds: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Run once."""
        names = [each.name for each in self._session.get_outputs()]
        results = self._session.run(names, dict(feeds))
        return dict(zip(names, map(np.asarray, results), strict=True))

    def time_runs(self, runs: int) -> list[float]:
        """Run repeatedly; returns milliseconds."""
        if self._feeds is None:
            raise ValueError("there are no feeds to run on")
        samples_ms = []
        for _ in range(runs):
            start = time.perf_counter()
            self._session.run(None, self._feeds)
            samples_ms.append((time.perf_counter() - start) * 1000)
        return samples_ms

    def layer_times(self, runs: int) -> list[LayerTime]:
        """Not known: subgraph mode then finds groups by structure alone."""
        raise NotImplementedError("plain_ort does not report its layers")

    def close(self) -> None:
        """Free everything."""
        del self._session
        self._feeds = None


def _numpy_name(kind: str) -> str:
    return _NUMPY_NAMES.get(kind, kind.removeprefix("tensor(").removesuffix(")"))
