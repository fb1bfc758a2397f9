"""A built engine with CUDA memory for its inputs and outputs, ready to be run."""

from __future__ import annotations

import importlib
import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from qdqtune.engines.tensorrt._builder import Library, telling

if TYPE_CHECKING:
    from qdqtune.engines._interface import Feeds, Outputs


_MODULES = ("cuda.bindings.runtime", "cuda.cudart")
_INSTALL = "pip install cuda-python"
Array = npt.NDArray[Any]

_RUNS_AHEAD = 2
_DTYPES: dict[str, Any] = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP8": ml_dtypes.float8_e4m3fn,
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
}


class CudaError(RuntimeError):
    """A CUDA call failed."""


class Cuda:
    """CUDA's runtime on one GPU; every failure is an exception with CUDA's message.

    Args:
        device: Number of the GPU.

    Attributes:
        stream: The stream for all work.
        stream_handle: The stream as a number, for other libraries.

    Raises:
        ImportError: If the Python bindings of CUDA are not installed.
        CudaError: If no GPU answers.
    """

    def __init__(self, device: int = 0) -> None:
        self._api = _bindings()
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

    def copy(self, target: Any, source: Any, size: int, direction: str) -> None:
        """Copies bytes in a direction such as `HostToDevice`."""
        if size:
            kind = getattr(self._api.cudaMemcpyKind, f"cudaMemcpy{direction}")
            self.call("cudaMemcpy", target, source, size, kind)

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

    def begin_capture(self) -> None:
        """Starts capturing work on the stream into a graph."""
        mode = self._api.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self.call("cudaStreamBeginCapture", self.stream, mode)

    def end_capture(self) -> Any:
        """Returns the captured graph, ready to be launched."""
        captured = self.call("cudaStreamEndCapture", self.stream)
        try:
            # The other function has different arguments before CUDA 12.
            return self.call("cudaGraphInstantiateWithFlags", captured, 0)
        finally:
            self.call("cudaGraphDestroy", captured)

    def drop_capture(self) -> None:
        """Ends a failed capture, and clears its error."""
        self._api.cudaStreamEndCapture(self.stream)
        self._api.cudaGetLastError()


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
            self._address, self._size = self._cuda.call("cudaMalloc", max(1, size)), size
        return self.address

    def put(self, array: Array) -> None:
        """Copies a contiguous array into it."""
        self.reserve(array.nbytes)
        self._cuda.copy(self._address, array.ctypes.data, array.nbytes, "HostToDevice")

    def take(self, array: Array) -> None:
        """Copies its beginning into an array."""
        self._cuda.copy(array.ctypes.data, self._address, array.nbytes, "DeviceToHost")

    def free(self) -> None:
        """Frees it."""
        if self._address is not None:
            self._cuda.call("cudaFree", self._address)
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


class ExecutionError(RuntimeError):
    """A built engine could not be run; the message says why."""


class Execution:
    """One context of a built engine, with its inputs on the GPU and memory for its outputs.

    Args:
        library: TensorRT.
        cuda: CUDA.
        engine: The built engine.
        feeds: The inputs.
        profiler: Receives the time of every layer in every run; such runs are slower.

    Raises:
        ExecutionError: If TensorRT creates no context, for lack of memory for example, or rejects
            the inputs.
    """

    def __init__(
        self, library: Library, cuda: Cuda, engine: Any, feeds: Feeds, profiler: Any = None
    ) -> None:
        library.log.errors = []
        self._library = library
        self._cuda = cuda
        self._engine = engine
        self._context = engine.create_execution_context()
        if self._context is None:
            raise ExecutionError(self._reason("TensorRT created no execution context"))
        if profiler is not None:
            self._context.profiler = profiler
        names = [engine.get_tensor_name(place) for place in range(engine.num_io_tensors)]
        mode = library.api.TensorIOMode.INPUT
        inputs = [name for name in names if engine.get_tensor_mode(name) == mode]
        self._memory = {name: DeviceArray(cuda) for name in names}
        self._host: dict[str, Array] = {}
        self._allocators: dict[str, Any] = {}
        self._graph: Any = None
        try:
            for name in inputs:
                self._put(name, feeds[name])
            for name in names:
                if name not in inputs:
                    self._leave_room_to(name)
        except BaseException:
            self.close()
            raise

    def _put(self, name: str, feed: Array) -> None:
        """Copies an input to the GPU; one that determines shapes stays on the host."""
        array = self._converted(name, feed)
        if not self._context.set_input_shape(name, array.shape):
            raise ExecutionError(self._reason(f"TensorRT refuses the shape of '{name}'"))
        if self._engine.is_shape_inference_io(name):
            self._host[name] = array
            self._set_address(name, array.ctypes.data)
        else:
            self._memory[name].put(array)
            self._set_address(name, self._memory[name].address)

    def _leave_room_to(self, name: str) -> None:
        """Allocates memory for an output, or lets TensorRT do so: some sizes depend on values."""
        shape = tuple(self._context.get_tensor_shape(name))
        if min(shape, default=0) < 0:
            self._allocators[name] = _make_allocator(self._library.api, self._memory[name])
            if not self._context.set_output_allocator(name, self._allocators[name]):
                raise ExecutionError(self._reason(f"TensorRT doesn't report the size of '{name}'"))
        elif self._engine.is_shape_inference_io(name):
            self._host[name] = np.empty(shape, self._dtype(name))
            self._set_address(name, self._host[name].ctypes.data)
        else:
            size = math.prod(shape) * self._dtype(name).itemsize
            self._set_address(name, self._memory[name].reserve(size))

    def run(self) -> None:
        """Enqueues one run on the stream."""
        if self._graph is not None:
            self._cuda.call("cudaGraphLaunch", self._graph, self._cuda.stream)
        elif not self._context.execute_async_v3(self._cuda.stream_handle):
            raise ExecutionError(self._reason("TensorRT could not start a run"))

    def capture(self) -> bool:
        """Captures later runs as a CUDA graph; False if the engine can't be captured."""
        if self._allocators:
            return False
        self.run()
        self._cuda.wait()
        self._cuda.begin_capture()
        try:
            if not self._context.execute_async_v3(self._cuda.stream_handle):
                raise CudaError("the run could not be captured")
            self._graph = self._cuda.end_capture()
        except CudaError:
            self._cuda.drop_capture()
            self._library.log.errors = []  # they would not explain a later failure
            return False
        return True

    def time(self, runs: int) -> list[float]:
        """Runs back to back; returns the GPU milliseconds of each run."""
        events = self._cuda.events(runs)
        for start, end in events:
            self._cuda.record(start)
            self.run()
            self._cuda.record(end)
        self._cuda.wait()
        elapsed = (self._cuda.call("cudaEventElapsedTime", *pair) for pair in events)
        return [float(milliseconds) for milliseconds in elapsed]

    def profile(self, runs: int, ahead: Execution) -> None:
        """Profiles a number of runs.

        Each is launched behind runs that keep the GPU busy: layers that wait to be launched look
        slower than they are, especially in small models.

        Args:
            runs: Number of runs.
            ahead: The execution that runs before each of them.

        Raises:
            ExecutionError: If TensorRT reports no times.
        """
        self._context.enqueue_emits_profile = False
        for _ in range(runs):
            for _ in range(_RUNS_AHEAD):
                ahead.run()
            self.run()
            self._cuda.wait()
            if not self._context.report_to_profiler():
                raise ExecutionError(self._reason("TensorRT reports no times of layers"))

    def outputs(self, dtypes: Mapping[str, str]) -> Outputs:
        """Return the outputs of the last run.

        Args:
            dtypes: The names of outputs in order, and their types in the model.
        """
        self._cuda.wait()
        found: Outputs = {}
        for name, wanted in dtypes.items():
            shape = tuple(self._context.get_tensor_shape(name))
            if name in self._allocators:
                shape = self._allocators[name].shape
            array = self._host.get(name, np.empty(shape, self._dtype(name)))
            if name not in self._host:
                self._memory[name].take(array)
            # Versions before 10 compute 64-bit integers with 32 bits.
            found[name] = array if array.dtype.name == wanted else array.astype(wanted)
        return found

    def close(self) -> None:
        """Frees everything."""
        if self._graph is not None:
            self._cuda.call("cudaGraphExecDestroy", self._graph)
            self._graph = None
        self._context = None
        self._allocators = {}
        for memory in self._memory.values():
            memory.free()

    def _converted(self, name: str, array: Array) -> Array:
        wanted = self._dtype(name)
        if array.dtype != wanted:
            converted = array.astype(wanted)
            if array.dtype.kind in "iu" and not np.array_equal(converted, array):
                raise ExecutionError(f"the input '{name}' has numbers that {wanted} can't hold")
            array = converted
        return np.ascontiguousarray(array).reshape(array.shape)  # the former makes scalars vectors

    def _dtype(self, name: str) -> Any:
        kind = self._engine.get_tensor_dtype(name).name
        if kind not in _DTYPES:
            raise ExecutionError(f"'{name}' is of the type {kind}, which can't be read")
        return np.dtype(_DTYPES[kind])

    def _set_address(self, name: str, address: int) -> None:
        if not self._context.set_tensor_address(name, address):
            raise ExecutionError(self._reason(f"TensorRT refuses the memory for '{name}'"))

    def _reason(self, otherwise: str) -> str:
        errors, self._library.log.errors = self._library.log.errors, []
        return telling(errors) or otherwise


def _make_allocator(api: Any, memory: DeviceArray) -> Any:
    class Allocator(api.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            api.IOutputAllocator.__init__(self)
            self.shape: tuple[int, ...] = ()

        def reallocate_output(self, _name: str, _memory: int, size: int, _alignment: int) -> int:
            return memory.reserve(size)

        def reallocate_output_async(
            self, _name: str, _memory: int, size: int, _alignment: int, _stream: int
        ) -> int:
            return memory.reserve(size)

        def notify_shape(self, _name: str, shape: Any) -> None:
            self.shape = tuple(shape)

    return Allocator()


def make_profiler(api: Any) -> Any:
    """Create a profiler; `medians(runs)` returns names and milliseconds."""

    class Profiler(api.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            api.IProfiler.__init__(self)
            self.told: list[tuple[str, float]] = []

        def report_layer_time(self, name: str, ms: float) -> None:
            self.told.append((name, ms))

        def medians(self, runs: int) -> list[tuple[str, float]]:
            layers = len(self.told) // runs
            return [
                (name, statistics.median(ms for _, ms in self.told[place::layers]))
                for place, (name, _) in enumerate(self.told[:layers])
            ]

    return Profiler()
