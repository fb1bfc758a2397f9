"""The engines that qdqtune knows by name, and whether they are available. Imports none of them."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib.metadata
import importlib.util
import logging
import pkgutil
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtune.engines._entries import BUILTIN_ENGINES, EngineEntry, entry_fault
from qdqtune.engines._hardware import find_gpus
from qdqtune.records._errors import EngineError, UsageError
from qdqtune.records._health import Plugins, find_plugins

if TYPE_CHECKING:
    from qdqtune.records._measurement import EngineInfo

_logger = logging.getLogger(__name__)

AUTO = "auto"
REFERENCE = "onnxruntime"
"""The engine that calibrates, and that runs models as written, for any target engine."""
GUIDES_MODULE = "tensorrt"
"""The engine that NVIDIA's autotuning guides measure with, as a Python module."""
GUIDES_PROGRAM = "trtexec"
"""The same engine as a program."""

ENGINES: dict[str, EngineEntry] = {entry.name: entry for entry in BUILTIN_ENGINES}
"""The built-in engines; `engines` also has those of other packages."""
_AUTO_ORDER = (GUIDES_MODULE, REFERENCE, "openvino")


@dataclass(frozen=True)
class EngineStatus:
    """Whether an engine can measure here.

    Attributes:
        usable: Installed, supported by this version of qdqtune, and its hardware is present.
        version: Installed version; empty when not installed or unknown.
        reason: Why it is not usable, with what to do; empty when it is.
        lists_layers: Whether it can list the layers of a model, even if it can't time it.
        program: Path of its program; empty if it is a module, or missing.
    """

    usable: bool
    version: str
    reason: str
    lists_layers: bool = False
    program: str = ""


@functools.cache
def plugins() -> Plugins[EngineEntry]:
    """Return the engines of other packages, cached; errors are part of the result."""
    return find_plugins("qdqtune.engines", EngineEntry, [AUTO, *ENGINES], entry_fault)


def versioned(name: str) -> tuple[str, str]:
    """Split an engine's name from an optional version: ``tensorrt8`` is ``tensorrt``, ``8``."""
    known = engines()
    bare = name.rstrip("0123456789")
    if name in known or bare not in known:
        return name, ""
    return bare, name[len(bare) :]


def engines() -> dict[str, EngineEntry]:
    """Return every known engine by name."""
    return {**ENGINES, **plugins().entries}


def entry(name: str) -> EngineEntry:
    """Returns the entry of an engine.

    Raises:
        UsageError: No engine has that name.
        EngineError: Another package announces that engine, but it can't be used.
    """
    if (found := ENGINES.get(name) or plugins().entries.get(name)) is not None:
        return found
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
    """Return the display name of an engine."""
    return entry(name).title or name


def available(name: str, options: Mapping[str, str] | None = None) -> EngineStatus:
    """Returns whether an engine can measure here, with this version of qdqtune.

    Args:
        name: The engine.
        options: Its options, as far as they locate it.
    """
    engine, options = entry(name), options or {}
    program = _program(engine, options)
    if not _is_installed(engine, options):
        return EngineStatus(False, "", f"not installed ({engine.install})")
    version = _version(engine, program)
    if not engine.worker_class:
        reason = "this version of qdqtune does not measure with it"
        return EngineStatus(False, version, reason, program=program)
    missing = _missing_gpu(engine)
    lists_layers = not missing or engine.lists_layers_anywhere
    return EngineStatus(not missing, version, missing, lists_layers, program)


def worker_class(name: str) -> str:
    """Returns the ``module:Class`` that opens models with an engine.

    `resolve` says whether it can also time them here. An engine that is a program reports by itself
    if it is missing.

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
    if engine.module and not _is_installed(engine, {}):
        raise _not_installed(engine)
    return engine.worker_class


def resolve(
    name: str, options: Mapping[str, str] | None = None, *, only_layers: bool = False
) -> str:
    """Returns the engine a name stands for; ``auto`` is the first that can measure here.

    Args:
        name: An engine, or ``auto``.
        options: Its options, as far as they locate it.
        only_layers: Whether listing the layers of models is enough, without timing.

    Raises:
        UsageError: No engine has that name.
        EngineError: The engine cannot do that here, or none can.
    """
    if name == AUTO:
        return _first_usable()
    worker_class(name)
    engine = entry(name)
    if not _is_installed(engine, options or {}):
        raise _not_installed(engine)
    missing = _missing_gpu(engine)
    if missing and not (only_layers and engine.lists_layers_anywhere):
        can = f"It can list layers: qdqtune inspect --layers --engine {name}. "
        raise EngineError(
            f"{title(name)} can't time models here: {missing}.",
            f"{can if engine.lists_layers_anywhere else ''}`qdqtune doctor` says what can.",
        )
    return name


def build_line(
    info: EngineInfo, file: Path, shapes: Mapping[str, tuple[int, ...]], name: str
) -> str:
    """Return the command that builds a model as measured; empty where no build is needed.

    Args:
        info: The engine that measured it.
        file: The model.
        shapes: The input shapes at which it was measured.
        name: Name of the file in the command.
    """
    function = entry(info.name).build_line_function
    if not function:
        return ""
    try:
        return str(pkgutil.resolve_name(function)(info, file, shapes, name))
    except (OSError, ValueError) as error:
        _logger.info("no build command is known for %s: %s", name, error)
        return ""


def refused_nodes(name: str, file: Path, message: str) -> tuple[str, ...]:
    """Return the ops for which an engine has no kernel, as far as its message names them.

    Args:
        name: The engine.
        file: The model that it refused.
        message: Why.
    """
    function = entry(name).refusal_function
    return tuple(pkgutil.resolve_name(function)(str(file), message)) if function else ()


def _first_usable() -> str:
    for name in _AUTO_ORDER:
        if available(name).usable and _starts(name):
            _logger.info("the engine is %s", title(name))
            return name
    raise EngineError(
        "No engine that could measure is installed.", f"Install one: {entry(REFERENCE).install}"
    )


def _starts(name: str) -> bool:
    """Whether an engine starts. On a GPU, an installed module may fail to load."""
    if not entry(name).needs_gpu:
        return True
    from qdqtune.engines._worker import probe_engine  # workers look engines up here

    answer = probe_engine(name)
    if isinstance(answer, EngineError):
        reason = answer.what.splitlines()[0]
        _logger.warning("%s is installed, but does not start: %s", title(name), reason)
        return False
    return True


def _missing_gpu(engine: EngineEntry) -> str:
    """Return why an engine has no hardware to run on; empty if it has."""
    if not engine.needs_gpu or find_gpus().gpus:
        return ""
    return f"no NVIDIA GPU answers ({find_gpus().reason})"


def _not_installed(engine: EngineEntry) -> EngineError:
    return EngineError(
        f"The engine {engine.name} is not installed.", f"Install it: {engine.install}"
    )


def _program(engine: EngineEntry, options: Mapping[str, str]) -> str:
    """Return the path of an engine's program; empty if it is missing, or not a program."""
    if not engine.program:
        return ""
    return shutil.which(options.get(engine.path_option) or engine.program) or ""


def _is_installed(engine: EngineEntry, options: Mapping[str, str]) -> bool:
    if engine.program:
        return bool(_program(engine, options))
    try:
        return importlib.util.find_spec(engine.module) is not None
    except (ImportError, ValueError):  # a part of a package that isn't there, or is broken
        return False


def _version(engine: EngineEntry, program: str) -> str:
    if engine.version_function:
        try:
            return str(pkgutil.resolve_name(engine.version_function)(program))
        except Exception as error:  # the program or another package's function may fail
            _logger.debug("the version of %s is unknown: %s", engine.name, error)
            return ""
    for distribution in engine.distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    return ""
