"""An engine for tests only: its "models" are JSON files that say how to misbehave, and when.

Loaded in the worker by its name, ``faulty_engine:FaultyEngine``, with its folder in PYTHONPATH.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from qdqtune.engines._interface import InputSpec, SessionOptions
from qdqtune.records._measurement import EngineInfo, LayerTime

# Twice away: an orphan in a session that is not even its starter's.
_DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
    time.sleep(1000)
"""


def _misbehave(fault: str) -> None:
    if fault == "segfault":
        ctypes.string_at(0)
    elif fault == "abort":
        os.write(2, b"terminate called after throwing \x1b[31mstd::bad_alloc\n")
        os.abort()
    elif fault == "exit":
        os._exit(7)
    elif fault == "hang":
        time.sleep(1000)
    elif fault == "hang_with_gil":
        ctypes.PyDLL(None).sleep(1000)
    elif fault == "raise":
        raise RuntimeError("this model is \x1b[31mbad")
    elif fault == "allocate":
        bytearray(1 << 40)
    elif fault == "full disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    elif fault == "native full disk":
        raise RuntimeError("write failed: No space left on device [profile.json]")
    elif fault == "gigabyte":
        chunk = b"spam and eggs\n" * 80_000
        for _ in range(1_000_000_000 // len(chunk)):
            os.write(2, chunk)
        os.write(2, b"the last line\n")
    elif fault == "garbage":
        sys.stdout.write('{"number": 1, "result": null}\n' * 100)
        sys.stdout.flush()
        os.write(1, b'\x00\xff\n{"number": 2}\n')
        ctypes.CDLL(None).puts(b'{"number": 3, "error": "native"}')
    elif fault == "grandchild":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        os.write(2, f"grandchild {child.pid}\n".encode())
        time.sleep(1000)
    elif fault == "daemon":
        child = subprocess.Popen(
            [sys.executable, "-c", _DAEMON], stdout=subprocess.PIPE, start_new_session=True
        )
        assert child.stdout is not None
        os.write(2, b"daemon " + child.stdout.readline())
        child.wait()
    elif fault:
        raise ValueError(f"unknown fault {fault}")


class FaultyEngine:
    def info(self, options: SessionOptions) -> EngineInfo:
        return EngineInfo("faulty", "1", "none", "none", options.threads, options.engine_options)

    def open(self, path: str, options: SessionOptions) -> FaultySession:
        return FaultySession(json.loads(Path(path).read_text()))


class FaultySession:
    def __init__(self, model: dict) -> None:
        self._model = model
        self._at("open")

    inputs = (InputSpec("x", "float32", (1,)),)

    def set_feeds(self, feeds: dict) -> None:
        self._at("feed")

    def run(self, feeds: dict) -> dict:
        self._at("run")
        return {"y": np.zeros(1)}

    def time_runs(self, runs: int) -> list[float]:
        self._at("time")
        if "raw" in self._model:  # in place of the worker's own answer
            raw = self._model["raw"] * self._model.get("times", 1)
            os.write(int(sys.argv[4]), raw.encode() + b"\n")
        value = self._model.get("latency_ms", 5.0)
        return [float(value)] * runs

    def layer_times(self, runs: int) -> list[LayerTime]:
        self._at("layers")
        return [LayerTime("only", "Conv", 1.0)]

    def close(self) -> None:
        self._at("close")

    def _at(self, moment: str) -> None:
        if self._model.get("at", "time") == moment:
            _misbehave(self._model.get("fault", ""))
