"""The engines qdqtune knows by name, and whether they are here. Imports none of them."""

from __future__ import annotations

import difflib
import functools
import importlib.metadata
import importlib.util
import shutil
from dataclasses import dataclass

from qdqtune.engines.entry import EngineEntry, SpokenDialect
from qdqtune.engines.plugins import Plugins, find_plugins
from qdqtune.records.errors import EngineError, UsageError

__all__ = [
    "AUTO",
    "ENGINES",
    "GUIDES_MODULE",
    "GUIDES_PROGRAM",
    "REFERENCE",
    "EngineEntry",
    "EngineStatus",
    "SpokenDialect",
    "available",
    "engines",
    "entry",
    "plugins",
    "resolve",
    "title",
    "versioned",
    "worker_class",
]

AUTO = "auto"
REFERENCE = "onnxruntime"
"""The engine that calibrates, and that runs models as they are written, whatever they are for."""
GUIDES_MODULE = "tensorrt"
"""What the autotuning guides measure with, as a Python module."""
GUIDES_PROGRAM = "trtexec"
"""The same as a program."""


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


_TENSORRT_DIALECTS = (SpokenDialect("tensorrt-8", before_version=10), SpokenDialect("tensorrt"))
_ENTRIES = (
    EngineEntry(
        "onnxruntime",
        "pip install 'qdqtune[onnxruntime]'",
        title="ONNX Runtime",
        module="onnxruntime",
        distributions=("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino"),
        worker_class="qdqtune.engines.onnxruntime:OnnxRuntimeEngine",
        dialects=(SpokenDialect("onnxruntime-novnni", True), SpokenDialect("onnxruntime")),
    ),
    EngineEntry(
        "openvino",
        "pip install 'qdqtune[openvino]'",
        title="OpenVINO",
        module="openvino",
        distributions=("openvino",),
        worker_class="qdqtune.engines.openvino:OpenVinoEngine",
        dialects=(SpokenDialect("openvino-novnni", True), SpokenDialect("openvino")),
        isa_option="max_cpu_isa",
        isa_variables=("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"),
        runs_bfloat16=True,
    ),
    EngineEntry(
        "tensorrt",
        "pip install tensorrt",
        title="TensorRT",
        module="tensorrt",
        distributions=("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
        dialects=_TENSORRT_DIALECTS,
        takes_plugins=True,
        has_timing_cache=True,
    ),
    EngineEntry(
        "trtexec",
        "trtexec comes with TensorRT; put it on PATH",
        program="trtexec",
        dialects=_TENSORRT_DIALECTS,
        takes_plugins=True,
        has_timing_cache=True,
    ),
    EngineEntry(
        "tensorrt_rtx",
        "pip install 'qdqtune[tensorrt-rtx]'",
        title="TensorRT-RTX",
        module="tensorrt_rtx",
        distributions=("tensorrt-rtx-cu13", "tensorrt-rtx"),
        dialects=(SpokenDialect("tensorrt"),),
        takes_plugins=True,
        has_timing_cache=True,
    ),
    EngineEntry(
        "simulated",
        "it is part of qdqtune",
        title="The simulated engine",
        module="qdqtune",
        worker_class="qdqtune.engines.simulated:SimulatedEngine",
        measures=False,
        dialect_function="qdqtune.engines.simulated.spoken:dialect_of",
    ),
)
ENGINES: dict[str, EngineEntry] = {entry.name: entry for entry in _ENTRIES}
"""Those that are part of qdqtune; `engines` has the others, too."""


@functools.cache
def plugins() -> Plugins:
    """What other packages bring; looked for once."""
    return find_plugins([AUTO, *ENGINES])


def versioned(name: str) -> tuple[str, str]:
    """An engine's name and the version that it may end in: ``tensorrt8`` is ``tensorrt``, ``8``."""
    known = engines()
    bare = name.rstrip("0123456789")
    if name in known or bare not in known:
        return name, ""
    return bare, name[len(bare) :]


def engines() -> dict[str, EngineEntry]:
    """Every engine that has a name here."""
    return {**ENGINES, **plugins().entries}


def entry(name: str) -> EngineEntry:
    """Returns what is known of an engine.

    Raises:
        UsageError: No engine has that name.
        EngineError: One that another package announces has, but can't be used.
    """
    if name in ENGINES:
        return ENGINES[name]
    if name in plugins().entries:
        return plugins().entries[name]
    for broken in plugins().broken:
        if broken.name == name:
            raise EngineError(
                f"The engine {name} can't be used: {broken.reason}.",
                f"It is part of the package {broken.package}: mend or remove that.",
            )
    choices = [AUTO, *engines()]
    close = difflib.get_close_matches(name.lower(), choices, n=1)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    raise UsageError(f"Unknown engine '{name}'.", f"{hint}Choices: {', '.join(choices)}.")


def title(name: str) -> str:
    """What people call an engine."""
    return entry(name).title or name


def available(name: str) -> EngineStatus:
    """Says whether an engine is installed and can measure with this version of qdqtune."""
    engine = entry(name)
    if not _is_installed(engine):
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
        others = ", ".join(e.name for e in engines().values() if e.worker_class and e.measures)
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


def _is_installed(engine: EngineEntry) -> bool:
    if engine.program:
        return shutil.which(engine.program) is not None
    try:
        return importlib.util.find_spec(engine.module) is not None
    except (ImportError, ValueError):  # a part of a package that isn't there, or is broken
        return False


def _version(engine: EngineEntry) -> str:
    for distribution in engine.distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""
