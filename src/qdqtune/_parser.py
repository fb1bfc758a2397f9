"""The argument parser of every command: spellings and lists of flags, short errors, help."""

from __future__ import annotations

import argparse
import difflib
import functools
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from qdqtune.records._inputs import is_item
from qdqtune.records._printable import message as printable_lines

Names = Mapping[str, Callable[[], Iterable[str]]]

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_ASSIGNMENT = re.compile(r"\s*[A-Za-z_][\w.]*=")


class ListAction(argparse.Action):
    """Collects values into a list; `type`, if given, converts each one."""

    def __init__(
        self,
        option_strings: list[str],
        dest: str,
        type: Callable[[str], Any] | None = None,  # noqa: A002, argparse's own name
        **others: Any,
    ) -> None:
        super().__init__(option_strings, dest, **others)
        self._convert = type or str

    def split(self, text: str) -> list[str]:
        """Split one argument into its values."""
        return split_commas(text)

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        """Append the values of one or more arguments to the list."""
        texts = values if isinstance(values, list) else [values]
        new = [self._converted(value) for text in texts for value in self.split(text)]
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest, None) or ()), *new])

    def _converted(self, value: str) -> Any:
        try:
            return self._convert(value)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        except ValueError:
            raise argparse.ArgumentError(self, f"{value!r} can't be read") from None


class AssignmentsAction(ListAction):
    """Collects `KEY=VALUE` pairs; a comma inside a value separates only if `KEY=` follows it."""

    def split(self, text: str) -> list[str]:
        """Split one argument into its assignments."""
        pairs: list[str] = []
        for part in split_commas(text) or [text]:
            if pairs and not _ASSIGNMENT.match(part):
                pairs[-1] += f",{part}"
            else:
                pairs.append(part)
        return pairs


class InputItemsAction(ListAction):
    """Collects shapes, dims or ranges as typed; `InputRequest.from_text` splits them.

    Attributes:
        item: ``shape``, ``dim`` or ``range``; further items may follow without the flag.
    """

    def __init__(self, option_strings: list[str], dest: str, item: str, **others: Any) -> None:
        super().__init__(option_strings, dest, **others)
        self.item = item

    def split(self, text: str) -> list[str]:
        """Return the whole argument: where an item ends depends on the names in it."""
        return [text]


def split_commas(text: str) -> list[str]:
    r"""Split `a,b,c`; strip spaces around values and drop empty ones.

    A comma inside brackets, as in the regular expression `x{1,2}`, is part of the value, and so is
    one after a backslash.
    """
    values, closing = [""], [""]
    for part in re.findall(r"\\.|.", text, re.DOTALL):
        if part == "," and closing[-1] == "":
            values.append("")
            continue
        if part == closing[-1]:
            closing.pop()
        elif part in _CLOSING and closing[-1] != "]":
            closing.append(_CLOSING[part])
        values[-1] += part
    if closing[-1]:  # an unbalanced bracket is just part of a name
        values = re.split(r"(?<!\\),", text)
    return [value.strip().replace("\\,", ",") for value in values if value.strip()]


_USAGE = 2


class DashedValueAction(argparse._StoreAction):
    """Stores a value that may begin with dashes, such as a nested command line."""


class Parser(argparse.ArgumentParser):
    """A parser that accepts dashes for underscores in flags, and suggests corrections.

    Args:
        examples: Command lines shown at the end of the help.
        names: Values that a flag accepts, by its dest: looked up only when help is shown.
        others: Keyword arguments of `ArgumentParser`.
    """

    def __init__(
        self, *, examples: Sequence[str] = (), names: Names | None = None, **others: Any
    ) -> None:
        formatter = functools.partial(_HelpFormatter, names=names or {})
        super().__init__(formatter_class=formatter, **others)
        self.examples = tuple(examples)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the arguments; unknown ones are an error, since no other parser takes them."""
        given = sys.argv[1:] if args is None else list(args)
        own = len(given)
        if self._subparsers is not None:  # the command's own parser handles the rest
            own = next((n for n, word in enumerate(given) if not word.startswith("-")), own)
        given = self._normalized(given[:own]) + given[own:]
        found, unknown = super().parse_known_args(given, namespace)
        if unknown:
            self._refuse(unknown)
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the command line, and exit."""
        text = f"error: {message}\n       See {self.prog} --help."
        self.exit(_USAGE, printable_lines(text) + "\n")

    def format_help(self) -> str:
        """Format the help: one line of usage, flags (engine-specific ones last), examples."""
        if self._subparsers is None:
            from qdqtune.options import ENGINE_SPECIFIC

            self.usage = self._short_usage().replace("%", "%%")
            self._action_groups.sort(key=lambda group: group.title == ENGINE_SPECIFIC)
        lines = "".join(f"  {example}\n" for example in self.examples)
        return super().format_help() + (f"\nexamples:\n{lines}" if lines else "")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        what, listed = f"unknown value {value}", f" (one of: {', '.join(names)})"
        near = _closest(str(value), names)
        if isinstance(action, argparse._SubParsersAction):
            what, listed = f"unknown command {value}", listed if not near else ""
            action = None  # type: ignore[assignment]  # whose name would come first
        raise argparse.ArgumentError(action, what + _did_you_mean(near) + listed)

    def _normalized(self, arguments: Sequence[str]) -> list[str]:
        """Normalize flags to the declared spelling: `--quant-type` becomes `--quant_type`.

        A value that may begin with dashes is joined to its flag, and so are further input items
        that follow one: `--shapes a:1x2 b:1x3`.
        """
        normal: list[str] = []
        unknown: list[str] = []
        action: argparse.Action | None = None
        waiting = iter(enumerate(arguments))
        for position, argument in waiting:
            if argument == "--":
                normal += arguments[position:]
                break
            if argument.startswith("--"):
                name, equals, value = argument.partition("=")
                flag = _underscored(name)
                actions = self._meant_by(flag)
                if not actions and " " not in argument:
                    unknown.append(argument)
                action = actions[0] if len(actions) == 1 else None
                if isinstance(action, DashedValueAction) and not equals:
                    _, following = next(waiting, (0, None))
                    equals, value = ("", "") if following is None else ("=", following)
                argument = flag + equals + value if actions else argument
            elif isinstance(action, InputItemsAction) and not _is_flag_alone(normal[-1]):
                if is_item(argument, action.item):
                    normal[-1] += f",{argument}"
                    continue
                action = None
            normal.append(argument)
        if unknown:
            self._refuse(unknown)
        return normal

    def _meant_by(self, flag: str) -> list[argparse.Action]:
        """Return the actions that a flag or its prefix can stand for."""
        known = self._option_string_actions
        if flag in known:
            return [known[flag]]
        actions = {id(each): each for name, each in known.items() if name.startswith(flag)}
        return list(actions.values())

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Report unknown arguments, with suggestions."""
        flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if not flags:
            self.error(f"unexpected argument: {' '.join(unknown)}")
        known = [
            name
            for name, action in self._option_string_actions.items()
            if name.startswith("--") and action.help != argparse.SUPPRESS
        ]
        meant = {flag: _closest(_underscored(flag), known) for flag in flags}
        if len(meant) == 1:
            placed = "" if self._subparsers is None else "; flags follow the command"
            self.error(f"unknown flag {flags[0]}{_did_you_mean(meant[flags[0]]) or placed}")
        guesses = (
            f"{flag} (did you mean {near}?)" if near else flag for flag, near in meant.items()
        )
        self.error(f"unknown flags {', '.join(guesses)}")

    def _short_usage(self) -> str:
        """Format the usage without optional arguments."""
        formatter = self._get_formatter()
        words = [self.prog]
        for action in self._actions:
            if action.required and action.option_strings:
                metavar = formatter._get_default_metavar_for_optional(action)
                words += [action.option_strings[0], formatter._format_args(action, metavar)]
            elif not action.option_strings:
                metavar = formatter._get_default_metavar_for_positional(action)
                words.append(formatter._format_args(action, metavar))
        return " ".join([*words, "[flags]"])


class _HelpFormatter(argparse.HelpFormatter):
    """Shows lists as they are typed, aliases on one line, and the names that an option accepts."""

    def __init__(self, prog: str, names: Names) -> None:
        super().__init__(prog)
        self._names = names

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        if isinstance(action, ListAction):
            return f"{action.metavar or default_metavar},..."
        return super()._format_args(action, default_metavar)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        metavar = self._get_default_metavar_for_optional(action)
        return f"{', '.join(action.option_strings)} {self._format_args(action, metavar)}"

    def _expand_help(self, action: argparse.Action) -> str:
        text = super()._expand_help(action)
        names = self._names.get(action.dest)
        return f"{text}; one of {', '.join(names())}" if names else text


def group_titled(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Return the group of flags with a title, creating it if needed."""
    found = (group for group in parser._action_groups if group.title == title)
    return next(found, None) or parser.add_argument_group(title)


def _underscored(flag: str) -> str:
    return "--" + flag[2:].replace("-", "_") if flag.startswith("--") else flag


def _is_flag_alone(argument: str) -> bool:
    return argument.startswith("--") and "=" not in argument


def _did_you_mean(name: str) -> str:
    return f"; did you mean {name}?" if name else ""


def _closest(word: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(word.lower(), list(known), n=1)), "")
