"""Settings of an autotuner and the presets of its modes, without heavy imports."""

from __future__ import annotations

import argparse
import difflib
import logging
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qdqtune.config import WORKFLOWS, wildcards_in
from qdqtune.options import SWITCH, Kind, number, one_of, whole
from qdqtune.records._errors import AutotunerError, UsageError

_log = logging.getLogger(__name__)

#: Quant types, with the least and the greatest zero point of each.
ZERO_POINTS = {"int8": (-128, 127), "uint8": (0, 255), "fp8": (0, 0)}

#: Float types that a DequantizeLinear may give.
DQ_DTYPES = ("float16", "float32", "bfloat16")


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= 1.0


# What each setting may be; the zero point depends on the quant type.
_KINDS = {
    "default_quant_type": one_of(tuple(ZERO_POINTS)),
    "default_dq_dtype": one_of(DQ_DTYPES),
    "verbose": SWITCH,
    "default_q_scale": number("a number above 0", math.ulp(0.0)),
    "performance_threshold": number("a number from 0 up", 0.0),
    "top_percent_to_mutate": Kind("a number from 0 to 1", _is_share),
    "maximum_sequence_region_size": whole(1),
    "minimum_topdown_search_size": whole(1),
    "minimum_schemes_to_mutate": whole(0),
    "maximum_mutations": whole(0),
    "maximum_generation_attempts": whole(1),
    "pattern_cache_minimum_distance": whole(0),
    "pattern_cache_max_entries_per_pattern": whole(1),
}


@dataclass
class Config:
    """Settings of an autotuner; invalid values are refused.

    Attributes:
        verbose: Whether to log each step.
        performance_threshold: Speedup that a final model must reach to be worth deploying. Only
            workflows use it; the search itself takes every gain.
        default_q_scale: Scale of activations without a known range.
        default_q_zero_point: Their zero point. With 0, ranges of tensors that can't be negative,
            such as those behind a Relu, begin at 0 in dialects with asymmetric ranges.
        default_quant_type: `int8`, `uint8` or `fp8`.
        default_dq_dtype: Float type of scales where the model doesn't determine it. Tensors of
            unknown type are not insertion points, so every scale has the type of its tensor.
        maximum_sequence_region_size: Maximum number of nodes in a sequence inside a composite
            region.
        minimum_topdown_search_size: Regions with fewer nodes are not divided.
        top_percent_to_mutate: Share of the measured schemes, fastest first, that new ones are
            derived from.
        minimum_schemes_to_mutate: Minimum number of those schemes; the fastest is always included.
        maximum_mutations: Maximum number of points in which a new scheme differs; 0 allows only
            schemes from the cache, imported ones, and the one with all points.
        maximum_generation_attempts: Number of attempts to generate a new scheme.
        pattern_cache_minimum_distance: Minimum number of points in which cached schemes differ.
        pattern_cache_max_entries_per_pattern: Maximum number of cached schemes per pattern.

    Raises:
        AutotunerError: If a setting is invalid.
    """

    verbose: bool = False
    performance_threshold: float = 1.02
    default_q_scale: float = 0.1
    default_q_zero_point: int = 0
    default_quant_type: str = "int8"
    default_dq_dtype: str = "float32"
    maximum_sequence_region_size: int = 10
    minimum_topdown_search_size: int = 10
    top_percent_to_mutate: float = 0.1
    minimum_schemes_to_mutate: int = 10
    maximum_mutations: int = 3
    maximum_generation_attempts: int = 100
    pattern_cache_minimum_distance: int = 4
    pattern_cache_max_entries_per_pattern: int = 32

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check that every setting is valid; settings may have changed since construction.

        Raises:
            AutotunerError: If one is not.
        """
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if not (isinstance(value, str | int | float) and kind.accepts(value)):
                raise AutotunerError(f"{name} is {value!r}.", f"It must be {kind.must_be}.")
        least, most = ZERO_POINTS[self.default_quant_type]
        zero_point = self.default_q_zero_point
        if type(zero_point) is not int or not least <= zero_point <= most:
            raise AutotunerError(
                f"default_q_zero_point is {zero_point!r}.",
                f"It must be a whole number from {least} to {most} for {self.default_quant_type}.",
            )

    def to_dict(self) -> dict[str, Any]:
        """Return every setting by name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Config:
        """Build a config from a mapping; missing settings have their defaults.

        Raises:
            AutotunerError: If the mapping has an unknown key, or a setting is invalid.
        """
        known = [each.name for each in fields(cls)]
        if not isinstance(body, Mapping):
            raise AutotunerError(f"{body!r} holds no settings.", "Settings are a mapping.")
        for name in body:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known)}."
                raise AutotunerError(f"There is no setting {name!r}.", hint)
        return cls(**body)


#: Schemes per region, and how often each is run, by mode.
MODE_PRESETS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "quick": {"schemes_per_region": 30, "warmup_runs": 10, "timing_runs": 50},
        "default": {"schemes_per_region": 50, "warmup_runs": 50, "timing_runs": 100},
        "extensive": {"schemes_per_region": 200, "warmup_runs": 50, "timing_runs": 200},
    }
)


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
    mode, modes = getattr(args, "mode", "default"), (*MODE_PRESETS, *WORKFLOWS)
    if mode not in modes:
        raise UsageError(f"There is no mode {mode!r}.", f"Modes: {', '.join(modes)}.")
    for name, value in MODE_PRESETS["default" if mode in WORKFLOWS else mode].items():
        destination = "num_schemes" if name == "schemes_per_region" else name
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
    return None if path is None else wildcards_in(path)
