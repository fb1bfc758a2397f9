"""A state file that the user names: whether it may be resumed, and what it holds."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqtune.autotune.patterns.state_file import pattern_cache_path, read_state
from qdqtune.graph.atomic_files import writing
from qdqtune.graph.files import check_writable
from qdqtune.records.errors import UsageError
from qdqtune.records.tuning import AS_GIVEN
from qdqtune.workflows.tuning.header import difference_text, differences


def check_state_file(path: Path, model: str, quant_type: str, precision: str | None = None) -> None:
    """Make sure that a state file that the user names may be resumed, and written to.

    Args:
        path: The file; there may be none.
        model: Fingerprint of the model.
        quant_type: To what is quantized.
        precision: The float type that the model was converted to; None if that is not known yet.
            Then the state of a converted model is not looked at closely.

    Raises:
        UsageError: If it is the state of another model, quant type or float type.
        AutotunerError: If it is no state file.
        OutputError: If it can't be written there.
    """
    check_writable(path, force=True)
    try:
        header = read_state(path).header
    except FileNotFoundError:
        return
    written = header.get("precision", AS_GIVEN)
    if precision is None:
        precision, model = written, model if written == AS_GIVEN else header.get("model", model)
    wanted = {"precision": precision, "model": model, "quant_type": quant_type}
    _check_same(path, {"precision": written, **header}, wanted)


def measurements_in(path: Path, header: Mapping[str, Any]) -> tuple[str, ...]:
    """What a state file that the user names holds of a run's measurements.

    Args:
        path: The file; there may be none.
        header: What measurements depend on now.

    Raises:
        UsageError: If they were made under other conditions.
        AutotunerError: If it is no state file.
    """
    try:
        state = read_state(path)
    except FileNotFoundError:
        return ()
    _check_same(path, state.header, header)
    return state.measurements


def _check_same(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse the state of something else."""
    wanted = json.loads(json.dumps(here))
    for field, one, other in differences(_said_by(there, wanted), _said_by(wanted, there)):
        # A fingerprint tells models apart, but it tells people nothing.
        what = field if field == "model" else difference_text(field, one, other)
        raise UsageError(
            f"{path} is the state of a run with another {what}.",
            "Name another state file, or none.",
        )


def _said_by(header: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """A header without what the other one doesn't say, of the engine, too."""
    return {
        field: _said_by(value, other[field]) if field == "engine" else value
        for field, value in header.items()
        if field in other
    }


def set_state_aside(path: Path) -> None:
    """Keep a state file that the user names under another name, with its pattern cache."""
    for file in (path, pattern_cache_path(path)):
        if file.exists():
            with writing(path):
                os.replace(file, free_name(file, "earlier"))


def free_name(path: Path, what: str) -> Path:
    """A name for what has to make room that no other file has."""
    number = 1
    while True:
        moved = path.with_name(f"{path.stem}.{what}-{number}{path.suffix}")
        if not moved.exists():
            return moved
        number += 1
