"""The part of CUDA needed to run a built engine: memory, a stream, events, graphs."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

_MODULES = ("cuda.bindings.runtime", "cuda.cudart")
_INSTALL = "pip install cuda-python"
Array = npt.NDArray[Any]


class CudaError(RuntimeError):
    """A call of CUDA failed."""


class Cuda:
    """CUDA's runtime on one GPU; every failure is an exception with CUDA's message.

    Args:
        device: Number of the GPU.

    Attributes:
        stream: All work is put on it.
        stream_handle: The stream as a number, as other libraries take it.

    Raises:
        ImportError: If Python's bindings of CUDA are not installed.
        CudaError: If no GPU answers.
    """

    def __init__(self, device: int = 0) -> None:
        self._api = _bindings()
        self._kinds = self._api.cudaMemcpyKind
        self.call("cudaSetDevice", device)
        self._properties = self.call("cudaGetDeviceProperties", device)
        self.stream = self.call("cudaStreamCreate")
        self.stream_handle = _handle_of(self.stream)
        self._events: list[tuple[Any, Any]] = []

    @property
    def device_name(self) -> str:
        """Name of the GPU."""
        name = self._properties.name
        text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        return text.rstrip("\0")

    @property
    def capability(self) -> str:
        """The GPU's compute capability, such as `sm90`."""
        return f"sm{self._properties.major}{self._properties.minor}"

    def call(self, function: str, *arguments: Any) -> Any:
        """Calls a function of the runtime, and returns its result, or several as a tuple."""
        error, *results = getattr(self._api, function)(*arguments)
        if int(error):
            name = getattr(error, "name", str(error))
            raise CudaError(f"{function} failed: {name} ({int(error)})")
        if not results:
            return None
        return results[0] if len(results) == 1 else tuple(results)

    def allocate(self, size: int) -> Any:
        """Allocates GPU memory; a size of 0 allocates the minimum."""
        return self.call("cudaMalloc", max(1, size))

    def free(self, address: Any) -> None:
        """Frees memory."""
        self.call("cudaFree", address)

    def upload(self, address: Any, array: Array) -> None:
        """Copies an array to the GPU."""
        if array.nbytes:
            kind = self._kinds.cudaMemcpyHostToDevice
            self.call("cudaMemcpy", address, array.ctypes.data, array.nbytes, kind)

    def download(self, address: Any, array: Array) -> None:
        """Copies from the GPU into an array."""
        if array.nbytes:
            kind = self._kinds.cudaMemcpyDeviceToHost
            self.call("cudaMemcpy", array.ctypes.data, address, array.nbytes, kind)

    def wait(self) -> None:
        """Waits until everything on the stream is done."""
        self.call("cudaStreamSynchronize", self.stream)

    def events(self, count: int) -> list[tuple[Any, Any]]:
        """Returns this many pairs of events, which are cached."""
        while len(self._events) < count:
            self._events.append((self.call("cudaEventCreate"), self.call("cudaEventCreate")))
        return self._events[:count]

    def record(self, event: Any) -> None:
        """Records an event on the stream."""
        self.call("cudaEventRecord", event, self.stream)

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Milliseconds between two completed events."""
        return float(self.call("cudaEventElapsedTime", start, end))

    def begin_capture(self) -> None:
        """Starts capturing work on the stream into a graph."""
        mode = self._api.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self.call("cudaStreamBeginCapture", self.stream, mode)

    def end_capture(self) -> Any:
        """Returns the captured graph, ready to be launched."""
        captured = self.call("cudaStreamEndCapture", self.stream)
        try:
            # The other one takes other arguments before CUDA 12.
            return self.call("cudaGraphInstantiateWithFlags", captured, 0)
        finally:
            self.call("cudaGraphDestroy", captured)

    def drop_capture(self) -> None:
        """Ends a failed capture, and clears its error."""
        self._api.cudaStreamEndCapture(self.stream)
        self._api.cudaGetLastError()

    def launch(self, graph: Any) -> None:
        """Puts a graph on the stream."""
        self.call("cudaGraphLaunch", graph, self.stream)

    def drop_graph(self, graph: Any) -> None:
        """Frees a graph."""
        self.call("cudaGraphExecDestroy", graph)


class DeviceArray:
    """A block of GPU memory that grows as needed.

    Args:
        cuda: CUDA.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._size = 0
        self._address: Any = None

    @property
    def address(self) -> int:
        """Its address."""
        return int(self._address) if self._address is not None else 0

    def reserve(self, size: int) -> int:
        """Makes it at least this large; growing discards its contents. Returns the address."""
        if self._address is None or self._size < size:
            self.free()
            self._address, self._size = self._cuda.allocate(size), size
        return self.address

    def put(self, array: Array) -> None:
        """Copies an array into it."""
        self.reserve(array.nbytes)
        self._cuda.upload(self._address, np.ascontiguousarray(array))

    def take(self, array: Array) -> None:
        """Copies its beginning into an array."""
        self._cuda.download(self._address, array)

    def free(self) -> None:
        """Frees it."""
        if self._address is not None:
            self._cuda.free(self._address)
            self._address, self._size = None, 0


def _handle_of(stream: Any) -> int:
    try:
        utils = importlib.import_module("cuda.bindings.utils")
        return int(utils.get_cuda_native_handle(stream))
    except (ImportError, AttributeError):  # before 13
        return int(stream)


def _bindings() -> Any:
    reasons = []
    for name in _MODULES:
        try:
            return importlib.import_module(name)
        except (ImportError, OSError) as error:
            reasons.append(str(error))
    raise ImportError(f"CUDA's Python bindings can't be imported ({reasons[0]}): {_INSTALL}")
