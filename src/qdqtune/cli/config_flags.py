"""Build flags from configs, and configs from parsed arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from dataclasses import Field
from typing import Any, TypeVar

from qdqtune.cli.input_flags import add_input_items, input_request
from qdqtune.cli.lists import AssignmentsAction, InputItemsAction, ListAction
from qdqtune.cli.parser import group_titled
from qdqtune.config import INPUTS, SHAPES
from qdqtune.options import (
    KEY_VALUES,
    REGEXES,
    SWITCH,
    WILDCARDS,
    Kind,
    Option,
    check_mode,
    help_text,
    options_of,
    parts_of,
)
from qdqtune.records.inputs import InputRequest

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
