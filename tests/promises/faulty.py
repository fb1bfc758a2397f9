"""A stand-in engine: the simulated one, but it breaks down over models that it is told of.

Options beside those of the simulated engine:

- ``fault``: how it breaks down; see `_FAULTS` and `_FaultySession.time_runs`.
- ``poisoned``: over which models: the name of a node that must not be quantized, ``*`` for every
  model with Q/DQ, ``every`` for every model, or ``final`` for the file that is to be handed over.
"""

from __future__ import annotations

import ctypes
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from qdqtune.engines._entries import EngineEntry
from qdqtune.engines._interface import InputSpec, SessionOptions
from qdqtune.records._measurement import EngineInfo, LayerTime
from qdqtune.testing.simulated import SimulatedEngine
from qdqtune.testing.simulated._engine import SimulatedSession

ENTRY = EngineEntry(
    "faulty",
    "it is a stand-in of the tests",
    module="qdqtune",
    worker_class="tests.promises.faulty:FaultyEngine",
    measures=False,
)

OTHER_NOISE = "QDQTUNE_TEST_OTHER_NOISE"
"""A variable that gives the machine another noise, and nobody is told."""

_OWN = ("fault", "poisoned")
_LATENCIES = {
    "impossible": (float("nan"), -1.0, 0.0, float("inf")),
    "absurd": (1e14, 5e-324),
}
_NO_TIMES = (float("nan"), float("inf"), -1.0, "soon", None, 10**400, [], True)


def _print_junk(size: int) -> None:
    chunk = b"\x1b[31m spam and eggs\n" * 50_000
    for _ in range(size // len(chunk)):
        os.write(2, chunk)
    os.write(1, b'{"number": 1, "result": null}\n' * 1000)
    os.write(2, b'\x00\xff{"number": 2, "result": {"samples_ms": [0.001], "seconds": 0}}\n' * 1000)


def _raise() -> None:
    raise RuntimeError("this model is \x1b[31mbad")


_FAULTS: dict[str, Callable[[], object]] = {
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "exit": lambda: os._exit(0),
    "hang": lambda: time.sleep(1000),
    "hang_with_gil": lambda: ctypes.PyDLL(None).sleep(1000),
    "raise": _raise,
}


class FaultyEngine(SimulatedEngine):
    """See the module."""

    def info(self, options: SessionOptions) -> EngineInfo:
        """What the simulated engine says, under another name."""
        found = super().info(_without_own(options))
        own = {key: options.engine_options[key] for key in _OWN if key in options.engine_options}
        return replace(found, name="faulty", options={**found.options, **own})

    def open(self, path: str, options: SessionOptions) -> Any:
        """Opens any model; breaks down at once if it is told to."""
        if options.engine_options.get("fault") == "clock":
            time.time = lambda: random.uniform(-1e10, 1e10)
        simulated = _without_own(options)
        if OTHER_NOISE in os.environ:
            seeded = {**simulated.engine_options, "seed": os.environ[OTHER_NOISE]}
            simulated = replace(simulated, engine_options=seeded)
        session = super().open(path, simulated)
        if not _is_poisoned(path, options.engine_options.get("poisoned", "")):
            return session
        self._broken = getattr(self, "_broken", -1) + 1
        return _FaultySession(session, options.engine_options["fault"], self._broken, path)


class _FaultySession:
    def __init__(self, session: SimulatedSession, fault: str, number: int, path: str) -> None:
        self._session = session
        self._fault = fault
        self._number = number
        self._is_candidate = _is_poisoned(path, "*") and not _is_poisoned(path, "final")
        # A gigabyte once, where the loss would be the greatest; else just more than anybody keeps.
        self._junk_bytes = 1_000_000_000 if path.endswith("final.onnx") else 10_000_000

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        return self._session.inputs

    def set_feeds(self, feeds: dict[str, Any]) -> None:
        self._session.set_feeds(feeds)

    def time_runs(self, runs: int) -> list[float]:
        samples = self._session.time_runs(runs)
        if self._fault in _LATENCIES:  # each model in another way
            latencies = _LATENCIES[self._fault]
            return [*samples[:-1], latencies[self._number % len(latencies)]]
        if self._fault == "flattery":  # what the search sees is not there when it counts
            true_ms = 0.8 if self._is_candidate else 1.0
            return self._session._noise.samples_ms(true_ms, runs)
        if self._fault == "layers":
            return samples
        os.write(2, b"about to break down\n")
        if self._fault == "junk":
            _print_junk(self._junk_bytes)
            self._junk_bytes = 0
        else:
            _FAULTS[self._fault]()
        return samples

    def layer_times(self, runs: int) -> list[LayerTime]:
        layers = self._session.layer_times(runs)
        if self._fault == "layers":  # each layer in another way
            return [
                replace(layer, ms=_NO_TIMES[(self._number + place) % len(_NO_TIMES)])
                for place, layer in enumerate(layers)
            ]
        return layers

    def close(self) -> None:
        self._session.close()


def _without_own(options: SessionOptions) -> SessionOptions:
    kept = {key: value for key, value in options.engine_options.items() if key not in _OWN}
    return replace(options, engine_options=kept)


def _is_poisoned(path: str, poisoned: str) -> bool:
    nodes = onnx.load(path, load_external_data=False).graph.node
    dequantized = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear"}
    if poisoned == "final":
        return Path(path).name == "optimized_final.onnx"
    if poisoned in ("*", "every"):
        return bool(dequantized) or poisoned == "every"
    return any(node.name == poisoned and dequantized & set(node.input) for node in nodes)
