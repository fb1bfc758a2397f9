"""What makes two runs the same: the conditions of measurements and of results, in one value.

The journal's header, the check of a state file, the subgraph cache and the conditions of an earlier
result are all taken from a run's `RunIdentity`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtune.engines._options import Shapes
from qdqtune.graph._atomic_files import sha256_of
from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import shape_text
from qdqtune.records._measurement import EngineInfo
from qdqtune.records._tuning import AS_GIVEN
from qdqtune.workflows.tuning._context import TuneRequest
from qdqtune.workflows.tuning._journal_format import Line, checksum, read_journal

NOTHING_MEASURED = frozenset({"run", "session", "end"})
"""Kinds of lines that say nothing about a model."""

# What earlier versions did not say of engines: it follows from the rest, such as the float type in
# effect from the device, version and options.
_LATER_FIELDS = ("float_type",)
# What a header means that lacks such an entry; it is looked at before what follows from it.
_UNSAID = {"precision": AS_GIVEN}
_CALLED = {
    "engine.name": "engine",
    "engine.version": "version of the engine",
    "engine.device": "device",
    "engine.isa": "instruction set",
    "engine.threads": "number of threads",
    "engine.float_type": "float type",
}


@dataclass(frozen=True)
class RunIdentity:
    """What the measurements and the result of a run depend on.

    Attributes:
        header: What measurements depend on, as JSON: those made under another one are not used.
        requirements: What a result has to satisfy beside that, but for its calibration.
    """

    header: Mapping[str, Any]
    requirements: Mapping[str, Any]

    @property
    def model(self) -> str:
        """The fingerprint of the model that is tuned."""
        return str(self.header["model"])

    @property
    def digest(self) -> str:
        """What the lines of a run are known by."""
        return checksum(self.header)

    def conditions(self, calibration: str) -> dict[str, Any]:
        """What a result has to satisfy, as `Summary` has it.

        Args:
            calibration: A digest of what the data gave; empty for random inputs.
        """
        return {"calibration": calibration, **self.requirements}


def run_identity(
    request: TuneRequest,
    model: str,
    info: EngineInfo,
    shapes: Shapes,
    precision: str,
    journal: Path,
) -> RunIdentity:
    """The identity of a run, without what an earlier run in the same folder did not know to say.

    Args:
        request: What was asked for.
        model: Fingerprint of the model that is tuned.
        info: What measures.
        shapes: Of the model's inputs.
        precision: The float type that it was converted to, or `AS_GIVEN`.
        journal: Of the folder; there may be none.
    """
    # Runs of versions that did not convert have no such entry.
    converted = {} if precision == AS_GIVEN else {"precision": precision}
    header = {
        **converted,
        "model": model,
        "engine": info.to_dict(),
        "dialect": request.dialect.name,
        "quant_type": request.config.quant_type,
        "shapes": shapes,
    }
    requirements = {
        "model_sha256": sha256_of(request.model),
        **request.config.identity(),
        "evaluate": request.evaluate.label if request.evaluate is not None else None,
        **converted,
    }
    return RunIdentity(as_said_before(journal, json.loads(json.dumps(header))), requirements)


def as_said_before(journal: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """A header without what an earlier run in the same journal did not know to say.

    Args:
        journal: The journal; there may be none.
        header: What measurements depend on.
    """
    engine, before = header["engine"], (_earlier_header(journal) or {}).get("engine")
    if not isinstance(before, dict):
        return dict(header)
    unsaid = [field for field in _LATER_FIELDS if field not in before]
    return {**header, "engine": {key: engine[key] for key in engine if key not in unsaid}}


def precision_of(journal: Path) -> str | None:
    """The float type that an earlier run's model is tuned in; None if nothing was measured."""
    header = _earlier_header(journal)
    return None if header is None else str(header.get("precision", AS_GIVEN))


def headers_in(lines: list[Line]) -> list[dict[str, Any]]:
    """What runs that wrote a journal measured under."""
    return [line.body["header"] for line in lines if line.kind == "run" and line.body]


def _earlier_header(journal: Path) -> Mapping[str, Any] | None:
    """What an earlier run measured under; None if nothing was measured."""
    lines = read_journal(journal) if journal.exists() else []
    if all(line.kind in NOTHING_MEASURED for line in lines):
        return None
    return next(iter(headers_in(lines)), None)


def first_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[str, str]:
    """The first field in which two headers differ, and what to call the difference.

    Returns:
        The path of the field, and words such as ``number of threads: 1, not 2``; both are empty if
        the headers are equal.
    """
    for field, one, other in _differences({**_UNSAID, **there}, {**_UNSAID, **here}):
        return field, _difference_text(field, one, other)
    return "", ""


def check_state(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse the state of another run; what only one of both headers says is left out.

    Args:
        path: The state file.
        there: Its header.
        here: The header of this run, as far as it is known.

    Raises:
        UsageError: If they differ.
    """
    there, here = {**_UNSAID, **there}, {**_UNSAID, **here}
    field, text = first_difference(_said_by(there, here), _said_by(here, there))
    if field:
        # A fingerprint tells models apart, but it tells people nothing.
        raise UsageError(
            f"{path} is the state of a run with another {field if field == 'model' else text}.",
            "Name another state file, or none.",
        )


def _said_by(header: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """A header without what the other one doesn't say, of the engine, too."""
    found = {field: value for field, value in header.items() if field in other}
    own, others = found.get("engine"), other.get("engine")
    if isinstance(own, dict) and isinstance(others, dict):  # a state file may say anything
        found["engine"] = {field: value for field, value in own.items() if field in others}
    return found


def _differences(
    there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Each field in which two headers differ, those inside others by their path, in order."""
    for field in dict.fromkeys([*here, *there]):
        one, other = there.get(field), here.get(field)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _differences(one, other, f"{prefix}{field}.")
        elif one != other:
            yield prefix + field, one, other


def _difference_text(field: str, there: Any, here: Any) -> str:
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
