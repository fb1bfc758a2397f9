"""The claims of a run about its result, read from an untrusted summary file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from qdqtune.records._json_form import Record
from qdqtune.records._measurement import Comparison, EngineInfo
from qdqtune.records._tuning import AS_GIVEN
from qdqtune.records._untrusted_files import (
    SCHEMAS,
    number_in,
    object_in,
    switch_in,
    text_in,
    whole_in,
)

_SHA256 = re.compile(r"[0-9a-f]{64}")
# The largest factor by which a claim may exceed the measured speedup, within the claim's interval.
_MOST_ABOVE = 2.0
# How far below the claim's interval a measured speedup may be if its own interval is wide.
_MOST_BELOW = 1.5


@dataclass(frozen=True)
class Claim(Record):
    """The claims of a tuning run's summary about the model that it wrote.

    Attributes:
        speedup: Over the original model.
        low: Lower end of its interval.
        high: Upper end of its interval.
        kept_float: Whether the run returned the original model unchanged.
        engine: The engine that measured.
        sqnr_db: SQNR of the worst output against the float model, in dB; None if not claimed.
        final_sha256: Hash of the model with its weights; empty if not recorded.
        baseline_sha256: Hash of the baseline with its weights; empty if not recorded.
        given_sha256: Hash of the tuned file, without external weights; empty if not recorded, or
            if the baseline is a conversion of it.
        on_data: Whether the error was measured on the user's data, not on random inputs.
        samples_digest: Digest of the inputs used for the error; empty if not recorded.
        ranges: Lowest and highest value of random inputs, by name.
        seed: Seed of the run.
        shapes: Input shapes; empty if not recorded.
        conversion_db: SQNR of the baseline against the original model, in dB, if the baseline is a
            conversion of it; the error is relative to the original model.
        tuned_in_float32: Whether the baseline uses half-precision floats and the result does not.
    """

    JSON: ClassVar[str] = "speedup speedup_interval kept_float output_sqnr_db=sqnr_db engine"

    speedup: float
    low: float
    high: float
    kept_float: bool
    engine: EngineInfo
    sqnr_db: float | None = None
    final_sha256: str = ""
    baseline_sha256: str = ""
    given_sha256: str = ""
    on_data: bool = False
    samples_digest: str = ""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    seed: int = 0
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    conversion_db: float | None = None
    tuned_in_float32: bool = False

    @property
    def speedup_interval(self) -> tuple[float, float]:
        """Both ends of the interval."""
        return self.low, self.high

    def agrees_with(self, measured: Comparison) -> bool:
        """Whether the intervals overlap and the claim is not far above the measured speedup.

        The width of an interval is no excuse: readers of the claim look at the speedup.
        """
        is_near = self.speedup <= _MOST_ABOVE * measured.high
        return is_near and measured.high >= self.low and measured.low <= self.high

    def is_supported_by(self, measured: Comparison) -> bool:
        """Whether the measured speedup itself is near the claim, not only one end of its interval.

        On a busy machine an interval is so wide that it allows almost any claim.
        """
        is_near = self.speedup <= _MOST_ABOVE * measured.ratio
        return is_near and self.low <= _MOST_BELOW * measured.ratio

    @classmethod
    def from_summary(cls, summary: object) -> Claim:
        """Read the JSON form of a `Summary` without trusting any field.

        Raises:
            ValueError: If this version can't read it, or a claim is impossible; the message says
                which.
        """
        body = object_in(summary, "it")
        if body.get("kind") != "summary":
            raise ValueError('it has no "kind": "summary"')
        schema = whole_in(body.get("schema"), "schema", least=1)
        if schema > SCHEMAS["summary"]:
            raise ValueError(
                f"it was written by a newer version of qdqtune (schema {schema}, known is "
                f"{SCHEMAS['summary']})"
            )
        low, speedup, high = _speedup(body)
        conditions = object_in(body.get("conditions") or {}, "conditions")
        inputs = object_in(body.get("error_inputs") or {}, "error_inputs")
        precision = text_in(body.get("precision", AS_GIVEN), "precision")
        is_converted = precision != AS_GIVEN
        source = text_in(inputs.get("source") or body.get("calibration") or "", "calibration")
        return cls(
            speedup=speedup,
            low=low,
            high=high,
            kept_float=switch_in(body.get("kept_float"), "kept_float"),
            engine=_engine(body.get("engine")),
            sqnr_db=_maybe_number(body.get("output_sqnr_db"), "output_sqnr_db"),
            final_sha256=_hash(body.get("final_sha256"), "final_sha256"),
            baseline_sha256=_hash(body.get("baseline_sha256"), "baseline_sha256"),
            given_sha256=""
            if is_converted
            else _hash(conditions.get("model_sha256"), "model_sha256"),
            on_data=source == "data",
            samples_digest=text_in(inputs.get("digest") or "", "error_inputs.digest"),
            ranges=_ranges(inputs.get("ranges") or {}),
            seed=whole_in(body.get("seed", 0), "seed", least=0),
            shapes=_shapes(body.get("shapes") or {}),
            conversion_db=_maybe_number(body.get("precision_sqnr_db"), "precision_sqnr_db")
            if is_converted
            else None,
            tuned_in_float32=bool(text_in(body.get("converted_from") or "", "converted_from")),
        )


def _speedup(body: Mapping[str, Any]) -> tuple[float, float, float]:
    interval = body.get("speedup_interval")
    if not isinstance(interval, list) or len(interval) != 2:
        raise ValueError("speedup_interval is no pair of numbers")
    speedup = number_in(body.get("speedup"), "speedup")
    low = number_in(interval[0], "speedup_interval")
    high = math.inf if interval[1] is None else number_in(interval[1], "speedup_interval")
    if not 0.0 <= low <= speedup <= high or speedup <= 0.0:
        raise ValueError(f"a speedup of {speedup:g} can't be between {low:g} and {high:g}")
    return low, speedup, high


def _engine(value: object) -> EngineInfo:
    body = object_in(value, "engine")
    if body.get("threads") is not None:
        whole_in(body["threads"], "engine.threads", least=1)
    known = EngineInfo.__dataclass_fields__
    return EngineInfo.from_untrusted({name: body[name] for name in known if name in body})


def _ranges(value: object) -> dict[str, tuple[float, float]]:
    found = {}
    for name, pair in object_in(value, "error_inputs.ranges").items():
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError("error_inputs.ranges has something that is no pair of numbers")
        low, high = (number_in(each, "error_inputs.ranges") for each in pair)
        if low > high:
            raise ValueError(f"error_inputs.ranges has no numbers from {low:g} to {high:g}")
        found[name] = (low, high)
    return found


def _shapes(value: object) -> dict[str, tuple[int, ...]]:
    found = {}
    for name, shape in object_in(value, "shapes").items():
        if not isinstance(shape, list):
            raise ValueError("shapes has something that is no shape")
        found[name] = tuple(whole_in(size, "shapes", least=0) for size in shape)
    return found


def _hash(value: object, name: str) -> str:
    if not value:
        return ""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueError(f"{name} is no SHA-256")
    return value


def _maybe_number(value: object, name: str) -> float | None:
    return None if value is None else number_in(value, name)
