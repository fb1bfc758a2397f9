"""Engines that trtexec builds, and those that were built before."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qdqtune.engines._signature import Signature
from qdqtune.engines.tensorrt._caches import LAYERS, PLAN, PlanCache, library_stamp, plan_key
from qdqtune.engines.tensorrt._settings import Shapes
from qdqtune.engines.tensorrt._trtexec_command import (
    Ranges,
    build_arguments,
    build_command,
    timing_cache_arguments,
)
from qdqtune.engines.tensorrt._trtexec_program import Program, TrtexecError, finds_no_kernel
from qdqtune.engines.tensorrt._trtexec_settings import TrtexecSettings
from qdqtune.engines.tensorrt._trtexec_version import PLUGIN_FLAGS, name_of
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.records._errors import OutputError


@dataclass(frozen=True)
class Plan:
    """A built engine.

    Attributes:
        path: The engine.
        layers: What its layers are; None if that is not known.
        built_from: The arguments that it was built with.
        ranges: What inputs with open dims may look like.
    """

    path: Path
    layers: Path | None
    built_from: tuple[str, ...]
    ranges: Ranges

    def takes(self, shapes: Shapes) -> bool:
        """Whether it runs on such inputs."""
        return all(range_.has(shapes[name]) for name, range_ in self.ranges.items())


@dataclass(frozen=True)
class ModelFile:
    """A model, and how it is to be run.

    Attributes:
        path: The model file.
        signature: Its outside.
        program: What builds and runs it.
        usage: How.
        device: The GPU, as far as it is known.
        room: What keeps `folder`, and removes it.
        log: File for what is printed; None for nowhere.
    """

    path: str
    signature: Signature
    program: Program
    usage: TrtexecSettings
    device: str
    room: TemporaryFolder
    log: Path | None

    def call(self, what: str, command: Sequence[str]) -> str:
        """Calls trtexec; see `Program.call`.

        Args:
            what: What it is asked to do with the model.
            command: The arguments.
        """
        try:
            return self.program.call(command, self.usage.given, self.log)
        except TrtexecError as error:
            raise TrtexecError(f"trtexec can't {what} {self.name}: {error}", error.text) from None

    @property
    def folder(self) -> Path:
        """Where files go that go with the session."""
        return self.room.path

    @property
    def name(self) -> str:
        """The file's name, for messages."""
        return os.path.basename(self.path)


class PlanBuilder:
    """Builds one model, for any shapes.

    Args:
        model: The model.
        cache: Engines that were built before.
    """

    def __init__(self, model: ModelFile, cache: PlanCache) -> None:
        self._model = model
        self._cache = cache
        self._built = 0

    def build(self, ranges: Ranges) -> Plan:
        """Builds an engine, or finds one that was.

        Raises:
            TrtexecError: If it can't be built; the message says why.
            ValueError: If this version can't do what is wanted.
            OSError: If a file of the model is missing.
        """
        model = self._model
        built_from = build_arguments(model.usage, model.signature.low_types, ranges)
        key = plan_key(model.path, self._parts(built_from))
        self._built += 1
        path = model.folder / f"{self._built}{PLAN}"
        layers = model.folder / f"{self._built}{LAYERS}"
        command = build_command(model.usage, model.path, path, layers, built_from)
        if not self._was_built(key, path, layers, command):
            self._run(command, path)
            # A full disk costs a build later, not this one.
            with contextlib.suppress(OSError, OutputError):
                self._cache.keep(key, path)
                if _is_filled(layers):
                    self._cache.keep(key, layers, LAYERS)
        told = layers if _is_filled(layers) else None
        return Plan(path, told, tuple(built_from), ranges)

    def _was_built(self, key: str, path: Path, layers: Path, command: Sequence[str]) -> bool:
        if not self._cache.take(key, path):
            return False
        asks_layers = "--exportLayerInfo" in {name_of(each) for each in command}
        knows_it = "--exportLayerInfo" not in self._model.program.refused
        return self._cache.take(key, layers, LAYERS) or not (asks_layers and knows_it)

    def _run(self, command: Sequence[str], path: Path) -> None:
        path.unlink(missing_ok=True)
        try:
            self._call(command)
        except TrtexecError:
            path.unlink(missing_ok=True)
            raise
        if not _is_filled(path):
            path.unlink(missing_ok=True)
            raise TrtexecError(
                f"trtexec says that it built {self._model.name}, but wrote no engine"
            )

    def _call(self, command: Sequence[str]) -> None:
        """Seen with 8.6: what an earlier process had found out made a later build fail."""
        model, program = self._model, self._model.program
        cache = timing_cache_arguments(model.usage)
        without = [argument for argument in command if argument not in cache]
        if program.trusts_cache is False:
            command = without
        knows_kernels = len(without) < len(command) and _is_filled(Path(model.usage.timing_cache))
        try:
            model.call("build", command)
        except TrtexecError as error:
            is_doubtful = knows_kernels and finds_no_kernel(error.text)
            if program.trusts_cache or not is_doubtful:
                raise
            try:
                model.call("build", without)
            except TrtexecError:
                program.trusts_cache = True
                raise error from None
            program.trusts_cache = False

    def _parts(self, built_from: Sequence[str]) -> list[str]:
        usage = self._model.usage
        given = (argument.partition("=") for argument in usage.given)
        libraries = [library for name, _, library in given if name in PLUGIN_FLAGS]
        stamps = map(library_stamp, (*usage.settings.plugins, *libraries))
        return ["trtexec", str(usage.version), self._model.device, *built_from, *stamps]


def _is_filled(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0
