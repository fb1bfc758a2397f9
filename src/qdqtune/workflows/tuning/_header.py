"""What the measurements of a run depend on.

The header of its journal, and whether a state file may be resumed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qdqtune.graph._atomic_files import writing
from qdqtune.graph._files import check_writable
from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import shape_text
from qdqtune.records._tuning import AS_GIVEN
from qdqtune.search.patterns._state_file import pattern_cache_path, read_state
from qdqtune.workflows.tuning._journal_format import read_journal

NOTHING_MEASURED = frozenset({"run", "session", "end"})
"""Kinds of lines that say nothing about a model."""

# What is said of engines that earlier versions did not.
_LATER_FIELDS = ("float_type",)
_CALLED = {
    "engine.name": "engine",
    "engine.version": "version of the engine",
    "engine.device": "device",
    "engine.isa": "instruction set",
    "engine.threads": "number of threads",
    "engine.float_type": "float type",
}


def differences(
    there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Each field in which two headers differ, those inside others by their path, in order."""
    for field in dict.fromkeys([*here, *there]):
        one, other = there.get(field), here.get(field)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from differences(one, other, f"{prefix}{field}.")
        elif one != other:
            yield prefix + field, one, other


def difference_text(field: str, there: Any, here: Any) -> str:
    """One of these differences as people call it, such as ``number of threads: 1, not 2``."""
    group, _, rest = field.partition(".")
    if group == "shapes" and rest:
        name = f"shape of the input {rest!r}"
    elif rest.startswith("options."):
        name = f"engine option {rest.removeprefix('options.')}"
    else:
        name = _CALLED.get(field, field.replace("_", " "))
    return f"{name}: {_value_text(there)}, not {_value_text(here)}"


def _value_text(value: Any) -> str:
    if value is None:
        return "the default"
    return shape_text(value) if isinstance(value, list | tuple) else str(value)


def precision_of(path: Path) -> str | None:
    """The float type that an earlier run's model is tuned in; None if nothing was measured."""
    header = _earlier_header(path)
    return None if header is None else str(header.get("precision", AS_GIVEN))


def as_said_before(path: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """A header without what an earlier run in the same journal did not know to say.

    It follows from the rest, such as the float type in effect from the engine's device, version and
    options: the same measurements are meant.

    Args:
        path: The journal; there may be none.
        header: What measurements depend on.
    """
    earlier = _earlier_header(path)
    engine, before = header["engine"], (earlier or {}).get("engine")
    if not isinstance(before, dict):
        return dict(header)
    unsaid = [field for field in _LATER_FIELDS if field not in before]
    return {**header, "engine": {key: engine[key] for key in engine if key not in unsaid}}


def _earlier_header(path: Path) -> Mapping[str, Any] | None:
    """What an earlier run measured under; None if nothing was measured."""
    lines = read_journal(path) if path.exists() else []
    if all(line.kind in NOTHING_MEASURED for line in lines):
        return None
    headers = [line.body["header"] for line in lines if line.kind == "run" and line.body]
    return headers[0] if headers else None


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
