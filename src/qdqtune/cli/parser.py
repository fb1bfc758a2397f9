"""Parsers whose errors are short: what is wrong, what may have been meant, where help is."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from qdqtune.report.tables import message as printable_lines

_CHOICE = re.compile(r"invalid choice: '?([^' ]+)'? \(.*?choose from (.*)\)", re.DOTALL)
_UNKNOWN = "unrecognized arguments: "
_USAGE = 2


class Parser(argparse.ArgumentParser):
    """A parser that points to its help instead of printing all flags above an error."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the command line, and end."""
        meant = self._meant(message)
        hint = f"Did you mean {meant}? " if meant else ""
        text = f"error: {message}\n       {hint}See {self.prog} --help."
        self.exit(_USAGE, printable_lines(text) + "\n")

    def _meant(self, complaint: str) -> str:
        choice = _CHOICE.search(complaint)
        if choice is not None:
            return _closest(choice[1], re.findall(r"[\w.-]+", choice[2]))
        unknown = complaint.partition(_UNKNOWN)[2].split()
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        flags = (word.partition("=")[0] for word in unknown if word.startswith("-"))
        return " and ".join(filter(None, (_closest(flag, known) for flag in flags)))


class CommandParser(Parser):
    """The parser of a subcommand, which knows best what its unknown flags may mean."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; nobody else knows what is unknown here."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(_UNKNOWN + " ".join(unknown))
        return found, unknown


def _closest(word: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), "")
