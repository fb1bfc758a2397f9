"""What the measurements of a run depend on: the header of its journal and of its state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qdqtune.records.inputs import shape_text
from qdqtune.records.tuning import AS_GIVEN
from qdqtune.workflows.tuning.journal_format import read_journal

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
