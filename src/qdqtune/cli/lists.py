"""Flags that take several values: comma-separated, the flag repeated, or both."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

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
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or ()), *new])

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
