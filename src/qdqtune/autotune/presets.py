"""Mode presets and helpers for an autotuner's command line, without heavy imports."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qdqtune.config import WORKFLOWS
from qdqtune.records.errors import UsageError
from qdqtune.records.untrusted_files import read_text

_log = logging.getLogger(__name__)

#: Schemes per region, and how often each is run, by mode.
MODE_PRESETS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "quick": {"schemes_per_region": 30, "warmup_runs": 10, "timing_runs": 50},
        "default": {"schemes_per_region": 50, "warmup_runs": 50, "timing_runs": 100},
        "extensive": {"schemes_per_region": 200, "warmup_runs": 50, "timing_runs": 200},
    }
)

# The attributes of parsed arguments that a preset sets.
_DESTINATIONS = {
    "schemes_per_region": "num_schemes",
    "warmup_runs": "warmup_runs",
    "timing_runs": "timing_runs",
}


class StoreWithExplicitFlag(argparse.Action):
    """Stores a value and records that the user gave it, even if it equals the default.

    Args:
        option_strings: The flag's spellings.
        dest: The attribute for the value.
        explicit_attr: The attribute that records that the flag was given.
        kwargs: Further arguments of `argparse.Action`.
    """

    def __init__(
        self, option_strings: Sequence[str], dest: str, explicit_attr: str, **kwargs: Any
    ) -> None:
        self.explicit_attr = explicit_attr
        super().__init__(option_strings, dest, **kwargs)

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        """Store the value."""
        setattr(namespace, self.dest, values)
        setattr(namespace, self.explicit_attr, True)


def apply_mode_presets(args: argparse.Namespace) -> None:
    """Apply the mode's values to everything that no flag set.

    Args:
        args: The parsed arguments: `mode`, `num_schemes`, `warmup_runs`, `timing_runs`, and
            `_explicit_<name>` for those that the user gave.

    Raises:
        UsageError: If there is no such mode.
    """
    mode = getattr(args, "mode", "default")
    if mode not in (*MODE_PRESETS, *WORKFLOWS):
        raise UsageError(
            f"There is no mode {mode!r}.", f"Modes: {', '.join((*MODE_PRESETS, *WORKFLOWS))}."
        )
    for name, value in MODE_PRESETS["default" if mode in WORKFLOWS else mode].items():
        destination = _DESTINATIONS[name]
        if not getattr(args, f"_explicit_{destination}", False):
            setattr(args, destination, value)


def preset_for_schemes(schemes: int) -> str:
    """Return the most thorough preset with at most this many schemes per region; at least quick.

    Args:
        schemes: Schemes per region.
    """
    fitting = [
        name for name, numbers in MODE_PRESETS.items() if numbers["schemes_per_region"] <= schemes
    ]
    return fitting[-1] if fitting else next(iter(MODE_PRESETS))


def validate_file_path(path: str | os.PathLike[str] | None, description: str) -> Path | None:
    """Return the path if it is a file; otherwise exit with code 1.

    Args:
        path: The path; None if not given.
        description: What the file is, for the message.
    """
    if path is None:
        return None
    file = Path(path)
    if not file.is_file():
        _log.error("%s does not exist: %s", description, file)
        sys.exit(1)
    return file


def get_node_filter_list(path: str | os.PathLike[str] | None) -> list[str] | None:
    """Read wildcard patterns for node names, one per line; skip blank lines and `#` comments.

    Args:
        path: The file; None if there is none.

    Returns:
        The patterns; None without a file.

    Raises:
        UsageError: If the file can't be read, or contains no pattern.
    """
    if path is None:
        return None
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(
            f"The node filter list {path} can't be read: {why}.",
            "It is a text file with one pattern per line.",
        ) from None
    lines = (line.strip() for line in text.splitlines())
    patterns = [line for line in lines if line and not line.startswith("#")]
    if not patterns:
        raise UsageError(
            f"The node filter list {path} holds no pattern.",
            "Write one wildcard per line, such as layer1.*, or leave the list out to tune every "
            "region.",
        )
    return patterns
