"""trtexec as an engine: runs in the worker, and starts the program for every request."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from qdqtune.engines import _worker_environment as worker_environment
from qdqtune.engines._hardware import find_gpus
from qdqtune.engines._interface import InputSpec, SessionOptions
from qdqtune.engines._signature import Signature, read_signature
from qdqtune.engines.tensorrt._files import (
    LAYERS,
    NO_CACHE,
    PLAN,
    PlanCache,
    default_path,
    library_stamp,
    plan_key,
    plans_of,
)
from qdqtune.engines.tensorrt._layer_info import Layer, parse_layer_info, parse_profile
from qdqtune.engines.tensorrt._layer_naming import layer_times_of
from qdqtune.engines.tensorrt._settings import Shapes, widened
from qdqtune.engines.tensorrt._trtexec_arguments import (
    PLUGIN_FLAGS,
    Ranges,
    TrtexecSettings,
    build_arguments,
    build_command,
    feed_arguments,
    joined,
    load_arguments,
    output_arguments,
    path_option,
    profile_arguments,
    rebuild_arguments,
    time_arguments,
    timing_cache_arguments,
    trtexec_settings,
)
from qdqtune.engines.tensorrt._trtexec_program import (
    PROGRAM,
    Program,
    TrtexecError,
    Version,
    find_program,
    finds_no_kernel,
    gpu_median_ms,
    name_of,
    version_of,
)
from qdqtune.graph._atomic_files import TemporaryFolder, writing
from qdqtune.records._errors import OutputError
from qdqtune.records._measurement import EngineInfo, LayerTime
from qdqtune.records._untrusted_files import TEXT_BYTES, parse_json, read_bytes

if TYPE_CHECKING:
    from qdqtune.engines._interface import Feeds, Outputs


# The parser converts types that TensorRT doesn't have to these; it has int64 since version 10.
_NARROWED = {"float64": np.dtype(np.float32)}
_NARROWED_BEFORE_10 = {**_NARROWED, "int64": np.dtype(np.int32)}
_FIRST_WITH_INT64 = Version(10)

# Maximum deviation of single times from the summary at which they are trusted.
_NEAR = 0.02
_OUTPUT = re.compile(
    r'\{\s*"name"\s*:\s*"(?P<name>[^\n]*?)"\s*,\s*"dimensions"\s*:\s*"(?P<dims>[^"]*)"'
    r'\s*,\s*"values"\s*:\s*\[(?P<values>[^\]]*)\]'
)
# Six digits take about ten characters: 100 million values.
_OUTPUTS_BYTES = 1 << 30
_logger = logging.getLogger(__name__)
UNKNOWN_GPU, UNKNOWN_ISA = "unknown GPU", "unknown"
# These separate the files in arguments that list files.
_SEPARATORS = frozenset(",:'")
_WITHOUT_SEPARATORS = Path("/tmp")  # noqa: S108  (files there get unique names)


def write_feeds(feeds: Feeds, folder: Path, name: str, version: Version) -> dict[str, Path]:
    """Writes the bytes of each input to a file of its own.

    Args:
        feeds: The inputs.
        folder: The folder for the files.
        name: Prefix of the file names.
        version: The version of TensorRT.

    Returns:
        Files by input.
    """
    narrowed = _NARROWED if version >= _FIRST_WITH_INT64 else _NARROWED_BEFORE_10
    files = {}
    for number, (key, array) in enumerate(feeds.items()):
        path = folder / f"{name}{number}.bin"
        dtype = narrowed.get(array.dtype.name, array.dtype)
        with writing(path):
            path.write_bytes(array.astype(dtype).tobytes())
        files[key] = path
    return files


def last_times_ms(text: str, runs: int, median_ms: float) -> list[float] | None:
    """Return the GPU compute time of each of the last runs, from the file of `--exportTimes`.

    Old versions also write the runs before the timed ones, so only the last ones count.

    Args:
        text: Contents of the file.
        runs: Number of runs.
        median_ms: The median in trtexec's own summary.

    Returns:
        None if it is not such a file, has fewer runs, or contradicts the summary.
    """
    try:
        entries = parse_json(text, "The file of times")
        times = [float(entry["computeMs"]) for entry in entries][-runs:]
    except (ValueError, KeyError, TypeError):
        return None
    if len(times) < runs or not abs(statistics.median(times) - median_ms) <= _NEAR * median_ms:
        return None
    return times


def parse_outputs(text: str, dtypes: Mapping[str, str]) -> Outputs:
    """Reads the file of `--exportOutput`.

    Args:
        text: Contents of the file; names are not escaped, so it may be invalid JSON.
        dtypes: Names of outputs and of their types; the result is in this order.

    Raises:
        ValueError: If an output is missing or broken.
    """
    found = {match["name"]: match for match in _OUTPUT.finditer(text)}
    outputs: Outputs = {}
    for name, dtype in dtypes.items():
        if name not in found:
            raise ValueError(f"trtexec wrote no output '{name}', but {sorted(found)}")
        outputs[name] = _array(found[name], dtype)
    return outputs


def _array(match: re.Match[str], dtype_name: str) -> Any:
    dims = match["dims"].strip()
    shape = () if dims in ("", "scalar") else tuple(int(size) for size in dims.split("x"))
    words = match["values"].replace(",", " ").split()
    dtype = np.dtype(getattr(ml_dtypes, dtype_name, dtype_name))
    number, widest = (int, np.int64) if dtype.kind in "iub" else (float, np.float64)
    values: Any = np.fromiter(map(number, words), widest).astype(dtype)
    if values.size != int(np.prod(shape)):
        raise ValueError(f"trtexec wrote {values.size} values of the output '{match['name']}'")
    return values.reshape(shape)


@dataclass(frozen=True)
class Plan:
    """A built engine.

    Attributes:
        path: The engine.
        layers: File with its layers; None if they are not known.
        built_from: The arguments that it was built with.
        ranges: The shapes that inputs with open dims may have.
    """

    path: Path
    layers: Path | None
    built_from: tuple[str, ...]
    ranges: Ranges

    def takes(self, shapes: Shapes) -> bool:
        """Whether it runs on inputs with these shapes."""
        return all(range_.has(shapes[name]) for name, range_ in self.ranges.items())


@dataclass(frozen=True)
class ModelFile:
    """A model, and how it is built and run.

    Attributes:
        path: The model file.
        signature: Its inputs and outputs.
        program: The trtexec that builds and runs it.
        usage: How to call it.
        device: The GPU, as far as it is known.
        cache: Engines that were built before.
        room: The folder for files that are removed with the session.
        log: File for trtexec's output; None to drop it.
    """

    path: str
    signature: Signature
    program: Program
    usage: TrtexecSettings
    device: str
    cache: PlanCache
    room: TemporaryFolder
    log: Path | None

    @property
    def name(self) -> str:
        """The file's name, for messages."""
        return os.path.basename(self.path)

    def call(self, what: str, command: Sequence[str]) -> str:
        """Calls trtexec; see `Program.call`.

        Args:
            what: The action, for messages.
            command: The arguments.
        """
        try:
            return self.program.call(command, self.usage.given, self.log)
        except TrtexecError as error:
            raise TrtexecError(f"trtexec can't {what} {self.name}: {error}", error.text) from None

    def build(self, ranges: Ranges) -> Plan:
        """Builds an engine for inputs with these shape ranges, or returns a cached one.

        Raises:
            TrtexecError: If it can't be built; the message says why.
            ValueError: If this version lacks a requested feature.
            ModelError: If a file of the model is missing.
        """
        built_from = build_arguments(self.usage, self.signature.low_types, ranges)
        key = plan_key(self.path, self._parts(built_from))
        path, layers = (self.room.path / f"{key}{ending}" for ending in (PLAN, LAYERS))
        command = build_command(self.usage, self.path, path, layers, built_from)
        if not self._was_built(key, path, layers, command):
            path.unlink(missing_ok=True)
            self._build(command)
            if not _is_filled(path):
                raise TrtexecError(f"trtexec says that it built {self.name}, but wrote no engine")
            # A full disk means another build later; it must not fail this one.
            with contextlib.suppress(OSError, OutputError):
                self.cache.keep(key, path)
                if _is_filled(layers):
                    self.cache.keep(key, layers, LAYERS)
        told = layers if _is_filled(layers) else None
        return Plan(path, told, tuple(built_from), ranges)

    def _was_built(self, key: str, path: Path, layers: Path, command: Sequence[str]) -> bool:
        if not self.cache.take(key, path):
            return False
        asks_layers = "--exportLayerInfo" in {name_of(each) for each in command}
        knows_it = "--exportLayerInfo" not in self.program.refused
        return self.cache.take(key, layers, LAYERS) or not (asks_layers and knows_it)

    def _build(self, command: Sequence[str]) -> None:
        """Build, if need be without the timing cache: in 8.6, an earlier one could fail a build."""
        program, cache = self.program, timing_cache_arguments(self.usage)
        without = [argument for argument in command if argument not in cache]
        if program.trusts_cache is False:
            command = without
        is_used = len(without) < len(command)
        knows_kernels = is_used and _is_filled(Path(self.usage.settings.timing_cache))
        try:
            self.call("build", command)
        except TrtexecError as error:
            is_doubtful = knows_kernels and finds_no_kernel(error.text)
            if program.trusts_cache or not is_doubtful:
                raise
            try:
                self.call("build", without)
            except TrtexecError:
                program.trusts_cache = True
                raise error from None
            program.trusts_cache = False

    def _parts(self, built_from: Sequence[str]) -> list[str]:
        given = (argument.partition("=") for argument in self.usage.given)
        libraries = [library for name, _, library in given if name in PLUGIN_FLAGS]
        stamps = map(library_stamp, (*self.usage.settings.plugins, *libraries))
        return [PROGRAM, str(self.usage.version), self.device, *built_from, *stamps]


def _is_filled(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


class TrtexecSession:
    """A model open in trtexec. It is built when the shapes of its inputs are known.

    Args:
        model: The model.
        layers_path: Where to write its layer information; None to write nothing.
    """

    def __init__(self, model: ModelFile, layers_path: str | None) -> None:
        self._model = model
        self._signature = model.signature
        self._usage = model.usage
        self._program = model.program
        self._layers_path = layers_path
        self._timed: Plan | None = None
        self._ran: Plan | None = None
        self._fed: Mapping[str, Path] | None = None
        self._shapes: Shapes = {}
        requested = self._usage.settings.shapes
        requested.check_names(self._signature.dims)
        if all(name in requested.usual for name in self._signature.open_inputs):
            usual = {name: requested.usual[name] for name in self._signature.open_inputs}
            self._timed = self._plan_for(usual, None)

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The model's inputs."""
        return self._signature.inputs

    def set_feeds(self, feeds: Feeds) -> None:
        """Writes the inputs of timed runs; builds if there is no engine for their shapes."""
        self._signature.check_feeds(feeds)
        self._shapes = self._open_shapes(feeds)
        self._timed = self._plan_for(self._shapes, self._timed)
        self._fed = write_feeds(feeds, self._model.room.path, "timed", self._usage.version)

    def run(self, feeds: Feeds) -> Outputs:
        """Runs once and returns the outputs, with the six digits that trtexec writes."""
        self._signature.check_feeds(feeds)
        shapes = self._open_shapes(feeds)
        plan = self._timed
        if plan is None or not plan.takes(shapes):
            plan = self._ran = self._plan_for(shapes, self._ran)
        inputs = write_feeds(feeds, self._model.room.path, "run", self._usage.version)
        file = self._fresh("outputs.json")
        self._call("run", plan, [*output_arguments(file), *feed_arguments(inputs, shapes)])
        refused = self._program.refused & {"--exportOutput", *(["--loadInputs"] if inputs else [])}
        if refused or not file.exists():
            why = f"it doesn't know {min(refused)}" if refused else "it wrote no file"
            raise TrtexecError(f"this trtexec can't report the outputs of a model: {why}")
        return parse_outputs(_read(file, _OUTPUTS_BYTES), self._signature.outputs)

    def time_runs(self, runs: int) -> list[float]:
        """Times runs on the stored feeds in one process: GPU compute time, without transfers.

        The times of single runs are trusted if they agree with trtexec's own summary. Otherwise
        every sample is the median from the summary.
        """
        plan, inputs = self._ready()
        file = self._fresh("times.json")
        timing = time_arguments(self._usage, runs, file)
        text = self._call("time", plan, [*timing, *feed_arguments(inputs, self._shapes)])
        median = gpu_median_ms(text)
        if median is None:
            raise TrtexecError(f"trtexec printed no GPU compute time of {self._model.name}")
        single = last_times_ms(_read(file), runs, median) if file.exists() else None
        return single or [median] * runs

    def layer_times(self, runs: int) -> list[LayerTime]:
        """Typical time per layer, from a profile that trtexec takes after the timed runs."""
        if self._usage.is_safe:
            raise TrtexecError("trtexec reports no layers with --safe")
        plan, inputs = self._ready()
        profile, layers = self._fresh("profile.json"), self._fresh("layers.json")
        profiling = profile_arguments(self._usage, runs, profile, layers)
        self._call("profile", plan, [*profiling, *feed_arguments(inputs, self._shapes)])
        if not profile.exists():
            refused = "--exportProfile" in self._program.refused
            why = "it doesn't know --exportProfile" if refused else "it wrote no file"
            raise TrtexecError(f"this trtexec can't report the times of layers: {why}")
        info = _first_read(layers, plan.layers)
        return layer_times_of(self._model.path, info, parse_profile(_read(profile)))

    def close(self) -> None:
        """Removes the session's files."""
        self._model.room.cleanup()

    def _open_shapes(self, feeds: Feeds) -> dict[str, tuple[int, ...]]:
        return {name: tuple(feeds[name].shape) for name in self._signature.open_inputs}

    def _plan_for(self, shapes: Shapes, earlier: Plan | None) -> Plan:
        if earlier is not None and earlier.takes(shapes):
            return earlier
        ranges = widened(self._usage.settings.shapes, shapes, earlier.ranges if earlier else {})
        plan = self._model.build(ranges)
        if self._layers_path is not None and plan.layers is not None:
            with writing(Path(self._layers_path)):
                shutil.copyfile(plan.layers, self._layers_path)
        return plan

    def _ready(self) -> tuple[Plan, Mapping[str, Path]]:
        if self._timed is None or self._fed is None:
            raise ValueError("the model was given no feeds to run on")
        return self._timed, self._fed

    def _call(self, what: str, plan: Plan, ours: Sequence[str]) -> str:
        """Runs the built engine, or one that trtexec builds again if it can't load engines.

        Until it has loaded one, any failure may mean that it can't.
        """
        model, program, usage = self._model, self._program, self._usage
        anew = joined(ours, rebuild_arguments(usage, model.path, plan.built_from))
        if program.loads is False:
            return model.call(what, anew)
        try:
            text = model.call(what, joined(ours, load_arguments(usage, plan.path)))
        except TrtexecError as error:
            if program.loads:
                raise
            try:
                text = model.call(what, anew)
            except TrtexecError:
                raise error from None
            program.loads = False
            return text
        program.loads = True
        return text

    def _fresh(self, name: str) -> Path:
        path = self._model.room.path / name
        path.unlink(missing_ok=True)
        return path


def _first_read(*paths: Path | None) -> tuple[Layer, ...]:
    """Return the first list of layers that can be parsed; empty if there is none.

    Raises:
        TrtexecError: If all lists are broken: half a list would be misleading.
    """
    broken = ""
    for path in paths:
        if path is not None and path.exists():
            try:
                return parse_layer_info(_read(path))
            except ValueError as error:
                broken = str(error)
    if broken:
        raise TrtexecError(f"what trtexec wrote about layers can't be read: {broken}")
    return ()


def _read(path: Path, most: int = TEXT_BYTES) -> str:
    return read_bytes(path, most).decode(errors="replace")


class TrtexecEngine:
    """Opens models with trtexec."""

    def __init__(self) -> None:
        self._programs: dict[str, Program] = {}
        self._scratch = worker_environment.scratch_folder()

    def info(self, options: SessionOptions) -> EngineInfo:
        """Returns the version and the GPU."""
        program = self._program(options)
        usage = trtexec_settings(options, program.version)
        for note in usage.notes:
            _logger.warning("%s", note)
        device, isa = device_of(usage.settings.device)
        return EngineInfo(
            name=PROGRAM,
            version=str(program.version),
            device=device,
            isa=isa,
            options=usage.info_options,
            float_type=usage.float_type(isa),
        )

    def open(self, path: str, options: SessionOptions) -> TrtexecSession:
        """Opens the model file; builds it if the shapes of all inputs are known."""
        program = self._program(options)
        usage = trtexec_settings(options, program.version)
        device, _ = device_of(usage.settings.device)
        settings = replace(usage.settings, timing_cache=_timing_cache(usage, device))
        usage = replace(usage, settings=settings)
        signature = _signature(path)
        room = TemporaryFolder(self._session_place())
        log = worker_environment.log_of(path, PROGRAM)
        cache = plans_of(settings.plan_cache)
        model = ModelFile(path, signature, program, usage, device, cache, room, log)
        try:
            return TrtexecSession(model, options.optimized_model_path)
        except BaseException:
            room.cleanup()
            raise

    def _program(self, options: SessionOptions) -> Program:
        path = find_program(path_option(options))
        version = version_of(path)
        known = self._programs.get(path)
        if known is None or known.version != version:
            known = self._programs[path] = Program(path, version)
        return known

    def _session_place(self) -> Path:
        usable = _SEPARATORS.isdisjoint(str(self._scratch))
        return self._scratch if usable else _WITHOUT_SEPARATORS


def device_of(number: int) -> tuple[str, str]:
    """Return the name and instruction set of a GPU from the driver, without building a model."""
    gpus = find_gpus().gpus
    if number >= len(gpus):
        return UNKNOWN_GPU, UNKNOWN_ISA
    gpu = gpus[number]
    return gpu.name, f"sm{gpu.compute_capability.replace('.', '')}"


def _signature(path: str) -> Signature:
    try:
        return read_signature(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{os.path.basename(path)} can't be read: {error}") from None


def _timing_cache(usage: TrtexecSettings, device: str) -> str:
    """Return the user's file, or the default one for this version and GPU."""
    said = usage.settings.timing_cache
    if said == NO_CACHE or (not said and device == UNKNOWN_GPU):
        return ""
    path = os.path.abspath(said or default_path(PROGRAM, str(usage.version), device))
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    return path
