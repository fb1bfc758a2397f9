"""OpenVINO. Runs in the worker; the parent never imports this module."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import openvino as ov

from qdqtune.engines._interface import InputSpec, RunClock, SessionOptions
from qdqtune.engines._openvino_settings import (
    MAX_CPU_ISA,
    PRECISION_HINT,
    PRECISION_OPTION,
    Settings,
    check_device,
    check_threads,
    settings_of,
)
from qdqtune.records._measurement import EngineInfo, LayerTime

if TYPE_CHECKING:
    from qdqtune.engines._interface import Feeds, Outputs

_PRODUCT = "product"
# Large enough to be worth converting its operands.
_SIZE = 64
_FLOATS = ("float32", "bfloat16", "float16")

# Our names of types, by OpenVINO's names.
_TYPES = {
    "bf16": "bfloat16",
    "boolean": "bool",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "i4": "int4",
    "i8": "int8",
    "i32": "int32",
    "i64": "int64",
    "string": "str",
    "u4": "uint4",
    "u8": "uint8",
}
# Types without a numpy name; OpenVINO returns their bits under another type.
_VIEWED = ("bf16", "f8e4m3", "f8e5m2")
_FACTS = (
    "layerType", "originalLayersNames", "outputPrecisions", "primitiveType", "runtimePrecision",
)  # fmt: skip
_CONSTANTS = frozenset({"Const", "Constant"})
# For these, the runtime precision is that of the condition or of the trip count.
_WITH_BODIES = frozenset({"If", "Loop", "TensorIterator"})
_NOT_LAYERS = frozenset({"Input", "Output", "Parameter", "Result"})
_PROFILE_WARMUP_RUNS = 2
# A run of a profile counts that takes at most so many times as long as the fastest.
_UNDISTURBED = 1.25
_FEWEST_RUNS = 3
# OpenVINO's name for the result of an ONNX output.
_RESULT = "/sink_port_0"
# Prefix of lines that name the OpenVINO source file an error came through.
_PASSED_ON = "Exception from src/"
# Share of a run on other threads up to which the clock of the calling thread is trusted.
_ELSEWHERE = 0.05


def with_float_kernels(core: Any, settings: Settings) -> Settings:
    """Return the settings, with float32 where an ISA limit leaves no faster float kernels.

    OpenVINO chooses bfloat16 by the CPU's capabilities, ignoring the limit in `max_cpu_isa`: it is
    then slower than in float32, or refuses the model.
    """
    if settings.leaves_bfloat16 or PRECISION_HINT in settings.properties:
        return settings
    if _type_name(core.get_property("CPU", PRECISION_HINT)) not in ("bfloat16", "float16"):
        return settings
    return replace(
        settings,
        properties={**settings.properties, PRECISION_HINT: "f32"},
        in_effect={**settings.in_effect, PRECISION_OPTION: "f32"},
    )


def float_type_in_effect(core: Any, settings: Settings) -> str:
    """Return the type in which float32 models are computed with these settings; empty if unknown.

    A hint is not binding: where a CPU has no kernels of the type, OpenVINO uses another. So a small
    model is compiled and inspected.

    Raises:
        ValueError: If the requested type can't be used for computation.
    """
    try:
        compiled = core.compile_model(_product(), settings.device, settings.properties)
    except RuntimeError as error:
        asked = settings.properties.get(PRECISION_HINT)
        if asked is None:
            return ""
        why = str(error).strip().splitlines()[-1]
        if not settings.leaves_bfloat16:
            why = f"max_cpu_isa={settings.max_cpu_isa} leaves no kernels for it"
        raise ValueError(f"{PRECISION_OPTION}={asked} can't be had: {why}") from None
    try:
        layers = layer_times_of(compiled.get_runtime_model(), {})
    except RuntimeError:  # composite devices may have no runtime model
        layers = []
    found = [layer.precision for layer in layers if _PRODUCT in layer.origins]
    told = [precision for precision in found if precision in _FLOATS]
    return told[0] if told else _hinted(compiled)


def _product() -> Any:
    weights = np.random.default_rng(0).standard_normal((_SIZE, _SIZE), np.float32)
    x = ov.opset8.parameter([_SIZE, _SIZE], np.float32)
    product = ov.opset8.matmul(x, ov.opset8.constant(weights), False, False)
    product.set_friendly_name(_PRODUCT)
    return ov.Model([product], [x])


def _hinted(compiled: Any) -> str:
    """Return the type that a device reports; `dynamic` and `undefined` mean float32."""
    try:
        hint = _type_name(compiled.get_property(PRECISION_HINT))
    except RuntimeError:
        return ""
    return "float32" if hint in ("dynamic", "undefined") else hint


def _type_name(kind: Any) -> str:
    name = str(kind.get_type_name())
    return _TYPES.get(name, name)


class OpenVinoEngine:
    """Opens models on any OpenVINO device; on the CPU by default."""

    def __init__(self) -> None:
        self._core: Any = None
        self._limit: str | None = None
        self._float_types: dict[tuple[str, ...], str] = {}

    def info(self, options: SessionOptions) -> EngineInfo:
        """Returns the version and the device, with the options in effect."""
        core, settings = self._started(options)
        return EngineInfo(
            name="openvino",
            version=ov.__version__.partition("-")[0],
            device=_property(core, settings.device, "FULL_DEVICE_NAME"),
            isa=settings.isa or _property(core, settings.device, "DEVICE_ARCHITECTURE"),
            threads=options.threads,
            options=settings.in_effect,
            float_type=self._float_type(core, settings),
        )

    def open(self, path: str, options: SessionOptions) -> OpenVinoSession:
        """Opens the model file."""
        core, settings = self._started(options)
        return OpenVinoSession(core, path, options, settings)

    def _started(self, options: SessionOptions) -> tuple[Any, Settings]:
        """Return OpenVINO, with its instruction set fixed once and for all, and its settings."""
        settings = settings_of(options)
        if self._core is None:
            if settings.max_cpu_isa:
                os.environ[MAX_CPU_ISA] = settings.max_cpu_isa
            self._core, self._limit = ov.Core(), settings.max_cpu_isa
        if settings.max_cpu_isa != self._limit:
            raise ValueError(
                f"max_cpu_isa is '{settings.max_cpu_isa}', but it was '{self._limit}' when "
                "OpenVINO was started, and can't be changed"
            )
        check_device(self._core, settings, options.threads)
        return self._core, with_float_kernels(self._core, settings)

    def _float_type(self, core: Any, settings: Settings) -> str:
        key = (settings.device, *(f"{k}={v}" for k, v in sorted(settings.properties.items())))
        if key not in self._float_types:
            self._float_types[key] = float_type_in_effect(core, settings)
        return self._float_types[key]


class OpenVinoSession:
    """A model open in OpenVINO.

    Args:
        core: OpenVINO.
        path: The model file; external data is found beside it.
        options: How to open it.
        settings: The same, as OpenVINO settings.
    """

    def __init__(self, core: Any, path: str, options: SessionOptions, settings: Settings) -> None:
        self._core = core
        self._path = path
        self._settings = settings
        with _plain_errors():
            model = core.read_model(path)
            self._inputs = tuple(_input_spec(port) for port in model.inputs)
            self._outputs = [_output_name(port) for port in model.outputs]
            self._compiled: Any = core.compile_model(model, settings.device, settings.properties)
        if options.threads is not None:
            check_threads(self._compiled, settings, options.threads)
        if options.optimized_model_path is not None:
            ov.serialize(self._compiled.get_runtime_model(), options.optimized_model_path)
        self._tensors: list[Any] | None = None
        self._requests: list[Any] = []
        self._clock = RunClock(on_one_thread=options.threads == 1 and settings.is_cpu)

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The model's inputs."""
        return self._inputs

    def set_feeds(self, feeds: Feeds) -> None:
        """Passes the inputs of timed runs to as many requests as the device runs at once."""
        self._tensors = self._to_tensors(feeds)
        wanted = self._compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        several = wanted > 1 and self._settings.in_parallel
        self._requests = [
            _request(self._compiled, self._tensors) for _ in range(wanted if several else 1)
        ]
        if len(self._requests) > 1 or not _runs_here(self._requests[0]):
            self._clock.use_wall_time()

    def run(self, feeds: Feeds) -> Outputs:
        """Runs once and returns the outputs."""
        request = _request(self._compiled, self._to_tensors(feeds))
        results = request.infer()
        ports = zip(self._outputs, self._compiled.outputs, strict=True)
        return {name: _array(port, results[number]) for number, (name, port) in enumerate(ports)}

    def time_runs(self, runs: int) -> list[float]:
        """Runs back to back on the stored feeds.

        Inputs stay in place and outputs are not copied. With one thread on the CPU a sample is the
        time of the calling thread, on which the whole run executes. With several streams, one
        sample is a run of all requests at once, divided by their number.
        """
        if not self._requests:
            raise ValueError("the model was given no feeds to run on")
        samples = self._clock.samples_ms(_runner(self._requests), runs)
        return [sample / len(self._requests) for sample in samples]

    def layer_times(self, runs: int) -> list[LayerTime]:
        """Typical time per layer from OpenVINO's own counters, in a separate compiled model."""
        if self._tensors is None:
            raise ValueError("the model was given no feeds to run on")
        properties = {**self._settings.properties, "PERF_COUNT": "YES"}
        compiled = self._core.compile_model(self._path, self._settings.device, properties)
        request = _request(compiled, self._tensors)
        counters, walls_s = [], []
        for _ in range(_PROFILE_WARMUP_RUNS + runs):
            start_s = time.perf_counter()
            request.infer(share_outputs=True)
            walls_s.append(time.perf_counter() - start_s)
            counters.append(_milliseconds(request.profiling_info))
        spent = undisturbed_ms(counters, walls_s, _PROFILE_WARMUP_RUNS)
        return layer_times_of(compiled.get_runtime_model(), spent)

    def close(self) -> None:
        """Drops the compiled model; OpenVINO frees it with its last reference."""
        self._requests = []
        self._tensors = None
        self._compiled = None

    def _to_tensors(self, feeds: Feeds) -> list[Any]:
        wanted = {spec.name for spec in self._inputs}
        if wanted != feeds.keys():
            raise ValueError(f"the inputs are {sorted(wanted)}, the feeds {sorted(feeds)}")
        return [
            _tensor(port.get_element_type(), feeds[spec.name], spec)
            for port, spec in zip(self._compiled.inputs, self._inputs, strict=True)
        ]


def _request(compiled: Any, tensors: list[Any]) -> Any:
    request = compiled.create_infer_request()
    for number, tensor in enumerate(tensors):
        request.set_input_tensor(number, tensor)
    return request


def _runner(requests: list[Any]) -> Callable[[], object]:
    """Return a function that runs all requests at once."""
    if len(requests) == 1:
        return functools.partial(requests[0].infer, share_outputs=True)

    def run() -> None:
        for request in requests:
            request.start_async()
        for request in requests:
            request.wait()

    return run


def _runs_here(request: Any) -> bool:
    """Whether a run executes on the calling thread; OpenVINO decides that, not its caller."""
    request.infer(share_outputs=True)
    thread, process = time.thread_time_ns(), time.process_time_ns()
    request.infer(share_outputs=True)
    thread, process = time.thread_time_ns() - thread, time.process_time_ns() - process
    return thread >= (1.0 - _ELSEWHERE) * process


def _tensor(kind: Any, array: Any, spec: InputSpec) -> Any:
    if array.dtype.name != spec.dtype and not (spec.dtype == "str" and array.dtype.kind in "OU"):
        raise ValueError(f"the input '{spec.name}' is {spec.dtype}, its feed {array.dtype.name}")
    array = np.ascontiguousarray(array).reshape(array.shape)  # the former makes scalars vectors
    if array.dtype.isbuiltin == 1:
        return ov.Tensor(array, shared_memory=array.dtype.kind not in "OU")
    return ov.Tensor(array.view(f"u{array.dtype.itemsize}"), array.shape, kind)


def _array(port: Any, result: Any) -> Any:
    """Return a copy of a result in its own type."""
    array = np.array(result, copy=True)
    name = port.get_element_type().get_type_name()
    return array.view(getattr(ml_dtypes, _TYPES[name])) if name in _VIEWED else array


def _input_spec(port: Any) -> InputSpec:
    dims = tuple(dim.get_length() if dim.is_static else None for dim in _dims(port))
    return InputSpec(port.get_node().get_friendly_name(), _dtype(port.get_element_type()), dims)


def _dims(port: Any) -> Any:
    shape = port.get_partial_shape()
    return () if shape.rank.is_dynamic else shape


def _dtype(kind: Any) -> str:
    name = kind.get_type_name()
    return _TYPES[name] if name in _TYPES else np.dtype(kind.to_dtype()).name


def _output_name(port: Any) -> str:
    name: str = port.get_node().get_friendly_name().removesuffix(_RESULT)
    return name if name in port.get_names() else port.get_any_name()


def _property(core: Any, device: str, name: str) -> str:
    try:
        return str(core.get_property(device, name)).strip()
    except RuntimeError:  # AUTO, HETERO and their like have none
        return device


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Remove the names of source files from OpenVINO's messages."""
    try:
        yield
    except RuntimeError as error:
        lines = (line.strip() for line in str(error).splitlines())
        kept = [line for line in lines if line and not line.startswith(_PASSED_ON)]
        raise RuntimeError("\n".join(kept) or str(error)) from None


def undisturbed_ms(
    counters: Sequence[Mapping[str, float]], walls_s: Sequence[float], skip_runs: int = 0
) -> dict[str, float]:
    """Return the mean times of layers in the runs that nothing else disturbed.

    Time slices of other processes last longer than most models run here: on a shared core, means
    over all runs came to five times the model's latency. OpenVINO's counters are means over all
    runs so far, in whole microseconds, so that the time in one run is known to as many microseconds
    as there were runs; in the mean of several runs that cancels out.

    Args:
        counters: The counters after each run, in milliseconds.
        walls_s: The duration of each run.
        skip_runs: Number of first runs, which don't count.
    """
    ranked = sorted(range(skip_runs, len(walls_s)), key=walls_s.__getitem__)
    most_s = _UNDISTURBED * walls_s[ranked[0]]
    kept = ranked[: max(_FEWEST_RUNS, sum(walls_s[run] <= most_s for run in ranked))]
    spent: dict[str, float] = {}
    for name in counters[-1]:
        sums = [0.0, *(number * each.get(name, 0.0) for number, each in enumerate(counters, 1))]
        spent[name] = max(0.0, sum(sums[run + 1] - sums[run] for run in kept) / len(kept))
    return spent


def layer_times_of(runtime_model: Any, spent: Mapping[str, float]) -> list[LayerTime]:
    """Return the layers of a compiled model.

    Args:
        runtime_model: What `CompiledModel.get_runtime_model` returns.
        spent: The time of each layer in milliseconds, by name.

    Returns:
        The layers in order of execution, without those that OpenVINO ran only once because they
        depend on constants only.
    """
    layers = []
    constants: set[str] = set()
    for op in runtime_model.get_ordered_ops():
        given = dict(op.get_rt_info())
        facts = {key: str(given[key].value) for key in _FACTS if key in given}
        kind = facts.get("layerType", op.get_type_name())
        inputs = tuple(_port(each.get_source_output()) for each in op.inputs())
        outputs = tuple(_port(each) for each in op.outputs())
        if kind in _CONSTANTS or (inputs and constants.issuperset(inputs)):
            constants.update(outputs)
        elif kind not in _NOT_LAYERS:
            name = op.get_friendly_name()
            precision = facts.get("runtimePrecision", "")
            if kind in _WITH_BODIES:
                precision = facts.get("outputPrecisions", precision).partition(",")[0]
            origins = facts.get("originalLayersNames", "")
            layers.append(
                LayerTime(
                    name=name,
                    op_type=kind,
                    ms=spent.get(name, 0.0),
                    provider=facts.get("primitiveType", ""),
                    precision=_TYPES.get(precision, precision),
                    origins=tuple(origin for origin in origins.split(",") if origin),
                    inputs=tuple(tensor for tensor in inputs if tensor not in constants),
                    outputs=outputs,
                )
            )
    return layers


def _milliseconds(counters: Iterable[Any]) -> dict[str, float]:
    return {each.node_name: each.real_time.total_seconds() * 1e3 for each in counters}


def _port(output: Any) -> str:
    """Return a name for a tensor, which never matches one in the model."""
    return f"{output.get_node().get_friendly_name()} output {output.get_index()}"
