"""Flags: those generated from configs, those that every command has, and those of some engines."""

from __future__ import annotations

import argparse
import contextlib
import logging
import shlex
from collections.abc import Callable, Collection, Iterable
from dataclasses import Field
from typing import TYPE_CHECKING, Any, TypeVar

from qdqtune._parser import (
    AssignmentsAction,
    DashedValueAction,
    InputItemsAction,
    ListAction,
    Names,
    group_titled,
)
from qdqtune.config import COMMAND_LINE, FILES, INPUTS, SHAPES, OutputConfig
from qdqtune.options import (
    KEY_VALUES,
    REGEXES,
    SECONDS,
    SWITCH,
    Kind,
    Option,
    check_mode,
    help_text,
    options_of,
    parts_of,
    whole,
)
from qdqtune.records._inputs import InputRequest
from qdqtune.records._untrusted_files import parse_size

if TYPE_CHECKING:
    from qdqtune.engines._options import EngineFlags

C = TypeVar("C")


def _engine_names() -> Iterable[str]:
    from qdqtune.engines import _registry as registry

    return [registry.AUTO, *registry.engines()]


def _dialect_names() -> Iterable[str]:
    import importlib.metadata  # importing the dialects themselves would take longer

    from qdqtune.engines import _registry as registry

    entries = registry.engines().values()
    announced = importlib.metadata.entry_points(group="qdqtune.dialects").names
    return sorted(announced | {choice.name for entry in entries for choice in entry.dialects})


NAMES: Names = {"engine": _engine_names, "dialect": _dialect_names}
"""Values of flags that are looked up only when help is shown."""

# How repeatable flags are parsed, if not as plain lists.
_LISTS: dict[Kind, dict[str, Any]] = {
    FILES: {"action": ListAction, "nargs": "+"},
    KEY_VALUES: {"action": AssignmentsAction},
    REGEXES: {"action": ListAction, "nargs": "+"},
    SHAPES: {"action": InputItemsAction, "item": "shape"},
}
# The parts of an input request: item, dest, flags, placeholder and help.
_INPUT_ITEMS = (
    ("shape", "shapes", ("--set", "--shapes", "--opt_shapes"), "NAME:1x3x224x224",
     "whole shapes of inputs; ? keeps a dim as the model has it"),
    ("dim", "dim", ("--dim",), "SYMBOL=SIZE", "size of a symbolic dim, wherever it occurs"),
    ("range", "input_range", ("--input_range",), "NAME:LOW:HIGH",
     "values of an input, both ends included"),
)  # fmt: skip


class SaidOnce(argparse.Action):
    """Stores a value; the flag may be repeated, in any spelling, but not with another value."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        """Store the value."""
        self.keep(namespace, self.dest, values)

    def keep(self, namespace: argparse.Namespace, name: str, value: Any) -> None:
        """Store a value under a name, unless it contradicts the stored one."""
        before = getattr(namespace, name, None)
        if before not in (None, value):
            raise argparse.ArgumentError(self, f"{before} and {value} contradict each other")
        setattr(namespace, name, value)


class _Switch(SaidOnce):
    """Stores True, or False if the flag begins with `--no_`."""

    def __init__(self, option_strings: list[str], dest: str, **others: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **others)

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,  # noqa: ARG002
        option_string: str | None = None,
    ) -> None:
        """Store the value of the flag."""
        self.keep(namespace, self.dest, not str(option_string).startswith("--no_"))


def add_config(
    parser: argparse.ArgumentParser,
    *config_classes: type,
    without: Collection[str] = (),
    only_given: bool = False,
) -> None:
    """Add a flag for each field of a config that has one, if it isn't there yet; see `config_from`.

    Args:
        parser: The parser to add them to, in one group per part of the config.
        config_classes: The configs.
        without: Fields to leave out.
        only_given: Whether flags that are not given leave no default in the parsed arguments.
    """
    exclusive: dict[str, argparse._ActionsContainer] = {}
    parts = (part for config_class in config_classes for part in parts_of(config_class))
    for title, options in parts:
        for each, known in options:
            flags = [flag for flag in known.flags if flag not in parser._option_string_actions]
            if not flags or each.name in without:
                continue
            group: argparse._ActionsContainer = group_titled(parser, known.title or title)
            if known.exclusive:
                if known.exclusive not in exclusive:
                    exclusive[known.exclusive] = group.add_mutually_exclusive_group()
                group = exclusive[known.exclusive]
            _add_flag(group, each, known, flags, only_given)


def _add_flag(
    group: argparse._ActionsContainer,
    each: Field[Any],
    known: Option,
    flags: Collection[str],
    only_given: bool,
) -> None:
    kind = known.kind
    if kind is INPUTS:
        _add_input_items(group, flags)
        return
    read = kind.read if kind.choices else reading(kind.from_text)
    how: dict[str, Any] = {"default": each.default, "metavar": kind.metavar, "type": read}
    if kind is SWITCH:
        how = {"action": _Switch}
    elif kind.collect is not None:
        how |= {"default": [], "action": ListAction, **_LISTS.get(kind, {})}
    else:
        how["choices"] = kind.choices or None
        if kind.bare is not None:
            how |= {"nargs": "?", "const": kind.bare}
        if kind is COMMAND_LINE:
            how["action"] = DashedValueAction
        elif sum(flag.startswith("--") for flag in known.flags) > 1:
            how["action"] = SaidOnce
        if known.required:
            how["required"] = True
    if only_given or known.mode or issubclass(how.get("action", argparse.Action), SaidOnce):
        how["default"] = argparse.SUPPRESS  # shows whether the flag was given
    text = help_text(each, known).replace("%", "%%")
    group.add_argument(*flags, dest=known.dest, help=text, **how)


def _add_input_items(group: argparse._ActionsContainer, flags: Collection[str]) -> None:
    for item, dest, spellings, metavar, what in _INPUT_ITEMS:
        given = [flag for flag in spellings if flag in flags]
        if given:
            group.add_argument(
                *given, dest=dest, action=InputItemsAction, item=item, default=[], metavar=metavar,
                help=what,
            )  # fmt: skip


def reading(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a converter of arguments, which reports the error that `read` raises."""

    def convert(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


natural, positive = reading(whole(0).from_text), reading(whole(1).from_text)


def config_from(options: argparse.Namespace, config_class: Callable[..., C], **known: Any) -> C:
    """Build a config from parsed arguments.

    Args:
        options: The parsed arguments.
        config_class: The config.
        known: Values of fields that don't come from flags.

    Raises:
        UsageError: If a value can't be parsed, or conflicts with the others.
    """
    said: dict[str, Any] = {}
    for each, one in options_of(config_class):
        if each.name in known:
            continue
        if one.kind is INPUTS:
            shapes, dims, ranges = (getattr(options, dest, ()) for _, dest, *_ in _INPUT_ITEMS)
            request = InputRequest.from_text(shapes, dims, ranges, getattr(options, "seed", 0))
            said[each.name] = None if request == InputRequest(seed=request.seed) else request
        elif hasattr(options, one.dest):
            value = getattr(options, one.dest)
            if one.kind.collect is None:
                said[each.name] = value
            elif value:
                said[each.name] = one.kind.collect(value)
    check_mode(config_class, said | known)
    return config_class(**said, **known)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every command."""
    add_format(parser)
    group = parser.add_argument_group("messages").add_mutually_exclusive_group()
    group.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="log more on stderr; given twice, log everything",
    )
    group.add_argument("-q", "--quiet", action="store_true", help="log only errors on stderr")
    add_limits(parser)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add `--max_memory` and `--timeout`, which `run_safely` enforces."""
    group = parser.add_argument_group("limits (see docs/concepts/guarantees.md)")
    group.add_argument(
        "--max_memory",
        type=reading(parse_size),
        metavar="SIZE",
        help="memory limit of each process, such as 4GiB (default: the free memory, less a "
        "reserve)",
    )
    group.add_argument(
        "--timeout",
        type=reading(SECONDS.from_text),
        metavar="TIME",
        help="time limit of one step, such as opening a model or a block of runs: 300, 90s, 30m or "
        "2h (default: the engine's)",
    )


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add `--format`, which `show` follows."""
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="how results are printed"
    )


def add_model(parser: argparse.ArgumentParser, what: str = "a float or Q/DQ ONNX model") -> None:
    """Add the model, as the first positional argument."""
    parser.add_argument("model", metavar="MODEL", help=what)


def add_output(
    parser: argparse.ArgumentParser, what: str = "the file to write", *, required: bool = True
) -> None:
    """Add `-o/--output`."""
    group = group_titled(parser, OutputConfig.TITLE)
    group.add_argument("-o", "--output", required=required, metavar="OUT", help=what)


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
    """Return all options of an engine; warn about arguments that are not passed on unchanged.

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

    found = words.options_of(engine, dict(options.engine_option), is_strict=is_strict)
    if options.built_for and registry.entry(engine).takes_shape_ranges:
        found = {"opt_shapes": options.built_for, **found}
    if engine == registry.GUIDES_PROGRAM:
        from qdqtune.engines.tensorrt._trtexec_arguments import notes_on

        with contextlib.suppress(ValueError):  # the engine reports a better error itself
            for note in notes_on(found):
                _logger.warning("%s", note)
    return found
