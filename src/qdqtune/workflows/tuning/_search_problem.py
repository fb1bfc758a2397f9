"""What a run searches in, and who searches: all that differs between region and subgraph mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from qdqtune.records._measurement import LayerTime
from qdqtune.records._tuning import FINISHED
from qdqtune.search._space import Space, State
from qdqtune.search.strategies._strategy import Score, SearchStrategy, Trial


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

    def saw_layers(self, state: State, layers: Sequence[LayerTime]) -> None:
        """Take in the layers that a candidate runs as, before its score is told."""

    def tell(self, trial: Trial, scores: Sequence[Score]) -> None:
        """Answer a trial that was asked for."""
        self.strategy.tell(trial, scores)
