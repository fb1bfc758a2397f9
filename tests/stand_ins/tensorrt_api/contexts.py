"""Contexts, which run engines: the clock of a stream goes on, and the host computes."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from tests.stand_ins.tensorrt_api import device
from tests.stand_ins.tensorrt_api.bindings import Dims
from tests.stand_ins.tensorrt_api.computing import Computation, Shape
from tests.stand_ins.tensorrt_api.enums import Severity
from tests.stand_ins.tensorrt_api.situation import SLOWNESS, VERSION, strikes
from tests.stand_ins.trtexec_inference import Times

_NUMPY = {
    "Float": np.dtype(np.float32), "Half": np.dtype(np.float16), "Int32": np.dtype(np.int32),
    "BFloat16": np.dtype(ml_dtypes.bfloat16), "Int64": np.dtype(np.int64),
    "Bool": np.dtype(np.bool_), "Int8": np.dtype(np.int8), "UInt8": np.dtype(np.uint8),
    "FP8": np.dtype(ml_dtypes.float8_e4m3fn),
}  # fmt: skip
_NOISE = 0.004
_numbers = itertools.count()


class LoadedEngine(Protocol):
    """What a context needs of an engine."""

    stand_in_computation: Computation
    stand_in_log: Any
    stand_in_told: dict[str, Any]


class ExecutionContext:
    """Runs an engine."""

    __slots__ = (
        "__weakref__", "_addresses", "_allocators", "_engine", "_last", "_random", "_shapes",
        "_sizes", "_told", "_unreported", "enqueue_emits_profile", "profiler",
    )  # fmt: skip

    def __init__(self, engine: LoadedEngine) -> None:
        self._engine = engine
        self._told = engine.stand_in_told
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}
        self._shapes = {value["name"]: tuple(value["dims"]) for value in self._told["inputs"]}
        self._random = random.Random(f"{self._told['digest']}/{next(_numbers)}")
        self._last: _Run | None = None
        self._sizes: dict[str, int] = {}
        self.profiler: Any = None
        self.enqueue_emits_profile = True
        self._unreported = False

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        """Sets the shape of an input; False if it is outside of the profile."""
        sizes = tuple(shape)
        found = [value for value in self._told["inputs"] if value["name"] == name]
        inside = found and len(sizes) == len(found[0]["dims"])
        inside = inside and all(
            low <= size <= high
            for low, size, high in zip(found[0]["min"], sizes, found[0]["max"], strict=True)
        )
        if not inside or self._strikes("set_input_shape_false"):
            return self._fail(
                "IExecutionContext::setInputShape: Error Code 3: API Usage Error (Parameter check "
                f"failed, condition: satisfyProfile. Set dimension {list(sizes)} for tensor {name} "
                "does not satisfy any optimization profiles.)"
            )
        self._shapes[name] = sizes
        self._last = None
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        """Says where an input or output lies."""
        names = [value["name"] for value in (*self._told["inputs"], *self._told["outputs"])]
        if name not in names or self._strikes("set_tensor_address_false"):
            return self._fail(
                "IExecutionContext::setTensorAddress: Error Code 3: API Usage Error (Given "
                f"invalid tensor name or address: {name})"
            )
        if name in self._told["values"] and device.owns(address, 0):
            return self._fail(f"{name} decides shapes: the host can't read it on the device")
        self._addresses[name] = int(address)
        self._last = None
        return True

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        """Says who makes room for an output when its size is known."""
        if self._strikes("set_output_allocator_false"):
            return self._fail("IExecutionContext::setOutputAllocator: Error Code 3")
        self._allocators[name] = allocator
        return True

    def get_tensor_shape(self, name: str) -> Dims:
        """The shape of an input or output as far as it is known."""
        if name in self._shapes:
            return Dims(self._shapes[name])
        return Dims(self._output_shapes()[name])

    def execute_async_v3(self, stream_handle: int) -> bool:
        """Puts a run on a stream; False if it can't start."""
        stream = device.streams[stream_handle]
        if stream.capturing is not None and self._strikes("capture_fails"):
            stream.is_spoiled = True
            return self._fail(
                "IExecutionContext::enqueueV3: Error Code 1: Cuda Runtime (operation not permitted "
                "when stream is capturing)"
            )
        wrong = self._wrong()
        if wrong or self._strikes("execute_false"):
            text = wrong or "an illegal memory access was encountered"
            return self._fail(f"IExecutionContext::enqueueV3: Error Code 1: Cuda Runtime ({text})")
        run = self._next_run()
        if self._allocators:
            device.finish()
            run.compute_into(self._allocators, stream_handle)
        stream.put(run)
        if self.profiler is not None and stream.capturing is None:
            self._unreported = True
            if self.enqueue_emits_profile:
                stream.wait()
                self.report_to_profiler()
        return True

    def report_to_profiler(self) -> bool:
        """Tells the times of the last run's layers; False if they were told, or there was none."""
        if self._last is None or not self._unreported or self._strikes("report_false"):
            return self._fail("IExecutionContext::reportToProfiler: Error Code 3: API Usage Error")
        self._unreported = False
        for layer, ms in zip(self._told["layers"], self._last.layers_ms, strict=True):
            self.profiler.report_layer_time(layer["name"], ms)
        return True

    def _next_run(self) -> _Run:
        """The same one as long as nothing changes: a run must not cost more than it pretends to."""
        if self._last is None or self._allocators:
            self._last = _Run(self._engine, dict(self._shapes), dict(self._addresses), self._random)
        return self._last

    def _strikes(self, fault: str) -> bool:
        return strikes(fault, self._told["model"])

    def _fail(self, text: str) -> bool:
        self._engine.stand_in_log.log(Severity.ERROR, text)
        return False

    def _values(self) -> dict[str, np.ndarray]:
        return {
            value["name"]: device.array_at(
                self._addresses[value["name"]], self._shapes[value["name"]], _NUMPY[value["kind"]]
            ).astype(_NUMPY[value["model_kind"]])
            for value in self._told["inputs"]
            if value["name"] in self._told["values"] and value["name"] in self._addresses
        }

    def _output_shapes(self) -> dict[str, Shape]:
        declared = {value["name"]: tuple(value["dims"]) for value in self._told["outputs"]}
        if all(min(dims, default=0) >= 0 for dims in declared.values()):
            return declared
        return self._engine.stand_in_computation.shapes(self._shapes, self._values())

    def _wrong(self) -> str:
        """What keeps a run from starting; a GPU would not notice all of it."""
        for name, array in self._values().items():
            least, _, most = self._told["values"][name]
            if not all(a <= v <= b for a, v, b in zip(least, array.flat, most, strict=True)):
                return f"the values of {name} are outside of the profile"
        if self._last is None:
            known = {**self._shapes, **self._output_shapes()}
            self._sizes = {
                value["name"]: _bytes(known[value["name"]], value["kind"])
                for value in (*self._told["inputs"], *self._told["outputs"])
                if value["name"] not in (*self._allocators, *self._told["values"])
            }
        for name, size in self._sizes.items():
            if size < 0:
                return f"the shape of {name} is not known"
            if not device.owns(self._addresses.get(name, 0), size):
                return f"{name} has no {size} bytes of device memory"
        return ""


def _bytes(shape: Shape, kind: str) -> int:
    """How large a tensor is; -1 if that isn't known."""
    return -1 if min(shape, default=0) < 0 else math.prod(shape) * _NUMPY[kind].itemsize


class _Run:
    """One run, as it was when it was put on the stream."""

    def __init__(
        self,
        engine: LoadedEngine,
        shapes: dict[str, Shape],
        addresses: dict[str, int],
        noise: random.Random,
    ) -> None:
        self._engine = engine
        self._shapes = shapes
        self._addresses = addresses
        self._random = noise
        lists = {name: list(shape) for name, shape in shapes.items()}
        times = Times(engine.stand_in_told, lists, "")
        self.layers_ms = [SLOWNESS * ms for ms in times.layers_ms]

    def key(self) -> Hashable:
        return self

    def next_ms(self) -> float:
        return max(sum(self.layers_ms), 0.001) * (1.0 + _NOISE * self._random.gauss(0.0, 1.0))

    def compute(self) -> None:
        for name, array in self._results().items():
            if name in self._addresses:
                target = device.array_at(self._addresses[name], array.shape, array.dtype)
                target[...] = array

    def compute_into(self, allocators: dict[str, Any], stream: int) -> None:
        """Lets allocators make room for outputs whose sizes only a run tells."""
        results = self._results()
        for name, allocator in allocators.items():
            array = results[name]
            given = (name, self._addresses.get(name, 0), array.nbytes, 256)
            if VERSION >= (10,):
                address = allocator.reallocate_output_async(*given, stream)
            else:
                address = allocator.reallocate_output(*given)
            allocator.notify_shape(name, Dims(array.shape))
            self._addresses[name] = address

    def _results(self) -> dict[str, np.ndarray]:
        told = self._engine.stand_in_told
        feeds = {}
        for value in told["inputs"]:
            name = value["name"]
            read = device.array_at(self._addresses[name], self._shapes[name], _NUMPY[value["kind"]])
            feeds[name] = read.astype(_NUMPY[value["model_kind"]])
        found = self._engine.stand_in_computation.run(feeds)
        kinds = {value["name"]: _NUMPY[value["kind"]] for value in told["outputs"]}
        return {name: np.asarray(found[name]).astype(kind) for name, kind in kinds.items()}
