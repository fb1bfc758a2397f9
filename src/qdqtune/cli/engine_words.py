"""Flags about what only some engines have: a timing cache, plugins, a program of their own."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from qdqtune.cli.flags import WHOLE_LINES, add_shape_ranges
from qdqtune.records.errors import UsageError

if TYPE_CHECKING:
    from qdqtune.engines.words import EngineWords


def add_engine_words(parser: argparse.ArgumentParser) -> None:
    """Add the flags; `take_engine_words` reads them."""
    group = parser.add_argument_group("engines that build")
    group.add_argument(
        "--timing_cache",
        metavar="FILE",
        help="where TensorRT keeps what it learned about kernels (default: one of qdqtune's, for "
        "each GPU and version)",
    )
    add_plugins(group)
    add_trtexec_arguments(group)
    add_shape_ranges(group)


def add_plugins(group: argparse._ActionsContainer) -> None:
    """Add `--plugin_libraries`."""
    group.add_argument(
        "--plugin_libraries",
        "--plugins",
        nargs="+",
        metavar="FILE",
        help="TensorRT plugins to load",
    )


def add_trtexec_arguments(group: argparse._ActionsContainer) -> None:
    """Add `--trtexec_benchmark_args`."""
    group.add_argument(
        *WHOLE_LINES,
        type=_command_line,
        metavar="'ARGS'",
        help="more arguments for trtexec, in one string; what it says of shapes holds for every "
        "engine",
    )


def take_engine_words(options: argparse.Namespace, timing_cache: str | None) -> EngineWords:
    """What was said for some engines; shapes among it go to our own flags for them.

    Args:
        options: What was parsed; its shapes are filled in.
        timing_cache: The file, if one was asked for.

    Raises:
        UsageError: If it can't be read.
    """
    from qdqtune.engines.shape_arguments import ShapeArguments
    from qdqtune.engines.words import EngineWords

    told = ShapeArguments.found_in(_words(options.trtexec_benchmark_args or ""))
    options.shapes = options.shapes or told.usual
    options.min_shapes = options.min_shapes or told.least
    options.max_shapes = options.max_shapes or told.most
    return EngineWords(
        timing_cache or "", tuple(options.plugin_libraries or ()), tuple(told.others)
    )


def chosen_engine(options: argparse.Namespace) -> tuple[str, dict[str, str]]:
    """The engine that is meant, and all of its options.

    Raises:
        QdqtuneError: If it can't measure here, or has no use for what was said.
    """
    from qdqtune.engines import registry

    words = take_engine_words(options, options.timing_cache)
    given = dict(options.engine_option)
    engine = registry.resolve(options.engine, given)
    return engine, words.options_of(engine, given, is_strict=True)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"--trtexec_benchmark_args can't be read: {error}.", "Close every quote in it."
        ) from None


def _command_line(text: str) -> str:
    """Check that a string can be taken apart into arguments."""
    try:
        shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no command line: {error}") from None
    return text
