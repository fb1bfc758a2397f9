"""A built engine with memory for its inputs and outputs, ready to be run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from qdqtune.engines.tensorrt.cuda import Cuda, CudaError, DeviceArray
from qdqtune.engines.tensorrt.library import Library, telling

if TYPE_CHECKING:
    from qdqtune.engines.interface import Feeds, Outputs

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


class ExecutionError(RuntimeError):
    """A built engine could not be run; the message says why."""


class Execution:
    """One context of a built engine.

    Args:
        library: TensorRT.
        cuda: CUDA.
        engine: The built engine.
        profiler: Receives the time of every layer in every run; such runs are slower.

    Raises:
        ExecutionError: If no context can be created, for lack of memory for example.
    """

    def __init__(self, library: Library, cuda: Cuda, engine: Any, profiler: Any = None) -> None:
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
        self._inputs = [name for name in names if engine.get_tensor_mode(name) == mode]
        self._outputs = [name for name in names if name not in self._inputs]
        self._memory = {name: DeviceArray(cuda) for name in names}
        self._host: dict[str, npt.NDArray[Any]] = {}
        self._allocators: dict[str, Any] = {}
        self._graph: Any = None

    def put(self, feeds: Feeds) -> None:
        """Copies inputs to the GPU, and allocates memory for outputs.

        Raises:
            ExecutionError: If TensorRT rejects them.
        """
        self._forget_graph()
        for name in self._inputs:
            array = self._converted(name, feeds[name])
            if not self._context.set_input_shape(name, array.shape):
                raise ExecutionError(self._reason(f"TensorRT refuses the shape of '{name}'"))
            if self._engine.is_shape_inference_io(name):
                self._host[name] = array
                address = array.ctypes.data
            else:
                self._memory[name].put(array)
                address = self._memory[name].address
            self._set_address(name, address)
        for name in self._outputs:
            shape = tuple(self._context.get_tensor_shape(name))
            if min(shape, default=0) < 0:
                self._leave_room_to(name)
            elif self._engine.is_shape_inference_io(name):
                self._host[name] = np.empty(shape, self._dtype(name))
                self._set_address(name, self._host[name].ctypes.data)
            else:
                size = math.prod(shape) * self._dtype(name).itemsize
                self._set_address(name, self._memory[name].reserve(size))

    def run(self) -> None:
        """Enqueues one run on the stream."""
        if self._graph is not None:
            self._cuda.launch(self._graph)
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
            self._library.log.errors = []  # they are no reason for what fails later
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
        return [self._cuda.elapsed_ms(start, end) for start, end in events]

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
                raise ExecutionError(self._reason("TensorRT tells no times of layers"))

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
        self._forget_graph()
        self._context = None
        self._allocators = {}
        for memory in self._memory.values():
            memory.free()

    def _forget_graph(self) -> None:
        if self._graph is not None:
            self._cuda.drop_graph(self._graph)
            self._graph = None

    def _converted(self, name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
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

    def _leave_room_to(self, name: str) -> None:
        """Lets TensorRT report the size of an output when it is known: some depend on values."""
        allocator = _make_allocator(self._library.api, self._memory[name])
        self._allocators[name] = allocator
        if not self._context.set_output_allocator(name, allocator):
            raise ExecutionError(self._reason(f"TensorRT can't tell the size of '{name}'"))

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
