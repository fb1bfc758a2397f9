"""What a run searches in, and who does it: all that differs between its modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from qdqtune.autotune.search.space import Space, State
from qdqtune.autotune.search.trial import Score, Trial
from qdqtune.workflows.tuning.candidate_evaluator import TakeLayers


class AskedAndTold(Protocol):
    """A search: it is asked what to compare, and told how that came out."""

    @property
    def incumbent(self) -> State:
        """The best choice so far."""
        ...

    @property
    def gain(self) -> float:
        """Its estimated log speedup over the float model."""
        ...

    @property
    def planned(self) -> int:
        """About how many candidates will have been asked about at the end."""
        ...

    @property
    def is_cut_short(self) -> bool:
        """Whether it would have gone on if it had been allowed more candidates."""
        ...

    def ask(self) -> Trial | None:
        """The comparison that is wanted next; None at the end."""
        ...

    def tell(self, scores: Sequence[Score]) -> None:
        """Answer the comparison that was asked for."""
        ...


@dataclass(frozen=True)
class Searching:
    """A search with what it is about.

    Attributes:
        space: What can be chosen.
        search: Who chooses.
        seeds: Whole-model choices that it begins with, by name.
        take_layers: Who wants to see where the time of candidates goes.
        before_tell: Called with every trial before its outcome is told.
        after_tell: Called after that.
    """

    space: Space
    search: AskedAndTold
    seeds: Mapping[str, State]
    take_layers: TakeLayers | None = None
    before_tell: Callable[[Trial], None] = lambda _trial: None
    after_tell: Callable[[], None] = lambda: None
