"""Validate the arguments of public functions before anything runs.

An argument name means the same in all functions, so its type is declared here once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import NamedTuple

from qdqtune.records.errors import UsageError


class _Kind(NamedTuple):
    """The expected type of an argument, in words and as a check."""

    words: str
    fits: Callable[[object], bool]


def _optional(kind: _Kind) -> _Kind:
    return _Kind(f"{kind.words}, or None", lambda value: value is None or kind.fits(value))


def _is_texts(value: object) -> bool:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return is_list and all(isinstance(each, str) for each in value)  # type: ignore[attr-defined]


def _is_options(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(each, str) for each in value)


_TEXT = _Kind("a text", lambda value: isinstance(value, str))
_TEXTS = _Kind("a list of texts", _is_texts)
_PATH = _Kind("a path", lambda value: isinstance(value, str | os.PathLike))
_SWITCH = _Kind("True or False", lambda value: isinstance(value, bool))
_FUNCTION = _Kind("a function", callable)
_OPTIONS = _Kind("a dict of options by name", _is_options)
_POSITIVE = _Kind(
    "a whole number from 1 up",
    lambda value: isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1,
)


_SEE = "docs/python.md says what goes in."

_KINDS = {
    "batch_size": _optional(_POSITIVE),
    "by_shape": _SWITCH,
    "calibration_samples": _optional(_POSITIVE),
    "candidate": _TEXT,
    "dialect": _optional(_TEXT),
    "engine": _TEXT,
    "engine_options": _optional(_OPTIONS),
    "folder": _PATH,
    "force": _SWITCH,
    "graph_json": _optional(_PATH),
    "max_sequence_size": _POSITIVE,
    "nodes": _TEXTS,
    "ops": _TEXTS,
    "output": _optional(_PATH),
    "placement": _optional(_PATH),
    "progress": _optional(_FUNCTION),
    "quant_type": _TEXT,
    "runs": _optional(_POSITIVE),
    "samples": _optional(_POSITIVE),
    "save_placement": _optional(_PATH),
    "tensors": _TEXTS,
    "threads": _optional(_POSITIVE),
    "why": _optional(_TEXT),
}


def check_arguments(**arguments: object) -> None:
    """Check that arguments have the types that their names imply.

    Raises:
        UsageError: If one has not; it names the argument, its value and the expected type.
    """
    for name, value in arguments.items():
        if not _KINDS[name].fits(value):
            raise wrong_type(name, value, _KINDS[name].words)


def wrong_type(name: str, value: object, expected: str) -> UsageError:
    """Build the error about an argument.

    Args:
        name: Its name.
        value: Its value.
        expected: The expected type, in words.
    """
    shown = f"{value!r:.80}"
    is_plain = value is None or isinstance(value, int | float | str)
    what = shown if is_plain else f"a {type(value).__name__}: {shown}"
    return UsageError(f"{name} must be {expected}, not {what}.", _SEE)
