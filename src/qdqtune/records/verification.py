"""A model measured anew, beside what was said of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qdqtune.records.comparison import BenchRecord
from qdqtune.records.measurement import Comparison, EngineInfo

SCHEMA = 1


@dataclass(frozen=True)
class Claim:
    """What the summary of a tuning run says about the model that it wrote.

    Attributes:
        speedup: Over the model as given.
        low: Lower end of its interval.
        high: Upper end.
        kept_float: Whether the model was handed back as it was.
        engine: What measured.
    """

    speedup: float
    low: float
    high: float
    kept_float: bool
    engine: EngineInfo

    def agrees_with(self, measured: Comparison) -> bool:
        """Whether both intervals allow the same speedup."""
        return measured.high >= self.low and measured.low <= self.high


@dataclass(frozen=True)
class Edges:
    """The Q/DQ edges of a file beside those of a placement.

    Attributes:
        expected: How many the placement has.
        missing: Edges that the file lacks, in words, and tensors that it doesn't even have.
        surplus: Edges that only the file has, in words.
    """

    expected: int
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether they are the same."""
        return not (self.missing or self.surplus)


@dataclass(frozen=True)
class VerifyReport:
    """A model timed anew.

    Attributes:
        bench: The baseline and the model, timed beside each other.
        claim: What was said of it; None if nothing was.
        edges: Its edges beside those of the placement; None if there is none to compare with.
        is_as_given: For a model that was handed back: whether it is the given one, byte for byte.
    """

    bench: BenchRecord
    claim: Claim | None
    edges: Edges | None
    is_as_given: bool | None

    @property
    def measured(self) -> Comparison | None:
        """The speedup as it is now; None if one of the two could not be timed."""
        return self.bench.contestants[1].against_first

    @property
    def other_conditions(self) -> Mapping[str, tuple[object, object]]:
        """What was different when the claim was made: a field to its value then and now."""
        if self.claim is None:
            return {}
        then, now = self.claim.engine.to_dict(), self.bench.engine.to_dict()
        return {key: (then[key], now[key]) for key in then if then[key] != now[key]}

    @property
    def agrees(self) -> bool | None:
        """Whether both intervals allow the same speedup; None if they can't be compared."""
        if self.claim is None or self.measured is None or self.other_conditions:
            return None
        if self.is_as_given:  # one file, opened twice: whatever was measured is noise
            return True
        return self.claim.agrees_with(self.measured)

    @property
    def differs_in_speed_only(self) -> bool:
        """Whether it is the model that was spoken of, but not as fast as was said, or faster."""
        return self._is_the_same_model and self.agrees is False

    @property
    def _is_the_same_model(self) -> bool:
        same_edges = self.edges is None or self.edges.ok
        return self.bench.ok and self.is_as_given is not False and same_edges

    @property
    def ok(self) -> bool:
        """Whether the model is what it was said to be, and at least as fast."""
        if not self._is_the_same_model:
            return False
        if self.agrees is False:
            assert self.claim is not None
            assert self.measured is not None
            return self.measured.ratio > self.claim.speedup
        return True

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        claim = self.claim
        return {
            "kind": "verification",
            "schema": SCHEMA,
            "ok": self.ok,
            "claimed": None
            if claim is None
            else {
                "speedup": claim.speedup,
                "speedup_interval": [claim.low, claim.high if math.isfinite(claim.high) else None],
                "kept_float": claim.kept_float,
                "engine": claim.engine.to_dict(),
            },
            "measured": self.measured.to_dict() if self.measured is not None else None,
            "agrees": self.agrees,
            "other_conditions": {
                key: list(values) for key, values in self.other_conditions.items()
            },
            "edges": None
            if self.edges is None
            else {
                "expected": self.edges.expected,
                "missing": list(self.edges.missing),
                "surplus": list(self.edges.surplus),
            },
            "is_as_given": self.is_as_given,
            "bench": self.bench.to_dict(),
        }
