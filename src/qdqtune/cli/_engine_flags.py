"""Flags for features that only some engines have: a timing cache, plugins, an external program."""

from __future__ import annotations

import argparse
import contextlib
import logging
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdqtune.engines._options import EngineFlags

_logger = logging.getLogger(__name__)


def take_engine_flags(options: argparse.Namespace, timing_cache: str | None) -> EngineFlags:
    """Return the engine-specific settings; shapes among them are moved to the general shape flags.

    Args:
        options: The parsed arguments; this fills in the shapes, and `built_for`: the shapes that
            kernels are chosen for if the model runs at others.
        timing_cache: The timing cache file, if requested.

    Raises:
        UsageError: If a value can't be parsed.
    """
    from qdqtune.engines._options import EngineFlags, ShapeArguments

    told = ShapeArguments.found_in(shlex.split(options.trtexec_benchmark_args or ""))
    options.shapes = options.shapes or told.usual
    options.min_shapes = options.min_shapes or told.least
    options.max_shapes = options.max_shapes or told.most
    is_range = bool(options.min_shapes or options.max_shapes)
    options.built_for = ",".join(told.best) if is_range and told.best != options.shapes else ""
    return EngineFlags(
        timing_cache or "", tuple(options.plugin_libraries or ()), tuple(told.others)
    )


def chosen_engine(options: argparse.Namespace) -> tuple[str, dict[str, str]]:
    """Return the requested engine and all of its options.

    Raises:
        QdqtuneError: If the engine can't measure here, or doesn't support a given setting.
    """
    from qdqtune.engines import _registry as registry

    words = take_engine_flags(options, options.timing_cache)
    engine = registry.resolve(options.engine, dict(options.engine_option))
    return engine, options_for_engine(options, engine, words, is_strict=True)


def options_for_engine(
    options: argparse.Namespace, engine: str, words: EngineFlags, *, is_strict: bool = False
) -> dict[str, str]:
    """Return all options of an engine; warn of arguments that its program does not get unchanged.

    Args:
        options: The parsed arguments, filled in by `take_engine_flags`.
        engine: The engine.
        words: The engine-specific settings.
        is_strict: Whether settings that the engine doesn't support raise an error instead of a
            warning.

    Raises:
        UsageError: If a setting is refused.
    """
    from qdqtune.engines import _registry as registry
    from qdqtune.engines.tensorrt._trtexec_settings import notes_on

    found = words.options_of(engine, dict(options.engine_option), is_strict=is_strict)
    if options.built_for and registry.entry(engine).takes_shape_ranges:
        found = {"opt_shapes": options.built_for, **found}
    if engine == registry.GUIDES_PROGRAM:
        with contextlib.suppress(ValueError):  # the engine's own error says what is wrong
            for note in notes_on(found):
                _logger.warning("%s", note)
    return found
