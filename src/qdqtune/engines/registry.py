"""The engines qdqtune knows by name, and whether they are here. Imports none of them."""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import shutil
from dataclasses import dataclass

from qdqtune.records.errors import EngineError, UsageError

AUTO = "auto"


@dataclass(frozen=True)
class EngineEntry:
    """What is known of an engine without importing it.

    Attributes:
        name: Name on the command line and in records.
        install: The command that brings it, or where to get it.
        module: Module whose presence means that it is installed; empty for a program.
        distributions: Packages that may have brought the module, for its version.
        program: Program whose presence means that it is installed; empty for a module.
        worker_class: ``module:Class`` that measures with it; empty when this version cannot.
        measures: Whether its times are measured. An engine that makes them up is never chosen
            unless it is named.
    """

    name: str
    install: str
    module: str = ""
    distributions: tuple[str, ...] = ()
    program: str = ""
    worker_class: str = ""
    measures: bool = True


@dataclass(frozen=True)
class EngineStatus:
    """Whether an engine can measure here.

    Attributes:
        usable: Installed, and this version of qdqtune measures with it.
        version: Installed version; empty when not installed or unknown.
        reason: Why it is not usable, with what to do; empty when it is.
    """

    usable: bool
    version: str
    reason: str


_ENTRIES = (
    EngineEntry(
        "onnxruntime",
        "pip install 'qdqtune[onnxruntime]'",
        module="onnxruntime",
        distributions=("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino"),
        worker_class="qdqtune.engines.onnxruntime:OnnxRuntimeEngine",
    ),
    EngineEntry(
        "openvino",
        "pip install 'qdqtune[openvino]'",
        module="openvino",
        distributions=("openvino",),
        worker_class="qdqtune.engines.openvino:OpenVinoEngine",
    ),
    EngineEntry(
        "tensorrt",
        "pip install tensorrt",
        module="tensorrt",
        distributions=("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
    ),
    EngineEntry("trtexec", "trtexec comes with TensorRT; put it on PATH", program="trtexec"),
    EngineEntry(
        "tensorrt_rtx",
        "pip install 'qdqtune[tensorrt-rtx]'",
        module="tensorrt_rtx",
        distributions=("tensorrt-rtx-cu13", "tensorrt-rtx"),
    ),
    EngineEntry(
        "simulated",
        "it is part of qdqtune",
        module="qdqtune",
        worker_class="qdqtune.engines.simulated:SimulatedEngine",
        measures=False,
    ),
)
ENGINES: dict[str, EngineEntry] = {entry.name: entry for entry in _ENTRIES}


def entry(name: str) -> EngineEntry:
    """Returns what is known of an engine.

    Raises:
        UsageError: No engine has that name.
    """
    if name in ENGINES:
        return ENGINES[name]
    close = difflib.get_close_matches(name.lower(), [*ENGINES, AUTO], n=1)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    raise UsageError(f"Unknown engine '{name}'.", f"{hint}Choices: {', '.join([AUTO, *ENGINES])}.")


def available(name: str) -> EngineStatus:
    """Says whether an engine is installed and can measure with this version of qdqtune."""
    engine = entry(name)
    if engine.program:
        installed = shutil.which(engine.program) is not None
    else:
        installed = importlib.util.find_spec(engine.module) is not None
    if not installed:
        return EngineStatus(False, "", f"not installed ({engine.install})")
    version = _version(engine)
    if not engine.worker_class:
        return EngineStatus(False, version, "this version of qdqtune does not measure with it")
    return EngineStatus(True, version, "")


def worker_class(name: str) -> str:
    """Returns the ``module:Class`` that measures with an engine.

    Raises:
        UsageError: No engine has that name.
        EngineError: The engine is not installed, or this version does not measure with it.
    """
    engine = entry(name)
    if not engine.worker_class:
        others = ", ".join(e.name for e in _ENTRIES if e.worker_class and e.measures)
        raise EngineError(
            f"This version of qdqtune does not measure with {name}.",
            f"It measures with: {others}.",
        )
    if not available(name).usable:
        raise EngineError(f"The engine {name} is not installed.", f"Install it: {engine.install}")
    return engine.worker_class


def resolve(name: str) -> str:
    """Returns the engine a name stands for; ``auto`` is the first that can measure here.

    Raises:
        UsageError: No engine has that name.
        EngineError: The engine cannot measure here, or none can.
    """
    if name != AUTO:
        worker_class(name)
        return name
    for engine in _ENTRIES:
        if engine.measures and available(engine.name).usable:
            return engine.name
    installs = [e.install for e in _ENTRIES if e.worker_class and e.measures]
    raise EngineError("No engine that could measure is installed.", f"Install one: {installs[0]}")


def _version(engine: EngineEntry) -> str:
    for distribution in engine.distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""
