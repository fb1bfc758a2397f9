"""Flags for a family of engines, translated to options of the engine in use."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qdqtune.engines import registry
from qdqtune.records.errors import UsageError

_logger = logging.getLogger(__name__)

_TIMING_CACHE, _PLUGINS = "timing_cache", "plugins"


@dataclass(frozen=True)
class EngineFlags:
    """Flags that were given in addition to engine options.

    Attributes:
        timing_cache: File for the engine's kernel timings; empty if not set.
        plugins: Libraries with custom ops.
        arguments: Additional arguments for the engine's program.
        program: Path of the program; empty for the one on PATH.
    """

    timing_cache: str = ""
    plugins: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    program: str = ""

    def options_of(
        self, engine: str, given: Mapping[str, str], *, is_strict: bool = False
    ) -> dict[str, str]:
        """Return all options of an engine; explicit options take precedence.

        Args:
            engine: Its name.
            given: The explicit options.
            is_strict: Whether flags that the engine does not support raise instead of warn.

        Raises:
            UsageError: If a library is missing, or a flag is not supported.
        """
        entry = registry.entry(engine)
        self._check_plugins()
        said: dict[str, str] = {}
        if self.timing_cache and entry.has_timing_cache:
            said[_TIMING_CACHE] = self.timing_cache
        elif self.timing_cache:
            _without(f"{engine} has no timing cache: {self.timing_cache} is not used", is_strict)
        if self.plugins and entry.takes_plugins:
            said[_PLUGINS] = os.pathsep.join(str(Path(each).absolute()) for each in self.plugins)
        elif self.plugins:
            _without(f"{engine} takes no plugin libraries: they are not used", is_strict)
        if self.arguments and entry.arguments_option:
            said[entry.arguments_option] = shlex.join(self.arguments)
        elif self.arguments:
            text = shlex.join(self.arguments)
            _without(f"{engine} takes no arguments of {registry.GUIDES_PROGRAM}: {text}", is_strict)
        if self.program and entry.path_option:
            said[entry.path_option] = self.program
        return {**said, **given}

    def _check_plugins(self) -> None:
        for library in self.plugins:
            if not Path(library).is_file():
                raise UsageError(f"The plugin library {library} does not exist.", "Check the path.")


def _without(what: str, is_strict: bool) -> None:
    if is_strict:
        raise UsageError(f"{what[0].upper()}{what[1:]}.", "Leave it out, or choose another engine.")
    _logger.warning("%s", what)
