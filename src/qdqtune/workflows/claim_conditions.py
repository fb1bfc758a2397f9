"""The conditions under which a claim is checked: those from the record, and those from the user."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qdqtune.engines import registry
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.recorded_engine import recorded_engine
from qdqtune.records.claim import Claim
from qdqtune.records.comparison import BenchRecord
from qdqtune.records.errors import EngineError, QdqtuneError
from qdqtune.records.inputs import InputRequest
from qdqtune.workflows.claims import are_small, shapes_of_run

_OPTION = "--engine_option"


@dataclass(frozen=True)
class Conditions:
    """The conditions under which models are run to check a claim.

    Attributes:
        engine: The engine that runs them.
        options: Options for opening them.
        inputs: The inputs that they are timed on.
        left_out: Flags with the recorded values that only the user may set.
    """

    engine: str
    options: SessionOptions
    inputs: InputRequest
    left_out: tuple[tuple[str, str], ...] = ()

    def missing_in(self, record: BenchRecord | None) -> list[tuple[str, str]]:
        """Return the omitted conditions that make a difference.

        Args:
            record: What was measured without them; None if nothing could be.
        """
        in_effect = record.engine.options if record is not None else {}
        defaults = {f"{name}={value}" for name, value in in_effect.items()}
        return [
            (flag, value)
            for flag, value in self.left_out
            if not (flag == _OPTION and (value in defaults or value.endswith("=")))
        ]


@dataclass(frozen=True)
class UserConditions:
    """The user's conditions for checking a model; see `qdqtune.workflows.verification.verify`."""

    against: str | None = None
    engine: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    inputs: InputRequest = field(default_factory=InputRequest)
    data: Any = None
    samples: int | None = None

    @property
    def conditions(self) -> Conditions:
        """Return the conditions where nothing is claimed."""
        options = SessionOptions(threads=self.threads, engine_options=dict(self.options))
        return Conditions(self.engine or registry.AUTO, options, self.inputs)

    def conditions_of(self, claim: Claim, folder: Path) -> Conditions:
        """Combine the user's conditions with those of the claim that may be followed.

        Args:
            claim: What was claimed.
            folder: The folder of the run's journal, where old runs recorded the shapes of inputs.
        """
        recorded = recorded_engine(claim.engine)
        engine = self.engine or recorded.name
        conditions = self.conditions
        left_out: list[tuple[str, str]] = []
        inputs = self.inputs
        if not (inputs.shapes or inputs.dims):
            shapes = shapes_of_run(claim, folder)
            if are_small(shapes.values()):
                inputs = replace(inputs, shapes=shapes)
            else:
                left_out += [("--shapes", _shape(name, dims)) for name, dims in shapes.items()]
        if engine is None:
            left_out.append(("--engine", claim.engine.name))
        if engine in (None, claim.engine.name):
            if self.threads is None and claim.engine.threads is not None:
                left_out.append(("--threads", str(claim.engine.threads)))
            left_out += [
                (_OPTION, f"{name}={value}")
                for name, value in sorted(claim.engine.options.items())
                if name not in {**recorded.options, **self.options}
            ]
            followed = {**recorded.options, **self.options}
            options = replace(conditions.options, engine_options=followed)
            conditions = replace(conditions, options=options)
        return replace(conditions, engine=engine or "", inputs=inputs, left_out=tuple(left_out))

    def is_to_blame(self, error: QdqtuneError) -> bool:
        """Whether an error is about the user's conditions instead of the recorded ones."""
        if isinstance(error, EngineError):
            return self.engine is not None
        inputs = self.inputs
        about_inputs = inputs.shapes or inputs.dims or inputs.ranges or self.data is not None
        return bool(self.options or self.threads is not None or about_inputs)

    def words(self) -> Iterator[str]:
        """Return the flags for the conditions."""
        if self.against is not None:
            yield from ("--against", self.against)
        if self.engine is not None:
            yield from ("--engine", self.engine)
        for name, value in self.options.items():
            yield from (_OPTION, f"{name}={value}")
        if self.threads is not None:
            yield from ("--threads", str(self.threads))
        for name, shape in self.inputs.shapes.items():
            yield from ("--shapes", _shape(name, shape))
        for symbol, size in self.inputs.dims.items():
            yield from ("--dim", f"{symbol}={size}")
        for name, (low, high) in self.inputs.ranges.items():
            yield from (
                "--input_range",
                f"{name}:{low:g}:{high:g}" if name else f"{low:g}:{high:g}",
            )
        if isinstance(self.data, str):
            yield from ("--calibration_data", self.data)
        if self.samples is not None:
            yield from ("--calibration_samples", str(self.samples))


def command_of(model: str, said: UserConditions, missing: list[tuple[str, str]]) -> str:
    """Return the command with all missing flags; empty if nothing is missing."""
    if not missing:
        return ""
    flags = [word for pair in missing for word in pair]
    return shlex.join(["qdqtune", "verify", model, *said.words(), *flags])


def _shape(name: str, shape: tuple[int | None, ...]) -> str:
    sizes = "x".join("?" if size is None else str(size) for size in shape)
    return f"{name}:{sizes}" if name else sizes
