"""Flags that several commands share.

Generated from configs, for a model's inputs, for output and limits.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import Field
from typing import Any, TypeVar

from qdqtune._parser import AssignmentsAction, InputItemsAction, ListAction, Names, group_titled
from qdqtune.config import INPUTS, SHAPES, CalibrationConfig, EngineConfig, InputConfig
from qdqtune.options import (
    KEY_VALUES,
    REGEXES,
    SECONDS,
    SWITCH,
    WILDCARDS,
    Kind,
    Option,
    check_mode,
    help_text,
    options_of,
    parts_of,
    whole,
)
from qdqtune.records._inputs import InputRequest
from qdqtune.records._precision import QUANT_TYPES
from qdqtune.records._untrusted_files import parse_size


def add_input_items(group: argparse._ActionsContainer) -> None:
    """Add the flags that `input_request` reads, except the seed."""
    add_shapes(group, "shapes of inputs; ? is a dim as the model has it")
    add_dim(group)
    group.add_argument(
        "--input_range",
        action=InputItemsAction,
        item="range",
        default=[],
        metavar="NAME:LOW:HIGH",
        help="values of an input, both ends included",
    )


def add_shapes(group: argparse._ActionsContainer, what: str) -> None:
    """Add `--shapes` and its alias.

    Args:
        group: The argument group to add it to.
        what: The help text.
    """
    group.add_argument(
        "--shapes",
        "--opt_shapes",
        action=InputItemsAction,
        item="shape",
        default=[],
        metavar="NAME:1x3x224x224",
        help=what,
    )


def shape_request(texts: Sequence[str] | None) -> InputRequest | None:
    """Parse the value of `--min_shapes` or `--max_shapes`; None if the flag wasn't given.

    Raises:
        UsageError: If it can't be parsed.
    """
    return InputRequest.from_text(texts) if texts else None


def add_dim(group: argparse._ActionsContainer) -> None:
    """Add `--dim`."""
    group.add_argument(
        "--dim",
        action=InputItemsAction,
        item="dim",
        default=[],
        metavar="SYMBOL=SIZE",
        help="size of a symbolic dim, wherever it stands",
    )


def input_request(options: argparse.Namespace) -> InputRequest:
    """Build the input request from the flags of `add_inputs`.

    Raises:
        UsageError: If one of them can't be parsed.
    """
    return InputRequest.from_text(options.shapes, options.dim, options.input_range, options.seed)


def _engine_names() -> Iterable[str]:
    from qdqtune.engines import _registry as registry

    return [registry.AUTO, *registry.engines()]


def _dialect_names() -> Iterable[str]:
    from qdqtune.engines import _registry as registry  # importing the dialects takes long

    entries = registry.engines().values()
    return sorted({choice.name for entry in entries for choice in entry.dialects})


NAMES: Names = {"engine": _engine_names, "dialect": _dialect_names}
"""Values of flags that are looked up only when help is shown."""


C = TypeVar("C")

# How repeatable flags are parsed.
_LISTS: dict[Kind, dict[str, Any]] = {
    KEY_VALUES: {"action": AssignmentsAction},
    REGEXES: {"action": ListAction, "nargs": "+"},
    SHAPES: {"action": InputItemsAction, "item": "shape"},
    WILDCARDS: {"action": ListAction},
}


class SaidOnce(argparse.Action):
    """Stores a value that may be repeated, under any spelling of the flag, but not contradicted."""

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
    parser: argparse.ArgumentParser, config_class: type, *, without: Collection[str] = ()
) -> None:
    """Add a flag for each field of a config that has one, if it isn't there yet; see `config_from`.

    Args:
        parser: The parser to add them to, in one group per part of the config.
        config_class: The config.
        without: Fields to leave out.
    """
    exclusive: dict[str, argparse._ActionsContainer] = {}
    for title, options in parts_of(config_class):
        for each, known in options:
            flags = [flag for flag in known.flags if flag not in parser._option_string_actions]
            if not flags or each.name in without:
                continue
            group: argparse._ActionsContainer = group_titled(parser, known.title or title)
            if known.exclusive:
                if known.exclusive not in exclusive:
                    exclusive[known.exclusive] = group.add_mutually_exclusive_group()
                group = exclusive[known.exclusive]
            _add_flag(group, each, known, flags)


def _add_flag(
    group: argparse._ActionsContainer, each: Field[Any], known: Option, flags: Collection[str]
) -> None:
    kind = known.kind
    if kind is INPUTS:
        add_input_items(group)
        return
    how: dict[str, Any] = {"default": each.default, "metavar": kind.metavar}
    if kind is SWITCH:
        how = {"action": _Switch}
    elif kind.collect is not None:
        how |= {"default": [], "type": typed(kind), **_LISTS[kind]}
    else:
        how |= {
            "choices": kind.choices or None,
            "type": kind.read if kind.choices else typed(kind),
        }
        if kind.bare is not None:
            how |= {"nargs": "?", "const": kind.bare}
        if sum(flag.startswith("--") for flag in known.flags) > 1:
            how["action"] = SaidOnce
    if known.mode or ("action" in how and issubclass(how["action"], SaidOnce)):
        how["default"] = argparse.SUPPRESS  # to tell whether the flag was given
    text = help_text(each, known).replace("%", "%%")
    group.add_argument(*flags, dest=known.dest, help=text, **how)


def typed(kind: Kind) -> Callable[[str], Any]:
    """Return a converter of arguments to a type; its error says what the value must be."""

    def convert(text: str) -> Any:
        try:
            return kind.from_text(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


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
        if each.name in known or not hasattr(options, one.dest):
            continue
        value = getattr(options, one.dest)
        if one.kind is INPUTS:
            request = input_request(options)
            said[each.name] = None if request == InputRequest(seed=request.seed) else request
        elif one.kind.collect is None:
            said[each.name] = value
        elif value:
            said[each.name] = one.kind.collect(value)
    check_mode(config_class, said | known)
    return config_class(**said, **known)


natural, positive, seconds = typed(whole(0)), typed(whole(1)), typed(SECONDS)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every command."""
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
    group = parser.add_argument_group("limits (see docs/reliability.md)")
    group.add_argument(
        "--max_memory",
        type=_memory,
        metavar="SIZE",
        help="memory limit of each process, such as 4GiB (default: the free memory, less a "
        "reserve)",
    )
    group.add_argument(
        "--timeout",
        type=seconds,
        metavar="TIME",
        help="time limit of one step, such as opening a model or a block of runs: 300, 90s, 30m or "
        "2h (default: the engine's)",
    )


def _memory(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add `--format`."""
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="how results are printed"
    )


def add_output(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add `-o/--output` and `--force`."""
    parser.add_argument(
        "-o", "--output", required=required, metavar="OUT", help="the file to write"
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")


def add_dialect(group: argparse._ActionsContainer, engine: str) -> None:
    """Add `--engine`, `--dialect` and `--quant_type` to a command that need not run the model.

    Args:
        group: The argument group to add them to.
        engine: What the engine is for.
    """
    group.add_argument("--engine", default="auto", help=f"{engine} (default: the one usable here)")
    group.add_argument(
        "--dialect", metavar="NAME", help="a dialect by its name (default: the engine's own here)"
    )
    group.add_argument(
        "--quant_type", default="int8", choices=QUANT_TYPES, help="the type (default: %(default)s)"
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add `--engine`, `--threads` and `--engine_option`, if they aren't there yet."""
    add_config(parser, EngineConfig)


def add_calibration(parser: argparse.ArgumentParser) -> None:
    """Add the flags that set where ranges come from."""
    add_config(parser, CalibrationConfig)


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add `--runs`."""
    parser.add_argument(
        "--runs",
        type=positive,
        metavar="N",
        help="timed runs per model (default: as many as take a few seconds per model)",
    )


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the flags that set a model's inputs; `input_request` reads them."""
    add_config(parser, InputConfig)
