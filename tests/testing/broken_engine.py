"""The engine that docs/extend/engine.md shows, with layers, and with one fault at a time.

Loaded in the worker; the option `fault` says which. Without one it is a good engine.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time

import numpy as np
from my_engine import MyEngine, MySession
from onnx.parser import parse_model
from onnx.reference.op_run import OpRun

from qdqtune.engines._interface import InputSpec, SessionOptions
from qdqtune.records._measurement import EngineInfo, LayerTime

_MINE = ("fault", "another")
_ANYTHING = """
<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { y = Relu(x) }
"""


class SaturatingMatMul(OpRun):
    """Quantizes, and adds products in pairs that saturate at 16 bits."""

    op_domain = ""

    def _run(self, a, b):
        a_scale, b_scale = np.abs(a).max() / 255.0, np.abs(b).max() / 127.0
        products = np.rint(a / a_scale)[:, :, None] * np.rint(b / b_scale)[None]
        pairs = products[:, 0::2] + products[:, 1::2]
        sums = np.clip(pairs, -(2**15), 2**15 - 1).sum(axis=1)
        return ((sums * a_scale * b_scale).astype(np.float32),)


SaturatingMatMul.__name__ = "MatMul"


class BrokenEngine(MyEngine):
    def __init__(self) -> None:
        self._opened = 0
        self._leaked: list[np.ndarray] = []
        self._alike: dict[tuple[InputSpec, ...], MySession] = {}

    def info(self, options: SessionOptions) -> EngineInfo:
        fault = options.engine_options.get("fault", "")
        info = super().info(options)
        told = dict(info.options)
        if fault == "forgets options":
            told.pop("another", None)
        if fault == "tells the time of day":
            told["now"] = str(time.time_ns())
        threads = None if fault == "forgets threads" else info.threads
        isa = "" if fault == "forgets the isa" else info.isa
        return EngineInfo(info.name, info.version, info.device, isa, threads, told)

    def open(self, path: str, options: SessionOptions) -> BrokenSession:
        fault = options.engine_options.get("fault", "")
        if fault == "knows ASCII only":
            path.encode("ascii")
        if fault == "copies the model":
            path = shutil.copy(path, tempfile.mkdtemp(dir=os.path.dirname(path)))
        unknown = {key: v for key, v in options.engine_options.items() if key not in _MINE}
        rest = SessionOptions(engine_options={} if fault == "ignores options" else unknown)
        try:
            session = super().open(path, rest)
        except ValueError as error:
            if fault == "crashes":
                os.abort()
            if fault == "names no file":
                raise ValueError("no good") from error
            if fault != "opens anything":
                raise
            session = MySession(parse_model(_ANYTHING))
        self._opened += 1
        if fault == "leaks":
            self._leaked.append(np.ones(2**19))
        if fault == "mixes sessions":
            session = self._alike.setdefault(session.inputs, session)
        return BrokenSession(session, fault, self._opened)


class BrokenSession:
    def __init__(self, session: MySession, fault: str, number: int) -> None:
        self.session = session
        self._fault = fault
        self._number = number
        self._runs = 0
        self._fed = False
        if fault == "saturates":
            evaluator = session._evaluator
            new_ops = [SaturatingMatMul]
            session._evaluator = type(evaluator)(evaluator.proto_, new_ops=new_ops)

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        told = self.session.inputs
        if self._fault == "closes open dims":
            return tuple(
                InputSpec(i.name, i.dtype, tuple(d if isinstance(d, int) else 1 for d in i.shape))
                for i in told
            )
        if self._fault == "calls types otherwise":
            return tuple(InputSpec(i.name, f"tensor({i.dtype})", i.shape) for i in told)
        return told

    def set_feeds(self, feeds: dict) -> None:
        if self._fault == "feeds anything":
            return
        if not (self._fault == "keeps the first feeds" and self._fed):
            self.session.set_feeds(feeds)
        self._fed = True

    def run(self, feeds: dict) -> dict:
        if self._fault == "runs on new feeds":
            self.session.set_feeds(feeds)
        if self._fault == "casts feeds":
            feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
        outputs = self.session.run(feeds)
        self._runs += 1
        if self._fault == "swaps outputs":
            return dict(zip(outputs, reversed(outputs.values()), strict=True))
        if self._fault == "computes in half":
            return {name: y.astype(np.float16).astype(y.dtype) for name, y in outputs.items()}
        if self._fault == "drifts":
            return {name: y + y.dtype.type(1e-6 * self._runs) for name, y in outputs.items()}
        if self._fault == "rounds down":
            return {name: y - np.float32(0.6) * _step(y) for name, y in outputs.items()}
        return outputs

    def time_runs(self, runs: int) -> list[float]:
        if self._fault in ("feeds anything", "needs no feeds"):
            return [1.0] * runs
        if self._fault == "sleeps instead":
            time.sleep(0.001 * runs)
            return [1.0] * runs
        samples = self.session.time_runs(runs)
        if self._fault == "grows slower":
            return [ms * (1.0 + 2.0 * (self._number % 2)) for ms in samples]
        faulty = {
            "times in seconds": [ms / 1000.0 for ms in samples],
            "times in microseconds": [ms * 1000.0 for ms in samples],
            "times nothing": [float("nan")] * runs,
            "a sample less": samples[1:],
        }
        return faulty.get(self._fault, samples)

    def layer_times(self, runs: int) -> list[LayerTime]:
        if self._fault == "needs no feeds":
            return [LayerTime("all", "Conv", 1.0)]
        run_ms = float(np.mean(self.session.time_runs(runs)))
        nodes = self.session._evaluator.proto_.graph.node
        quantized = any(node.op_type == "QuantizeLinear" for node in nodes)
        precision = "uint8" if quantized and self._fault != "tells no precision" else ""
        each_ms = 0.0 if self._fault == "layers take nothing" else run_ms / len(nodes)
        names = {
            "all layers are called the same": ["layer" for _ in nodes],
            "layers have other names": [f"kernel{number}" for number, _ in enumerate(nodes)],
        }.get(self._fault, [node.name for node in nodes])
        return [
            LayerTime(name, "Kernel" if name.startswith("kernel") else node.op_type, each_ms,
                      precision=precision)
            for name, node in zip(names, nodes, strict=True)
        ]  # fmt: skip

    def close(self) -> None:
        if self._fault != "mixes sessions":
            self.session.close()


def _step(array: np.ndarray) -> np.ndarray:
    return (array.max() - array.min()) / 255.0
