"""The measurements of an autotuner as a readable file: `autotuner_state.yaml`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtune.records._untrusted_files import SCHEMAS
from qdqtune.search._config import Config
from qdqtune.search._errors import AutotunerError
from qdqtune.search.patterns._pattern_cache import PatternSchemes
from qdqtune.search.patterns._scheme import LARGEST_MS
from qdqtune.search.patterns._yaml_files import Lines, YamlFile, read_yaml, write_yaml

_log = logging.getLogger(__name__)

KIND = "autotuner_state"
SCHEMA = SCHEMAS[KIND]
_MAKE_AGAIN = "Remove the file to start over; the pattern cache beside it can still be used."
_CURRENT = "current_profile_pattern_schemes_signature"


@dataclass(frozen=True)
class SavedState:
    """The content of a state file.

    Attributes:
        baseline_latency_ms: Latency of the float model, if it was measured.
        config: The settings that it was written with.
        patterns: The schemes that were tried, by pattern.
        current_signature: The pattern that was being profiled, if any.
        header: What the measurements depend on: the model's fingerprint, the quant type, the
            engine. Empty in files written by other tools.
        measurements: Lines of a run's journal, from which another run can resume; empty if no run
            wrote them.
    """

    baseline_latency_ms: float | None
    config: Config
    patterns: tuple[PatternSchemes, ...]
    current_signature: str | None
    header: Mapping[str, Any]
    measurements: tuple[str, ...] = ()


def write_state(
    path: str | os.PathLike[str],
    *,
    baseline_latency_ms: float | None,
    config: Config,
    patterns: Iterable[PatternSchemes],
    current_signature: str | None = None,
    header: Mapping[str, Any] | None = None,
    measurements: Iterable[str] = (),
) -> None:
    """Write a state file atomically.

    Args:
        path: The file; an existing one is replaced.
        baseline_latency_ms: Latency of the float model, if it was measured.
        config: The settings.
        patterns: The schemes that were tried.
        current_signature: The pattern that is being profiled, if any.
        header: What the measurements depend on, as strings and numbers.
        measurements: Lines of a run's journal.

    Raises:
        OutputError: If it can't be written.
    """
    body = {
        "kind": KIND,
        "schema": SCHEMA,
        "header": dict(header or {}),
        "baseline_latency_ms": None if baseline_latency_ms is None else float(baseline_latency_ms),
        _CURRENT: current_signature,
        "config": config.to_dict(),
        "patterns": [each.to_dict() for each in patterns],
    }
    if text := "".join(f"{line}\n" for line in measurements):
        body["measurements"] = Lines(text)
    write_yaml(path, body)


def read_state(path: str | os.PathLike[str]) -> SavedState:
    """Read a state file, from qdqtune or from a tool that writes the same keys.

    Raises:
        FileNotFoundError: If there is no such file.
        AutotunerError: If it is not a state file, is damaged, or was written by a newer version.
    """
    file = read_yaml(path, "an autotuner state", _MAKE_AGAIN)
    file.check_kind(KIND, _MAKE_AGAIN)
    body = file.body
    if not isinstance(body.get("patterns"), list):
        raise _broken(file, "there is no list of patterns", "patterns")
    current = body.get(_CURRENT)
    if not isinstance(current, str | None):
        raise _broken(file, f"{current!r} is no signature", _CURRENT)
    header = body.get("header") or {}
    if not isinstance(header, dict):
        raise _broken(file, "it is no mapping", "header")
    measurements = body.get("measurements") or ""
    if not isinstance(measurements, str):
        raise _broken(file, "they are no text", "measurements")
    return SavedState(
        _baseline(file),
        _config(file),
        tuple(_patterns(file)),
        current or None,
        header,
        tuple(measurements.splitlines()),
    )


def pattern_cache_path(state_path: str | os.PathLike[str]) -> Path:
    """Return the path of a state file's pattern cache: `<base>_pattern_cache<ext>`."""
    path = Path(state_path)
    return path.with_name(f"{path.stem}_pattern_cache{path.suffix}")


def _baseline(file: YamlFile) -> float | None:
    found = file.body.get("baseline_latency_ms")
    if found is None:
        return None
    number = isinstance(found, int | float) and not isinstance(found, bool)
    if not number or not 0 < found < LARGEST_MS:
        raise _broken(file, f"{found!r} is no latency", "baseline_latency_ms")
    return float(found)


def _config(file: YamlFile) -> Config:
    found = file.body.get("config") or {}
    try:
        if isinstance(found, dict):
            unknown = found.keys() - Config().to_dict().keys()
            if unknown:
                names = ", ".join(sorted(map(str, unknown)))
                _log.warning("%s: unknown settings are left out: %s", file.where("config"), names)
            found = {name: value for name, value in found.items() if name not in unknown}
        return Config.from_dict(found)
    except AutotunerError as error:
        raise _broken(file, error.what, "config") from None


def _patterns(file: YamlFile) -> Iterable[PatternSchemes]:
    for number, entry in enumerate(file.body["patterns"]):
        try:
            yield PatternSchemes.from_dict(entry)
        except AutotunerError as error:
            raise _broken(file, error.what, "patterns", number) from None


def _broken(file: YamlFile, what: str, *keys: str | int) -> AutotunerError:
    return AutotunerError(f"{file.where(*keys)}: the state is damaged: {what}", _MAKE_AGAIN)
