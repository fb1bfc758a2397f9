"""What runs found out about patterns: which ops of them are quantized, and what that brings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from qdqtune.records._json_form import Record
from qdqtune.search.patterns._region_pattern import RegionPattern
from qdqtune.search.regions._canonical import Scalable, scalable

# No choice makes a model ten thousand times as fast; a share is a part of 1.
_LARGEST = 10.0


@dataclass(frozen=True)
class Conditions(Record):
    """Where something was found out.

    Attributes:
        engine: The engine.
        version: Its version.
        device: The device, with its instruction set and the number of threads.
        dialect: The dialect of Q/DQ.
        quant_type: The quant type.
    """

    engine: str
    version: str
    device: str
    dialect: str
    quant_type: str

    def is_like(self, other: Conditions) -> bool:
        """Whether what was measured there counts here: all but the version is equal."""
        return replace(self, version=other.version) == other


@dataclass(frozen=True)
class ChoiceOutcome(Record):
    """One form of the ops in one place of a pattern.

    Attributes:
        role: The place in the pattern's canonical order.
        form: What of the ops is quantized, such as `whole` or `dynamic`.
        is_chosen: Whether they have that form in the result.
        gain: Log speedup of the whole model by giving them that form, all else equal; None if that
            was not measured.
        error: Its standard error.
        share: Their share of the float model's latency, where the gain is known.
    """

    role: int
    form: str
    is_chosen: bool
    gain: float | None = None
    error: float = 0.0
    share: float = 0.0

    def check(self) -> None:
        """See `Record.check`."""
        if not 0.0 <= self.error <= _LARGEST or not 0.0 <= self.share <= _LARGEST:
            raise ValueError("an error or a share is impossible")
        if self.gain is not None and abs(self.gain) > _LARGEST:
            raise ValueError("a gain is impossible")


@dataclass(frozen=True)
class PatternOutcome(Record):
    """What a run found out about a pattern; all of it may have stayed float.

    Attributes:
        signature: The pattern's signature, with types and shapes.
        size: Number of nodes in a region of the pattern.
        conditions: Where it was found out.
        is_settled: Whether the search went on until it was finished.
        choices: All forms that its ops could have.
    """

    signature: str
    size: int
    conditions: Conditions
    is_settled: bool
    choices: tuple[ChoiceOutcome, ...]

    @cached_property
    def pattern(self) -> RegionPattern:
        """The pattern."""
        return RegionPattern(self.signature, self.size)

    @cached_property
    def structure(self) -> str:
        """The pattern's signature without types and shapes."""
        return self.pattern.structure.signature

    @cached_property
    def scalable(self) -> Scalable:
        """The pattern's structure and dims in a form that is the same for a model of any width."""
        return scalable(self.signature)

    @property
    def key(self) -> tuple[str, Conditions]:
        """Outcomes with equal keys are about the same: the newest one is kept."""
        return self.signature, self.conditions

    def check(self) -> None:
        """See `Record.check`."""
        if len({(each.role, each.form) for each in self.choices}) < len(self.choices):
            raise ValueError("two choices of a pattern are about the same form of an op")
