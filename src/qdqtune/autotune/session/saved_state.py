"""From an autotuner to its state file, and back."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Protocol

from qdqtune.autotune.config import Config
from qdqtune.autotune.errors import AutotunerError, NewerVersionError
from qdqtune.autotune.patterns.pattern_cache import PatternCache
from qdqtune.autotune.patterns.pattern_schemes import PatternSchemes
from qdqtune.autotune.patterns.state_file import (
    SavedState,
    pattern_cache_path,
    read_state,
    write_state,
)
from qdqtune.autotune.session.tuned_pattern import TunedPattern
from qdqtune.qdq.dialect import Dialect

_log = logging.getLogger(__name__)


class Resumable(Protocol):
    """What a state file is made from."""

    config: Config
    profiled_patterns: list[PatternSchemes]
    baseline_latency_ms: float | None
    pattern_cache: PatternCache | None

    @property
    def current_profile_pattern_schemes(self) -> PatternSchemes | None:
        """What is being profiled."""

    @property
    def fingerprint(self) -> str:
        """What tells the model from others."""

    @property
    def dialect(self) -> Dialect:
        """How Q/DQ is written."""


def save_from(
    tuner: Resumable, path: str | os.PathLike[str], unfinished: str | None = None
) -> None:
    """Write a state file, and the pattern cache beside it.

    Args:
        tuner: The autotuner.
        path: Where to write.
        unfinished: Signature of a pattern that is to go on, if none is being profiled.
    """
    current = tuner.current_profile_pattern_schemes
    write_state(
        path,
        baseline_latency_ms=tuner.baseline_latency_ms,
        config=tuner.config,
        patterns=[*tuner.profiled_patterns, *([current] if current is not None else [])],
        current_signature=current.pattern_signature if current is not None else unfinished,
        header=_header(tuner),
    )
    if tuner.pattern_cache is not None:
        tuner.pattern_cache.save(pattern_cache_path(path))


def load_into(
    tuner: Resumable, patterns: Mapping[str, TunedPattern], path: str | os.PathLike[str]
) -> str | None:
    """Give an autotuner what a state file says.

    Args:
        tuner: The autotuner.
        patterns: The patterns of its model, by signature.
        path: The state file.

    Returns:
        Signature of the pattern that was being profiled, if one was: it is not done.

    Raises:
        FileNotFoundError: If there is no such file.
        AutotunerError: If it is damaged, or of another model, quant type or dialect.
    """
    state = read_state(path)
    _check_same(tuner, state, path)
    by_structure = {tuned.plain.signature: tuned for tuned in patterns.values()}
    found, unknown = [], 0
    for each in state.patterns:
        tuned = patterns.get(each.pattern_signature) or by_structure.get(each.pattern_signature)
        if tuned is None:
            unknown += 1
        else:
            found.append(PatternSchemes(each.pattern, tuned.fitting(each.schemes)))
    if unknown:
        _log.warning("%s: %d patterns are not among the model's regions", path, unknown)
    tuner.profiled_patterns = found
    if state.baseline_latency_ms is not None:
        tuner.baseline_latency_ms = state.baseline_latency_ms
    _load_cache(tuner, path)
    return state.current_signature


def _load_cache(tuner: Resumable, path: str | os.PathLike[str]) -> None:
    """The cache only says what to try first: a damaged one is no reason to stop."""
    assert tuner.pattern_cache is not None
    try:
        tuner.pattern_cache.merge(PatternCache.load(pattern_cache_path(path)), False)
    except FileNotFoundError:
        pass
    except NewerVersionError:
        raise  # it would be written over
    except AutotunerError as error:
        _log.warning("the pattern cache is left out: %s", error.what)


def _header(tuner: Resumable) -> dict[str, Any]:
    return {
        "quant_type": tuner.config.default_quant_type,
        "dialect": tuner.dialect.name,
        "model": tuner.fingerprint,
    }


def _check_same(tuner: Resumable, state: SavedState, path: str | os.PathLike[str]) -> None:
    if not state.header:
        _log.warning("%s does not say which model it belongs to: it is taken for this one", path)
    saved = {"quant_type": state.config.default_quant_type, **state.header}
    for field, own in _header(tuner).items():
        if saved.get(field, own) != own:
            raise AutotunerError(
                f"{path} is of another {field}: {saved[field]!r}, not {own!r}.",
                "Use the state file of this model and these settings, or start a new one.",
            )
