"""ONNX Runtime on the CPU. Runs in the worker; the parent never imports this module."""

from __future__ import annotations

import bisect
import functools
import json
import logging
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx
import onnxruntime as ort
from google.protobuf.message import DecodeError

from qdqtune.engines._hardware import read_cpu
from qdqtune.engines._interface import InputSpec, RunClock, SessionOptions
from qdqtune.engines._worker_environment import scratch_folder
from qdqtune.graph._external_data import model_bytes
from qdqtune.graph._protobuf import nodes_within
from qdqtune.records._measurement import EngineInfo, LayerTime

if TYPE_CHECKING:
    from qdqtune.engines._interface import Feeds, Outputs

# ONNX Runtime removes unused weights, and searches a list of all weights for each: 0.7 s for 20,000
# of them, 50 s for 100,000.
_MANY = 10_000
# A smaller file can't hold that many weights; in a larger one, other costs dominate.
_SMALLEST_FILE, _LARGEST_FILE = 100_000, 256 << 20
# This optimizer merges equal small constants, comparing each one that it changes with all others.
# Of the 17.6 s for 20,000 Adds with a weight each, 2.6 s remain without it.
_SLOW_WITH_MANY = ("ConstantSharing",)
# It also frees the weights of an open model one by one, each after a search for its name, unless
# it writes the optimized model: 42 s for 100,000 weights, 3 s without.
_WRITES_NOTHING = os.devnull

_LEVELS = {
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "disable_all": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_LEVEL_OPTION = "graph_optimization_level"
_PATTERN_OPTION = "enable_mem_pattern"
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "string": "str",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e5m2": "float8_e5m2",
}
_PROFILE_WARMUP_RUNS = 2
_WARNING, _ERROR = 2, 3
_WEIGHTS_FILE_OPTION = "session.optimized_model_external_initializers_file_name"
_KERNEL_SUFFIX = "_kernel_time"
_PROFILE_TYPES = {"double": "float64", "float": "float32"}
# These contain kernels that have events of their own.
_WITH_BODIES = frozenset({"If", "Loop", "Scan"})
# Share of the free disk that the weights of an optimized model may take temporarily.
_SHARE_OF_DISK = 0.5
# Some models declare outputs with another rank than they compute. A run that reuses the results of
# the previous one is then refused; a run into new results is not.
_WRONG_RANK = "Invalid rank for output"
_logger = logging.getLogger(__name__)


class ToOpen(NamedTuple):
    """Arguments for creating a session.

    Attributes:
        model: The file, or its content without unused weights.
        without: Optimizers that would take minutes for this model without a gain.
        optimized_path: Where the optimized model is written, unless the caller sets another path.
    """

    model: str | bytes
    without: Sequence[str] = ()
    optimized_path: str = ""


def to_open(path: str) -> ToOpen:
    """Return the file itself, unless it has very many weights.

    Args:
        path: The model file.
    """
    try:
        if not _SMALLEST_FILE < os.path.getsize(path) < _LARGEST_FILE:
            return ToOpen(path)
        model = onnx.ModelProto.FromString(Path(path).read_bytes())
    except (OSError, DecodeError):
        return ToOpen(path)  # the engine reports what is wrong with it
    if len(model.graph.initializer) < _MANY:
        return ToOpen(path)
    return ToOpen(_without_unread_weights(model) or path, _SLOW_WITH_MANY, _WRITES_NOTHING)


def _without_unread_weights(model: onnx.ModelProto) -> bytes | None:
    """Return the content without unused weights; None if they are few, or weights are external."""
    graph = model.graph
    read = {name for node in nodes_within(graph.node) for name in node.input}
    read.update(value.name for value in (*graph.input, *graph.output))
    for node in nodes_within(graph.node):
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                read.update(value.name for value in body.output)
    weights = [tensor for tensor in graph.initializer if tensor.name in read]
    is_beside = any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in weights)
    if is_beside or len(graph.initializer) - len(weights) < _MANY:
        return None  # without a file there is no folder to find external data in
    del graph.initializer[:]
    graph.initializer.extend(weights)
    content: bytes = model.SerializeToString()
    return content


class OnnxRuntimeEngine:
    """Opens models with the CPU execution provider."""

    def info(self, options: SessionOptions) -> EngineInfo:
        """Returns the version and the CPU.

        Raises:
            ValueError: If an option is unknown.
        """
        _settings(options)  # errors in them are not the model's fault
        cpu = read_cpu()
        return EngineInfo(
            name="onnxruntime",
            version=ort.__version__,
            device=cpu.device,
            isa=cpu.isa,
            threads=options.threads,
            options=options.engine_options,
        )

    def open(self, path: str, options: SessionOptions) -> OnnxRuntimeSession:
        """Opens the model file."""
        return OnnxRuntimeSession(path, options)


class OnnxRuntimeSession:
    """A model open in ONNX Runtime.

    Args:
        path: The model file; external data is found beside it.
        options: How to open it. Engine options are ONNX Runtime's session configuration entries
            (``session.…``), ``graph_optimization_level`` and ``enable_mem_pattern``.
    """

    def __init__(self, path: str, options: SessionOptions) -> None:
        self._path = path
        self._options = options
        settings = _settings(options)
        if options.optimized_model_path is not None:
            settings.optimized_model_filepath = options.optimized_model_path
        self._session: Any = _open(path, settings)
        self._clock = RunClock(on_one_thread=options.threads == 1)
        self._feeds: dict[str, Any] | None = None
        self._binding: Any = None

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The model's inputs."""
        return tuple(
            InputSpec(value.name, _dtype(value.type), tuple(value.shape))
            for value in self._session.get_inputs()
        )

    def set_feeds(self, feeds: Feeds) -> None:
        """Binds the inputs for timed runs."""
        self._feeds = {
            name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()
        }
        self._binding = self._bind(self._session)

    def run(self, feeds: Feeds) -> Outputs:
        """Runs once and returns the outputs."""
        names = [value.name for value in self._session.get_outputs()]
        return dict(zip(names, self._session.run(names, dict(feeds)), strict=True))

    def time_runs(self, runs: int) -> list[float]:
        """Runs back to back on the bound feeds.

        Inputs and outputs are bound, so that neither is converted from or to numpy: a run is then
        one call into the engine, and Python adds about a microsecond to it.

        With one thread, a sample is the CPU time of that thread: the whole run executes on it, and
        the time slices of other processes on its core don't count. On two shared cores this reduced
        the spread of neighbouring runs from 6 to 8 % to between 2 and 6 %.
        """
        if self._binding is None:
            raise ValueError("the model was given no feeds to run on")
        return _samples_ms(self._session, self._binding, runs, self._clock)

    def layer_times(self, runs: int) -> list[LayerTime]:
        """Typical time per node from the engine's own profile, taken in a separate session.

        ONNX Runtime writes the optimized model with all its weights, or not at all. If the disk has
        no room for them, layers have only names. For a BERT, 76 % instead of 98 % of the time is
        then attributed to nodes.
        """
        if self._feeds is None:
            raise ValueError("the model was given no feeds to run on")
        with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
            optimized = Path(folder) / "optimized.onnx"
            settings = _settings(self._options)
            settings.enable_profiling = True
            settings.profile_file_prefix = str(Path(folder) / "profile")
            if _has_room(folder, self._path):
                settings.optimized_model_filepath = str(optimized)
                # One protobuf message can't hold the weights of every model.
                settings.add_session_config_entry(_WEIGHTS_FILE_OPTION, "weights.bin")
            settings.log_severity_level = _ERROR  # it warns that the graph is for this machine only
            session = _open(self._path, settings)
            _samples_ms(session, self._bind(session), _PROFILE_WARMUP_RUNS + runs, self._clock)
            text = Path(session.end_profiling()).read_text(encoding="utf-8", errors="replace")
            wired = optimized.exists()
            graph = onnx.load(optimized, load_external_data=False) if wired else None
        return layer_times_of(text, _PROFILE_WARMUP_RUNS, graph)

    def close(self) -> None:
        """Drops the session; ONNX Runtime frees it with its last reference."""
        self._binding = None
        self._feeds = None
        self._session = None

    def _bind(self, session: Any) -> Any:
        assert self._feeds is not None
        binding = session.io_binding()
        for name, value in self._feeds.items():
            binding.bind_ortvalue_input(name, value)
        _bind_outputs(session, binding)
        return binding


def _has_room(folder: str, path: str) -> bool:
    """Whether a copy of a model fits into a folder, with its external data."""
    needed = model_bytes(Path(path))
    if needed <= shutil.disk_usage(folder).free * _SHARE_OF_DISK:
        return True
    _logger.warning(
        "%s has no room for the optimized model, %d MB: its layers are known only by their names",
        folder, needed // 1_000_000,
    )  # fmt: skip
    return False


def _bind_outputs(session: Any, binding: Any) -> None:
    binding.clear_binding_outputs()
    for output in session.get_outputs():
        binding.bind_output(output.name)


def _samples_ms(session: Any, binding: Any, runs: int, clock: RunClock) -> list[float]:
    run = functools.partial(session.run_with_iobinding, binding)
    try:
        return clock.samples_ms(run, runs)
    except RuntimeError as error:
        if _WRONG_RANK not in str(error):
            raise
    samples: list[float] = []
    for _ in range(runs):
        _bind_outputs(session, binding)
        samples += clock.samples_ms(run, 1)
    return samples


def _open(path: str, settings: Any) -> Any:
    model, without, optimized_path = to_open(path)
    if optimized_path and not settings.optimized_model_filepath:
        settings.optimized_model_filepath = optimized_path
    return ort.InferenceSession(
        model, settings, providers=["CPUExecutionProvider"], disabled_optimizers=[*without]
    )


def _settings(options: SessionOptions) -> Any:
    settings = ort.SessionOptions()
    settings.log_severity_level = _WARNING
    settings.inter_op_num_threads = 1
    if options.threads is not None:
        settings.intra_op_num_threads = options.threads
    if options.threads == 1:
        # Without a second thread there is nothing to spin for.
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        settings.add_session_config_entry("session.inter_op.allow_spinning", "0")
    else:
        # Threads that keep spinning after a run would take cores from the next model in turn. On
        # two cores this gave 10 to 14 ms instead of mostly 5 to 7 ms, and comparisons of a model
        # with itself that found differences in 4 of 15.
        settings.add_session_config_entry("session.force_spinning_stop", "1")
    for key, value in options.engine_options.items():
        if key == _LEVEL_OPTION:
            if value not in _LEVELS:
                raise ValueError(f"{key} is '{value}'; choices: {', '.join(_LEVELS)}")
            settings.graph_optimization_level = _LEVELS[value]
        elif key == _PATTERN_OPTION:
            settings.enable_mem_pattern = value != "0"
        elif "." in key:
            settings.add_session_config_entry(key, value)
        else:
            raise ValueError(
                f"unknown option '{key}' of ONNX Runtime, which runs on the CPU; known are "
                f"{_LEVEL_OPTION}, "
                f"{_PATTERN_OPTION} and its session configuration entries, such as "
                "session.set_denormal_as_zero"
            )
    return settings


def _dtype(onnx_type: str) -> str:
    element = onnx_type.removeprefix("tensor(").removesuffix(")")
    return _DTYPES.get(element, element)


def layer_times_of(
    text: str, skip_runs: int = 0, optimized: onnx.ModelProto | None = None
) -> list[LayerTime]:
    """Sums the kernel times of each node per run, and returns the mean of the faster runs.

    The profile, a Chrome trace with one event per executed kernel, has times and types; the
    optimized model has the wiring. They are joined by the names of nodes, and by the order of nodes
    that share a name.

    Time slices of other processes last milliseconds, longer than most kernels. On two shared cores,
    means of 20 runs were 0.62 ms for one and 0.01 ms for the other of two equal convolutions.

    Args:
        text: Contents of the profile file.
        skip_runs: First runs of the model that do not count.
        optimized: The graph that ran, used for its wiring; weights are ignored.

    Returns:
        One entry per node of the main graph, in order of first execution.

    Raises:
        ValueError: The profile holds no run beyond the skipped ones.
    """
    events: list[dict[str, Any]] = json.loads(text)
    starts = sorted(event["ts"] for event in events if event.get("name") == "model_run")
    runs = len(starts) - skip_runs
    if runs <= 0:
        raise ValueError("the engine's profile holds no run of the model")
    kernels = (event for event in events if str(event.get("name", "")).endswith(_KERNEL_SUFFIX))
    details: dict[tuple[str, str, str], dict[str, Any]] = {}
    spent_us: dict[tuple[str, str, str], list[float]] = {}
    for event in _outermost(sorted(kernels, key=lambda event: (event["ts"], -event["dur"]))):
        run = bisect.bisect_right(starts, event["ts"]) - 1 - skip_runs
        if run >= 0:
            told = event.get("args", {})
            name = str(event["name"]).removesuffix(_KERNEL_SUFFIX)
            key = (name, str(told.get("op_name", "")), str(told.get("node_index", "")))
            details.setdefault(key, told)
            spent_us.setdefault(key, [0.0] * runs)[run] += float(event["dur"])
    nodes: defaultdict[tuple[str, str], list[onnx.NodeProto]] = defaultdict(list)
    for node in optimized.graph.node if optimized is not None else ():
        nodes[node.name, node.op_type].append(node)
    layers = []
    for (name, op_type, index), by_run_us in spent_us.items():
        # An unnamed node is called after its op and its number.
        is_unnamed = name == f"{op_type}_{index}"
        waiting = nodes[name, op_type] or (nodes["", op_type] if is_unnamed else [])
        node = waiting.pop(0) if waiting else onnx.NodeProto()
        quicker = sorted(by_run_us)[: (runs + 1) // 2]
        layers.append(
            LayerTime(
                name,
                op_type,
                sum(quicker) / len(quicker) / 1000.0,
                str(details[name, op_type, index].get("provider", "")),
                _precision(details[name, op_type, index]),
                origins=(node.name,) if node.name else (),
                inputs=tuple(tensor for tensor in node.input if tensor),
                outputs=tuple(tensor for tensor in node.output if tensor),
            )
        )
    return layers


def _outermost(kernels: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield kernels of the main graph: the time of a body is part of its op's time."""
    busy_until = 0.0
    for event in kernels:
        if event["ts"] < busy_until:
            continue
        if event.get("args", {}).get("op_name") in _WITH_BODIES:
            busy_until = float(event["ts"]) + float(event["dur"])
        yield event


def _precision(details: dict[str, Any]) -> str:
    """Return the type of the first input that is not a condition, else of the output."""
    both = (details.get("input_type_shape"), details.get("output_type_shape"))
    types = (name for described in both for entry in described or () for name in entry)
    return next((_PROFILE_TYPES.get(name, name) for name in types if name != "bool"), "")
