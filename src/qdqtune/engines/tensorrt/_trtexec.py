"""trtexec as an engine: runs in the worker, and starts the program for every request."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from qdqtune.engines import _worker_environment as worker_environment
from qdqtune.engines._hardware import find_gpus
from qdqtune.engines._interface import InputSpec, SessionOptions
from qdqtune.engines._signature import Signature, read_signature
from qdqtune.engines.tensorrt._caches import NO_CACHE, PlanCache, default_path
from qdqtune.engines.tensorrt._layer_info import parse_layer_info
from qdqtune.engines.tensorrt._layers import Layer
from qdqtune.engines.tensorrt._profile import layer_times_of, parse_profile
from qdqtune.engines.tensorrt._settings import Shapes, widened
from qdqtune.engines.tensorrt._trtexec_command import (
    feed_arguments,
    load_arguments,
    output_arguments,
    profile_arguments,
    rebuild_arguments,
    time_arguments,
)
from qdqtune.engines.tensorrt._trtexec_plans import ModelFile, Plan, PlanBuilder
from qdqtune.engines.tensorrt._trtexec_program import Program, TrtexecError, gpu_median_ms
from qdqtune.engines.tensorrt._trtexec_settings import (
    TrtexecSettings,
    path_option,
    trtexec_settings,
)
from qdqtune.engines.tensorrt._trtexec_version import (
    PROGRAM,
    Version,
    find_program,
    joined,
    version_of,
)
from qdqtune.graph._atomic_files import TemporaryFolder, writing
from qdqtune.records._measurement import EngineInfo, LayerTime
from qdqtune.records._untrusted_files import TEXT_BYTES, parse_json, read_bytes

if TYPE_CHECKING:
    from qdqtune.engines._interface import Feeds, Outputs


# The parser makes these of types that TensorRT doesn't have; int64 is one since version 10.
_NARROWED = {"float64": np.dtype(np.float32)}
_NARROWED_BEFORE_10 = {**_NARROWED, "int64": np.dtype(np.int32)}
_FIRST_WITH_INT64 = Version(10)

# How far single times may be from the summary before they are not trusted.
_NEAR = 0.02
_OUTPUT = re.compile(
    r'\{\s*"name"\s*:\s*"(?P<name>[^\n]*?)"\s*,\s*"dimensions"\s*:\s*"(?P<dims>[^"]*)"'
    r'\s*,\s*"values"\s*:\s*\[(?P<values>[^\]]*)\]'
)
# Six digits take about ten characters: 100 million values.
_OUTPUTS_BYTES = 1 << 30
_logger = logging.getLogger(__name__)
UNKNOWN_GPU, UNKNOWN_ISA = "unknown GPU", "unknown"
# In arguments that list files, these stand between the files.
_SEPARATORS = frozenset(",:'")
_WITHOUT_SEPARATORS = Path("/tmp")  # noqa: S108  (what is made there has a name of its own)


def write_feeds(feeds: Feeds, folder: Path, name: str, version: Version) -> dict[str, Path]:
    """Writes the bytes of each input to a file of its own.

    Args:
        feeds: The inputs.
        folder: Where the files go.
        name: What their names begin with.
        version: Of TensorRT.

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
    """The time that the GPU computed in each of the last runs, from the file of `--exportTimes`.

    Old versions write the runs before the timed ones, too: that is why the last ones count.

    Args:
        text: The file.
        runs: How many.
        median_ms: What trtexec itself says about them.

    Returns:
        None if it is no such file, has fewer runs, or says something else than the summary.
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
        text: The file; names are written as they are, so it need not be JSON.
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
    if dtype.kind in "iub":
        values = np.array([int(word) for word in words], dtype=object).astype(dtype)
    else:
        values = np.array([float(word) for word in words]).astype(dtype)
    if values.size != int(np.prod(shape)):
        raise ValueError(f"trtexec wrote {values.size} values of the output '{match['name']}'")
    return values.reshape(shape)


class TrtexecSession:
    """A model open in trtexec. It is built when the shapes of its inputs are known.

    Args:
        model: The model.
        builder: What builds it.
        layers_path: Where to write what is known of its layers; None for nowhere.
    """

    def __init__(self, model: ModelFile, builder: PlanBuilder, layers_path: str | None) -> None:
        self._model = model
        self._signature = model.signature
        self._usage = model.usage
        self._program = model.program
        self._builder = builder
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
        """What the model wants."""
        return self._signature.inputs

    def set_feeds(self, feeds: Feeds) -> None:
        """Writes the inputs of timed runs; builds if there is no engine for their shapes."""
        self._signature.check_feeds(feeds)
        self._shapes = self._open_shapes(feeds)
        self._timed = self._plan_for(self._shapes, self._timed)
        self._fed = write_feeds(feeds, self._model.folder, "timed", self._usage.version)

    def run(self, feeds: Feeds) -> Outputs:
        """Runs once and returns the outputs, in the six digits that trtexec writes."""
        self._signature.check_feeds(feeds)
        shapes = self._open_shapes(feeds)
        plan = self._timed
        if plan is None or not plan.takes(shapes):
            plan = self._ran = self._plan_for(shapes, self._ran)
        inputs = write_feeds(feeds, self._model.folder, "run", self._usage.version)
        file = self._fresh("outputs.json")
        self._call("run", plan, [*output_arguments(file), *feed_arguments(inputs, shapes)])
        refused = self._program.refused & {"--exportOutput", *(["--loadInputs"] if inputs else [])}
        if refused or not file.exists():
            why = f"it doesn't know {min(refused)}" if refused else "it wrote no file"
            raise TrtexecError(f"this trtexec can't tell the outputs of a model: {why}")
        return parse_outputs(_read(file, _OUTPUTS_BYTES), self._signature.outputs)

    def time_runs(self, runs: int) -> list[float]:
        """Times runs on the kept feeds, in one process; what the GPU computes, no transfers.

        The times of single runs are trusted if they agree with trtexec's own summary. Else every
        sample is the median that the summary tells.
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
            raise TrtexecError("trtexec tells nothing of layers with --safe")
        plan, inputs = self._ready()
        profile, layers = self._fresh("profile.json"), self._fresh("layers.json")
        profiling = profile_arguments(self._usage, runs, profile, layers)
        self._call("profile", plan, [*profiling, *feed_arguments(inputs, self._shapes)])
        if not profile.exists():
            refused = "--exportProfile" in self._program.refused
            why = "it doesn't know --exportProfile" if refused else "it wrote no file"
            raise TrtexecError(f"this trtexec can't tell the times of layers: {why}")
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
        plan = self._builder.build(ranges)
        if self._layers_path is not None and plan.layers is not None:
            with writing(Path(self._layers_path)):
                shutil.copyfile(plan.layers, self._layers_path)
        return plan

    def _ready(self) -> tuple[Plan, Mapping[str, Path]]:
        if self._timed is None or self._fed is None:
            raise ValueError("the model was given no feeds to run on")
        return self._timed, self._fed

    def _call(self, what: str, plan: Plan, ours: Sequence[str]) -> str:
        """Runs an engine: the built one or, if trtexec loads none, one that it builds anew.

        As long as it has loaded none, any failure may mean that it can't.
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
        path = self._model.folder / name
        path.unlink(missing_ok=True)
        return path


def _first_read(*paths: Path | None) -> tuple[Layer, ...]:
    """The first list of layers that can be read; empty if there is none.

    Raises:
        TrtexecError: If there are only broken ones: half a list tells wrong things.
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
        """Says which version runs on which GPU."""
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
        usage = dataclasses.replace(usage, timing_cache=_timing_cache(usage, device))
        signature = _signature(path)
        room = TemporaryFolder(self._session_place())
        log = worker_environment.log_of(path, PROGRAM)
        model = ModelFile(path, signature, program, usage, device, room, log)
        cache = PlanCache(usage.settings.plan_cache or self._scratch / "plans")
        try:
            return TrtexecSession(model, PlanBuilder(model, cache), options.optimized_model_path)
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
    """Name and instruction set of a GPU, as the driver tells them: no model has to be built."""
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
    """The user's file, or the usual one of this version and GPU."""
    said = usage.settings.timing_cache
    if said == NO_CACHE or (not said and device == UNKNOWN_GPU):
        return ""
    path = os.path.abspath(said or default_path(PROGRAM, str(usage.version), device))
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    return path
