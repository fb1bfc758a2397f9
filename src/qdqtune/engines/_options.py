"""Options of the engine in use, from flags, input shapes, float types and records."""

from __future__ import annotations

import logging
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from qdqtune.engines import _registry as registry
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines.tensorrt._settings import STRONG, WEAK, Shapes, shapes_text
from qdqtune.records._errors import UsageError
from qdqtune.records._measurement import FLOAT32, EngineInfo
from qdqtune.records._precision import Precision

__all__ = ["MAX", "MIN", "OPT", "Shapes", "range_options", "shapes_text", "without_ranges"]

_logger = logging.getLogger(__name__)

_TIMING_CACHE, _PLUGINS = "timing_cache", "plugins"

_SHAPES = re.compile(r"--(min|opt|max|)[sS]hapes=(.+)")
MIN, OPT, MAX = "min", "opt", "max"
_OPTIONS = {MIN: "min_shapes", OPT: "opt_shapes", MAX: "max_shapes"}
_TYPING, _PRECISION = "typing", "precision"


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
        for library in self.plugins:
            if not Path(library).is_file():
                raise UsageError(f"The plugin library {library} does not exist.", "Check the path.")
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


def _without(what: str, is_strict: bool) -> None:
    if is_strict:
        raise UsageError(f"{what[0].upper()}{what[1:]}.", "Leave it out, or choose another engine.")
    _logger.warning("%s", what)


@dataclass
class ShapeArguments:
    """Shape arguments, separated from the others.

    Attributes:
        least: Shapes from `--minShapes`, in the form of our own flags.
        best: Shapes from `--optShapes`.
        most: Shapes from `--maxShapes`.
        run: Shapes from `--shapes`.
        others: All other arguments.
    """

    least: list[str] = field(default_factory=list)
    best: list[str] = field(default_factory=list)
    most: list[str] = field(default_factory=list)
    run: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    @classmethod
    def found_in(cls, arguments: Iterable[str]) -> ShapeArguments:
        """Parse a split command line."""
        shapes = cls()
        places = {"min": shapes.least, "opt": shapes.best, "max": shapes.most, "": shapes.run}
        for argument in arguments:
            match = _SHAPES.fullmatch(argument)
            if match is None:
                shapes.others.append(argument)
            else:
                places[match[1]].append(match[2])
        return shapes

    @property
    def usual(self) -> list[str]:
        """The shapes that models are run at."""
        return self.run or self.best

    @property
    def built_for(self) -> list[str]:
        """The shapes that kernels are chosen for."""
        return self.best or self.run

    def as_options(self) -> dict[str, str]:
        """Return engine options for the ranges; empty if only one shape is given."""
        if not self.least and not self.most:
            return {}
        said = {"min_shapes": self.least, "opt_shapes": self.built_for, "max_shapes": self.most}
        return {name: ",".join(texts) for name, texts in said.items() if texts}


def range_options(shapes: Mapping[str, Shapes]) -> dict[str, str]:
    """Return the options for ranges of input shapes.

    Args:
        shapes: By `MIN`, `OPT` and `MAX`: shapes by input.
    """
    return {_OPTIONS[label]: shapes_text(found) for label, found in shapes.items() if found}


def without_ranges(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without shape ranges."""
    return {name: value for name, value in options.items() if name not in _OPTIONS.values()}


def preferred_float_type(info: EngineInfo) -> Precision:
    """Return the float type in which a model should be written to be fast on an engine.

    An engine that takes types as written would compute all of a float32 model in float32; others
    choose by themselves.
    """
    return Precision.FP16 if info.options.get(_TYPING) == STRONG else Precision.FP32


def chooses_float_types(info: EngineInfo) -> bool:
    """Whether an engine chooses float types by itself and has an option to set them."""
    return info.options.get(_TYPING) == WEAK


def float_type_options(precision: Precision, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that make such an engine compute in a given float type.

    Args:
        precision: The float type.
        options: The user's engine options.

    Raises:
        UsageError: If the user's options contradict it.
    """
    said = options.get(_PRECISION, precision.value)
    if said != precision.value:
        raise UsageError(
            f"The precision is to be {precision.value}, but the engine's own option "
            f"{_PRECISION} is {said}.",
            f"Leave out --precision, or --engine_option {_PRECISION}={said}.",
        )
    return {**options, _PRECISION: precision.value}


def float_type_in_effect(info: EngineInfo, written: Precision) -> Precision:
    """Return the float type that an engine computes in.

    Args:
        info: The engine.
        written: The smallest float type of the model.
    """
    if not chooses_float_types(info):
        return written
    return Precision(info.options.get(_PRECISION, Precision.FP16.value))


def exact_options(info: EngineInfo, options: SessionOptions) -> SessionOptions | None:
    """Return the options for computing in float32; None if it already does, or has no such option.

    Args:
        info: The engine with these options.
        options: The current session options.
    """
    if info.float_type in ("", FLOAT32):
        return None
    exact = registry.entry(info.name).float32_options
    if not exact:
        return None
    return replace(options, engine_options={**options.engine_options, **exact})


def recorded_engine(info: EngineInfo) -> tuple[str | None, dict[str, str]]:
    """Return the engine and the options of a record that may be followed.

    Nothing that is run, loaded, opened or takes resources: the number of threads is never taken
    from a record, nor a path, a library, a program argument, or an engine from another package,
    which the user must name.
    """
    entry = registry.ENGINES.get(info.name)
    if entry is None:
        return None, {}
    return entry.name, {
        name: value
        for name, value in info.options.items()
        if name in entry.recorded_options and re.fullmatch(entry.recorded_options[name], value)
    }
