"""Record of a model measured again and compared with the claims made about it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from qdqtune.records._claim import Claim
from qdqtune.records._measurement import BenchRecord, Comparison
from qdqtune.records._results import Result


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
    """The Q/DQ edges of a file compared with those of a placement.

    Attributes:
        expected: Number of edges in the placement.
        missing: Edges and tensors that the file lacks, as text.
        surplus: Edges that only the file has, as text.
    """

    expected: int
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()

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
        said = f"claimed {claim.speedup:.3f}x, {claim.low:.3f} to {claim.high:.3f}"
        if bench is None:
            return Check("speed", Outcome.UNVERIFIED, f"{said}; not timed: {self.not_timed}")
        if measured is None:
            baseline, model = (each.measurement.error for each in bench.entries)
            outcome = Outcome.DIFFERS if baseline is None else Outcome.UNVERIFIED
            return Check("speed", outcome, f"{said}; it can't be timed: {baseline or model}")
        said = f"{measured.ratio:.3f}x, {measured.low:.3f} to {measured.high:.3f}; {said}"
        if self.is_as_given:
            text = f"{said}; it is the baseline itself, and as fast as that"
            return Check("speed", Outcome.CONFIRMED if self.agrees else Outcome.DIFFERS, text)
        if self.other_conditions:
            differences = ", ".join(
                f"{name} {_value(before)}, now {_value(now)}"
                for name, (before, now) in self.other_conditions.items()
            )
            text = f"{said}; these can't be compared: the claim was made with {differences}"
            return Check("speed", Outcome.UNVERIFIED, text)
        if self.ignored:
            text = f"{said}; these can't be compared: the claim was made with {self.ignored[0]}"
            return Check("speed", Outcome.UNVERIFIED, text)
        if self.agrees and not claim.is_supported_by(measured):
            text = f"{said}; too uncertain to confirm it: measure again when the machine is quiet"
            return Check("speed", Outcome.UNVERIFIED, text)
        if self.agrees:
            return Check("speed", Outcome.CONFIRMED, f"{said}; they agree")
        if measured.ratio > claim.speedup:
            return Check("speed", Outcome.CONFIRMED, f"{said}; it is faster than claimed")
        return Check("speed", Outcome.DIFFERS, f"{said}; it is slower than claimed")

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
