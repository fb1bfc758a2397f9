"""Profiling results of a model's subgraphs, and of their combination in the whole model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qdqtune.records._json_form import Record
from qdqtune.records._measurement import MOST_MS

BY_LAYERS = "layers"
"""The engine reported where the time of the subgraph goes."""
BY_TOTAL = "total"
"""It didn't: conversion costs were measured separately and subtracted."""


@dataclass(frozen=True)
class SchemeTimes(Record):
    """Times of a subgraph with one quantization scheme, or in float.

    Attributes:
        scheme: Name of the scheme.
        total_ms: Latency of the subgraph alone, timed interleaved with its other forms.
        inside_ms: Its compute time, without conversions and layout changes at its borders.
        conversion_ms: Cost of Q and DQ at each input, then at each output.
        layout_ms: Cost of layout changes at each input, then at each output.
        error: Why there are no times; None if there are.
    """

    scheme: str
    total_ms: float = 0.0
    inside_ms: float = 0.0
    conversion_ms: tuple[float, ...] = ()
    layout_ms: tuple[float, ...] = ()
    error: str | None = None

    @classmethod
    def from_dict(cls, value: object, name: str = "") -> SchemeTimes:
        """Read the JSON form; see `Record.from_dict`."""
        found = super().from_dict(value, name)
        for ms in (found.total_ms, found.inside_ms, *found.conversion_ms, *found.layout_ms):
            checked_ms(ms)
        if len(found.conversion_ms) != len(found.layout_ms):
            raise ValueError("borders are missing")
        return found


@dataclass(frozen=True)
class SubgraphTimes(Record):
    """All forms of a subgraph.

    Attributes:
        key: Identifies the subgraph.
        how: How its time was split: `BY_LAYERS` or `BY_TOTAL`.
        forms: The float form first, then those that were tried.
        file: Name of the float form's file.
    """

    key: str
    how: str
    forms: tuple[SchemeTimes, ...]
    file: str = ""

    def form(self, scheme: str) -> SchemeTimes | None:
        """One of the forms, if it could be timed."""
        return next((f for f in self.forms if f.scheme == scheme and f.error is None), None)

    @classmethod
    def from_dict(cls, value: object, name: str = "") -> SubgraphTimes:
        """Read the JSON form; see `Record.from_dict`."""
        found = super().from_dict(value, name)
        timed = [form for form in found.forms if form.error is None]
        if len({len(form.conversion_ms) for form in timed}) > 1:
            raise ValueError("the forms of a subgraph have different borders")
        return found


@dataclass(frozen=True)
class Batch(Record):
    """Groups that were quantized or returned to float together, with the measured effect.

    Attributes:
        stage: The stage of the validation.
        quantized: Number of groups quantized.
        dropped: Number of groups returned to float.
        predicted: Speedup predicted from subgraph costs, over the model it was compared with.
        measured: Speedup on the whole model; None if the engine refused it.
        error: Standard error of the log of the measured speedup.
        accepted: Whether it was kept.
    """

    stage: str
    quantized: int
    dropped: int
    predicted: float
    measured: float | None
    error: float
    accepted: bool

    @classmethod
    def from_dict(cls, value: object, name: str = "") -> Batch:
        """Read the JSON form; see `Record.from_dict`."""
        found = super().from_dict(value, name)
        if found.predicted <= 0.0 or (found.measured is not None and found.measured <= 0.0):
            raise ValueError("a speedup is none")
        return found


def checked_ms(value: Any) -> float:
    """Validate a time in milliseconds.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is not a plausible time for a subgraph.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no time")
    if not 0.0 <= value <= MOST_MS:
        raise ValueError(f"{value!r} ms is no time")
    return float(value)
