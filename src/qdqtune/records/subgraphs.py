"""What was found out about subgraphs of a model, and how their assembly fared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from qdqtune.records.measurement import MOST_MS
from qdqtune.records.type_checks import check_types

BY_LAYERS = "layers"
"""The engine told where the time of the subgraph goes."""
BY_TOTAL = "total"
"""It didn't: what conversions cost was measured apart, and taken off."""


@dataclass(frozen=True)
class SchemeTimes:
    """A subgraph, quantized in one way or not at all.

    Attributes:
        scheme: What the way is called.
        total_ms: Latency of the subgraph alone, timed beside its other forms.
        inside_ms: Its work: without conversions and changes of layout at its borders.
        conversion_ms: What Q and DQ cost at each input, then at each output.
        layout_ms: What changes of layout cost there.
        error: Why there are no times; None if there are.
    """

    scheme: str
    total_ms: float = 0.0
    inside_ms: float = 0.0
    conversion_ms: tuple[float, ...] = ()
    layout_ms: tuple[float, ...] = ()
    error: str | None = None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> SchemeTimes:
        """Read the JSON form."""
        borders = {name: tuple(map(float, value[name])) for name in ("conversion_ms", "layout_ms")}
        found = cls(**{**value, **borders})
        for ms in (found.total_ms, found.inside_ms, *found.conversion_ms, *found.layout_ms):
            checked_ms(ms)
        if len(found.conversion_ms) != len(found.layout_ms):
            raise ValueError("borders are missing")
        return found


@dataclass(frozen=True)
class SubgraphTimes:
    """All forms of a subgraph.

    Attributes:
        key: What the subgraph is.
        how: Where the parts of its time come from: `BY_LAYERS` or `BY_TOTAL`.
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

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> SubgraphTimes:
        """Read the JSON form.

        Raises:
            KeyError: If a field is missing.
            TypeError: If it is not the JSON form.
            ValueError: If a field can't be what it is.
        """
        found = cls(**{**value, "forms": tuple(map(SchemeTimes.from_dict, value["forms"]))})
        check_types(found)
        timed = [form for form in found.forms if form.error is None]
        if len({len(form.conversion_ms) for form in timed}) > 1:
            raise ValueError("the forms of a subgraph have different borders")
        return found


@dataclass(frozen=True)
class Batch:
    """Groups that were quantized, or made float again, together, and what came of it.

    Attributes:
        stage: What the validation was at.
        quantized: How many groups were quantized.
        dropped: How many were made float again.
        predicted: Speedup that the subgraphs' costs promised, over what it was compared with.
        measured: Speedup on the whole model; None if the engine refused it.
        error: Standard error of the logarithm of that.
        accepted: Whether it was kept.
    """

    stage: str
    quantized: int
    dropped: int
    predicted: float
    measured: float | None
    error: float
    accepted: bool

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Batch:
        """Read the JSON form.

        Raises:
            TypeError: If it is not the JSON form.
            ValueError: If a field can't be what it is.
        """
        found = cls(**value)
        check_types(found)
        if found.predicted <= 0.0 or (found.measured is not None and found.measured <= 0.0):
            raise ValueError("a speedup is none")
        return found


def checked_ms(value: Any) -> float:
    """A time in milliseconds.

    Raises:
        TypeError: If it is no number.
        ValueError: If it is none that a subgraph can take.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no time")
    if not 0.0 <= value <= MOST_MS:
        raise ValueError(f"{value!r} ms is no time")
    return float(value)
