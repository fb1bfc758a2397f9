"""How thorough a tuning run is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qdqtune.autotune.search import Limits
from qdqtune.autotune.trial import Effort
from qdqtune.records.errors import UsageError


@dataclass(frozen=True)
class Preset:
    """What a name like ``quick`` stands for.

    Attributes:
        rounds: Blocks of each candidate, by effort.
        sweeps: How often the groups are gone through.
        benchmarks: Candidates, at most: a number, and as many more per group.
        final_s: Seconds for the last comparison.
    """

    rounds: Mapping[Effort, int]
    sweeps: int
    benchmarks: tuple[int, float]
    final_s: float

    def limits(self, groups: int, most: int | None) -> Limits:
        """The limits for a search among so many groups.

        Args:
            groups: How many there are.
            most: What the user allows; None is the preset's own number.
        """
        fixed, per_group = self.benchmarks
        allowed = fixed + round(per_group * groups)
        return Limits(sweeps=self.sweeps, benchmarks=allowed if most is None else most)


PRESETS: dict[str, Preset] = {
    "quick": Preset({Effort.SCREEN: 10, Effort.CONFIRM: 24}, 2, (24, 1.2), 6.0),
    "default": Preset({Effort.SCREEN: 14, Effort.CONFIRM: 40}, 4, (40, 3.0), 8.0),
    "extensive": Preset({Effort.SCREEN: 30, Effort.CONFIRM: 100}, 10, (100, 10.0), 30.0),
}


def preset_named(name: str) -> Preset:
    """A preset.

    Raises:
        UsageError: If there is none of that name.
    """
    if name not in PRESETS:
        raise UsageError(f"There is no preset {name!r}.", f"Choices: {', '.join(PRESETS)}.")
    return PRESETS[name]
