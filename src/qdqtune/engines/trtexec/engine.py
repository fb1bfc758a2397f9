"""trtexec as an engine. Lives in the worker, and starts the program as its child."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from pathlib import Path

from qdqtune.engines import worker_environment
from qdqtune.engines.gpu import find_gpus
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.tensorrt.plan_cache import PlanCache
from qdqtune.engines.tensorrt.signature import Signature, read_signature
from qdqtune.engines.tensorrt.timing_cache import NO_CACHE, default_path
from qdqtune.engines.trtexec.plans import ModelFile, PlanBuilder
from qdqtune.engines.trtexec.program import Program
from qdqtune.engines.trtexec.session import TrtexecSession
from qdqtune.engines.trtexec.settings import TrtexecSettings, path_option, trtexec_settings
from qdqtune.engines.trtexec.version import PROGRAM, find_program, version_of
from qdqtune.graph.temporary_files import TemporaryFolder
from qdqtune.records.measurement import EngineInfo

_logger = logging.getLogger(__name__)

UNKNOWN_GPU, UNKNOWN_ISA = "unknown GPU", "unknown"
# In arguments that list files, these stand between the files.
_SEPARATORS = frozenset(",:'")
_WITHOUT_SEPARATORS = Path("/tmp")  # noqa: S108  (what is made there has a name of its own)


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
