"""The claims of a run about its result, and the record of a model that was measured again."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from qdqtune.records._json_form import UNBOUNDED, Record
from qdqtune.records._measurement import BenchRecord, Comparison, EngineInfo
from qdqtune.records._results import Result
from qdqtune.records._tuning import AS_GIVEN, data_flags_in
from qdqtune.records._untrusted_files import object_in, versioned

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
        speedup_interval: Both ends of its interval.
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
        data_flags: Flags that name this data, to show them.
        tuned_in_float32: Whether the baseline uses half-precision floats and the result does not.
    """

    JSON: ClassVar[str] = "speedup speedup_interval kept_float output_sqnr_db=sqnr_db engine"

    speedup: float
    speedup_interval: tuple[float, float] = field(metadata=UNBOUNDED)
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
    data_flags: Mapping[str, str] = field(default_factory=dict)

    def agrees_with(self, measured: Comparison) -> bool:
        """Whether the intervals overlap and the claim is not far above the measured speedup.

        The width of an interval is no excuse: readers of the claim look at the speedup.
        """
        low, high = self.speedup_interval
        is_near = self.speedup <= _MOST_ABOVE * measured.high
        return is_near and measured.high >= low and measured.low <= high

    def is_supported_by(self, measured: Comparison) -> bool:
        """Whether the measured speedup itself is near the claim, not only one end of its interval.

        On a busy machine an interval is so wide that it allows almost any claim.
        """
        is_near = self.speedup <= _MOST_ABOVE * measured.ratio
        return is_near and self.speedup_interval[0] <= _MOST_BELOW * measured.ratio

    @classmethod
    def from_summary(cls, summary: object) -> Claim:
        """Read the JSON form of a `Summary` without trusting any field.

        Raises:
            ValueError: If it can't be read, or a claim is impossible; the message says which.
            NewerSchemaError: If only newer versions can read it.
        """
        body = versioned(summary, "summary", "it")
        engine = object_in(body.get("engine"), "engine")
        known = {name: engine[name] for name in EngineInfo.__dataclass_fields__ if name in engine}
        conditions = object_in(body.get("conditions") or {}, "conditions")
        inputs = object_in(body.get("error_inputs") or {}, "error_inputs")
        is_converted = body.get("precision", AS_GIVEN) != AS_GIVEN
        return cls.from_dict(
            {
                "speedup": body.get("speedup"),
                "speedup_interval": body.get("speedup_interval"),
                "kept_float": body.get("kept_float"),
                "engine": EngineInfo.from_untrusted(known).to_dict(),
                "output_sqnr_db": body.get("output_sqnr_db"),
                "final_sha256": body.get("final_sha256") or "",
                "baseline_sha256": body.get("baseline_sha256") or "",
                "given_sha256": "" if is_converted else conditions.get("model_sha256") or "",
                "on_data": (inputs.get("source") or body.get("calibration")) == "data",
                "samples_digest": inputs.get("digest") or "",
                "ranges": inputs.get("ranges") or {},
                "seed": body.get("seed", 0),
                "shapes": body.get("shapes") or {},
                "conversion_db": body.get("precision_sqnr_db") if is_converted else None,
                "tuned_in_float32": bool(body.get("converted_from")),
                "data_flags": data_flags_in(inputs),
            }
        )

    def check(self) -> None:
        """Check that every value is possible; see `Record.check`."""
        low, high = self.speedup_interval
        hashes = (self.final_sha256, self.baseline_sha256, self.given_sha256)
        sizes = [size for shape in self.shapes.values() for size in shape]
        threads = self.engine.threads
        for is_possible, problem in (
            (0.0 <= low <= self.speedup <= high and self.speedup > 0.0,
             f"a speedup of {self.speedup:g} can't be between {low:g} and {high:g}"),
            (threads is None or threads >= 1, f"engine.threads can't be {threads}"),
            (self.seed >= 0, f"seed can't be {self.seed}"),
            (min(sizes, default=0) >= 0, "shapes has a negative size"),
            (all(least <= most for least, most in self.ranges.values()),
             "error_inputs.ranges has a range that ends before it begins"),
            (all(_SHA256.fullmatch(each) for each in hashes if each), "a SHA-256 is not valid"),
        ):  # fmt: skip
            if not is_possible:
                raise ValueError(problem)


class Outcome(enum.Enum):
    """The outcome of checking one part of a claim."""

    CONFIRMED = "confirmed"
    DIFFERS = "differs"
    UNVERIFIED = "unverified"


@dataclass(frozen=True)
class Check:
    """The check of one part of a claim.

    Attributes:
        name: The part: ``claim``, ``file``, ``baseline``, ``placement``, ``error`` or ``speed``.
        outcome: The outcome.
        text: What was compared, in a sentence.
    """

    name: str
    outcome: Outcome
    text: str


@dataclass(frozen=True)
class Edges:
    """The Q/DQ edges, dynamic and unfused ops of a file compared with those of a placement.

    Attributes:
        expected: Number of edges in the placement.
        missing: Edges, tensors and ops that the file lacks, as text.
        surplus: Edges and ops that only the file has, as text.
        dynamic: Number of dynamic ops in the placement.
        unfused: Number of unfused ops in the placement.
    """

    expected: int
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()
    dynamic: int = 0
    unfused: int = 0

    @property
    def ok(self) -> bool:
        """Whether they are the same."""
        return not (self.missing or self.surplus)


@dataclass(frozen=True, repr=False)
class VerifyReport(Result):
    """Report of a model measured again.

    Attributes:
        bench: The baseline and the model, timed interleaved; None if they were not timed.
        claim: The claim about it; None if there is none, or none that can be read.
        edges: Its edges compared with the placement's; None if there is no placement.
        is_as_given: For an unchanged model: whether it equals the original, byte for byte.
        checks: All checks against the claim except speed; empty if there is no run that could have
            made a claim.
        not_timed: Why there is no speed; empty if there is.
        sqnr_db: SQNR of the worst output against the float model, measured again; None if it was
            not.
        ignored: Settings in the record that only the user may choose: a flag with its value, in the
            order of `repeat_with`.
        repeat_with: The command with these settings given by the user; empty if nothing was
            ignored or is missing.
    """

    KIND: ClassVar[str] = "verification"
    SCHEMA: ClassVar[int] = 2
    JSON: ClassVar[str] = (
        "ok outcome checks=checks_by_name claimed=claim measured output_sqnr_db=sqnr_db agrees "
        "other_conditions ignored repeat_with edges is_as_given bench"
    )

    bench: BenchRecord | None
    claim: Claim | None = None
    edges: Edges | None = None
    is_as_given: bool | None = None
    checks: tuple[Check, ...] = ()
    not_timed: str = ""
    sqnr_db: float | None = None
    ignored: tuple[str, ...] = ()
    repeat_with: str = ""

    @property
    def measured(self) -> Comparison | None:
        """The speedup measured now; None if one of the two could not be timed."""
        return self.bench.entries[1].against_first if self.bench is not None else None

    @property
    def other_conditions(self) -> Mapping[str, tuple[object, object]]:
        """Conditions that changed since the claim: field to its value then and now."""
        if self.claim is None or self.bench is None:
            return {}
        then, now = self.claim.engine.to_dict(), self.bench.engine.to_dict()
        options = then.pop("options"), now.pop("options")
        found = {key: (then[key], now.get(key)) for key in then if then[key] != now.get(key)}
        for name in sorted({*options[0], *options[1]}):
            before, here = (each.get(name) for each in options)
            if before != here:
                found[f"option {name}"] = before, here
        shapes = {name: list(shape) for name, shape in self.claim.shapes.items()}
        for name, fed in self.bench.inputs.items():
            if name in shapes and not fed.endswith(str(shapes[name])):
                found[f"input {name}"] = shapes[name], fed
        return found

    @property
    def agrees(self) -> bool | None:
        """Whether the measurement agrees with the claim; None if they can't be compared."""
        if self.claim is None or self.measured is None:
            return None
        if self.is_as_given:  # the same file opened twice: any difference is noise
            return self.claim.speedup == 1.0
        if self.other_conditions or self.ignored:
            return None
        return self.claim.agrees_with(self.measured)

    @property
    def speed(self) -> Check | None:
        """The check of the speed; None if no speed was claimed."""
        claim, measured, bench = self.claim, self.measured, self.bench
        if claim is None:
            return None
        low, high = claim.speedup_interval
        said = f"claimed {claim.speedup:.3f}x, {low:.3f} to {high:.3f}"
        if bench is None:
            return Check("speed", Outcome.UNVERIFIED, f"{said}; not timed: {self.not_timed}")
        if measured is None:
            baseline, model = (each.measurement.error for each in bench.entries)
            outcome = Outcome.DIFFERS if baseline is None else Outcome.UNVERIFIED
            return Check("speed", outcome, f"{said}; it can't be timed: {baseline or model}")
        said = f"{measured.ratio:.3f}x, {measured.low:.3f} to {measured.high:.3f}; {said}"
        made_with = ", ".join(
            f"{name} {_value(before)}, now {_value(now)}"
            for name, (before, now) in self.other_conditions.items()
        ) or ", ".join(self.ignored[:1])
        if self.is_as_given:
            outcome = Outcome.CONFIRMED if self.agrees else Outcome.DIFFERS
            text = "it is the baseline itself, and as fast as that"
        elif made_with:
            outcome = Outcome.UNVERIFIED
            text = f"these can't be compared: the claim was made with {made_with}"
        elif not self.agrees:
            is_faster = measured.ratio > claim.speedup
            outcome = Outcome.CONFIRMED if is_faster else Outcome.DIFFERS
            text = f"it is {'faster' if is_faster else 'slower'} than claimed"
        elif claim.is_supported_by(measured):
            outcome, text = Outcome.CONFIRMED, "they agree"
        else:
            outcome = Outcome.UNVERIFIED
            text = "too uncertain to confirm it: measure again when the machine is quiet"
        return Check("speed", outcome, f"{said}; {text}")

    @property
    def all_checks(self) -> tuple[Check, ...]:
        """All checks against the claim, including speed."""
        return self.checks if self.speed is None else (*self.checks, self.speed)

    @property
    def outcome(self) -> Outcome | None:
        """The worst outcome of all checks; None if there is no claim."""
        found = {check.outcome for check in self.all_checks}
        worst_first = (Outcome.DIFFERS, Outcome.UNVERIFIED, Outcome.CONFIRMED)
        return next((each for each in worst_first if each in found), None)

    @property
    def differs_in_speed_only(self) -> bool:
        """Whether only the speed differs from the claim, so that timing again is worthwhile."""
        if self.agrees is None or self.claim is None or self.measured is None or self.is_as_given:
            return False
        is_same = all(check.outcome is not Outcome.DIFFERS for check in self.checks)
        return is_same and not (self.agrees and self.claim.is_supported_by(self.measured))

    @property
    def ok(self) -> bool:
        """Whether the claim holds; without a claim, whether the model runs."""
        if self.outcome is None:
            return self.bench is not None and self.bench.ok
        return self.outcome is Outcome.CONFIRMED

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        outcome = self.outcome.value if self.outcome is not None else "no run claims anything"
        checks = [f"{check.name} {check.outcome.value}" for check in self.all_checks]
        measured = [f"{self.measured.ratio:.3f}x"] if self.measured is not None else []
        return ", ".join([outcome, *measured, *checks])

    @property
    def checks_by_name(self) -> dict[str, Any]:
        """The JSON form of the checks."""
        return {
            check.name: {"outcome": check.outcome, "text": check.text} for check in self.all_checks
        }


def _value(value: object) -> str:
    return "the default" if value is None else repr(value)
