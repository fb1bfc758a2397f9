"""What a run searches in, and who searches: all that differs between region and subgraph mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from qdqtune.records._measurement import LayerTime
from qdqtune.records._subgraphs import Batch
from qdqtune.records._tuning import FINISHED
from qdqtune.search._space import Space, State
from qdqtune.search.strategies._strategy import Score, Trial


class SearchStrategy(Protocol):
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
class Preparation:
    """What it took to find the problem.

    Attributes:
        benchmarks: Forms of subgraphs that were built and timed.
        failed: Those that the engine refused.
        subgraphs: How many groups, subgraphs and the like there are.
        files: What was written, by what it is.
        stopped: Why it ended, as the summary has it.
        why_nothing: Why there is nothing to choose; empty if there is, or if it is not known.
    """

    benchmarks: int = 0
    failed: int = 0
    subgraphs: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    stopped: str = FINISHED
    why_nothing: str = ""


@dataclass(frozen=True)
class SearchProblem:
    """A search with what it is about.

    Attributes:
        space: What can be chosen.
        strategy: Who chooses.
        seeds: Whole-model choices that it begins with, by name.
        preparation: What it took to find it.
    """

    space: Space
    strategy: SearchStrategy
    seeds: Mapping[str, State]
    preparation: Preparation = Preparation()

    wants_layers: ClassVar[bool] = False
    """Whether it wants to see where the time of candidates goes."""

    @property
    def batches(self) -> tuple[Batch, ...]:
        """What was tried in batches so far."""
        return ()

    def saw_layers(self, state: State, layers: Sequence[LayerTime]) -> None:
        """Take in the layers that a candidate runs as, before its score is told."""

    def tell(self, scores: Sequence[Score]) -> None:
        """Answer the trial that was asked for."""
        self.strategy.tell(scores)
