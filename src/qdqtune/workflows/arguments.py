"""Validate the arguments of public functions before anything runs.

An argument name means the same in all functions, so its type is declared here once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qdqtune.options import FUNCTION, NAME, PATH, SWITCH, WILDCARDS, Kind, whole
from qdqtune.records.errors import UsageError


def _optional(kind: Kind) -> Kind:
    return replace(kind, must_be=f"{kind.must_be}, or None", takes_none=True)


_TEXT = replace(NAME, must_be="a text")
_TEXTS = replace(WILDCARDS, must_be="a list of texts")
_OPTIONS = Kind(
    "a dict of options by name",
    lambda value: isinstance(value, Mapping) and all(isinstance(each, str) for each in value),
)
_POSITIVE = whole(1)

_SEE = "docs/python.md says what goes in."

_KINDS = {
    "batch_size": _optional(_POSITIVE),
    "by_shape": SWITCH,
    "calibration_samples": _optional(_POSITIVE),
    "candidate": _TEXT,
    "dialect": _optional(_TEXT),
    "engine": _TEXT,
    "engine_options": _optional(_OPTIONS),
    "folder": PATH,
    "force": SWITCH,
    "graph_json": _optional(PATH),
    "max_sequence_size": _POSITIVE,
    "nodes": _TEXTS,
    "ops": _TEXTS,
    "output": _optional(PATH),
    "placement": _optional(PATH),
    "progress": _optional(FUNCTION),
    "quant_type": _TEXT,
    "runs": _optional(_POSITIVE),
    "samples": _optional(_POSITIVE),
    "save_placement": _optional(PATH),
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
        kind = _KINDS[name]
        if not (kind.takes_none if value is None else kind.accepts(value)):
            raise wrong_type(name, value, kind.must_be)


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
