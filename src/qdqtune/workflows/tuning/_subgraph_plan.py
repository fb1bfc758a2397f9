"""How the time of a run in subgraph mode is divided: subgraphs first, then whole models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qdqtune.report._formatting import counted, duration
from qdqtune.search.strategies._strategy import Effort
from qdqtune.search.subgraphs._quantizable_groups import Subgraph
from qdqtune.workflows.tuning._time_budget import TimeBudget


@dataclass(frozen=True)
class SubgraphPlan:
    """What a run intends to do with its time.

    Attributes:
        subgraphs: Subgraphs that are not timed yet.
        subgraphs_s: Expected seconds for all of them.
        limit_s: Seconds that they may take; infinite without a budget.
        candidates: Whole models that can be tried then.
        candidates_s: Expected seconds for them.
    """

    subgraphs: int
    subgraphs_s: float
    limit_s: float
    candidates: int
    candidates_s: float

    def __str__(self) -> str:
        """The plan, for the user."""
        told = f"{counted(self.subgraphs, 'subgraph')} about {duration(self.subgraphs_s)}"
        if self.subgraphs_s > self.limit_s:
            told += f", of which {duration(max(0.0, self.limit_s))} fit into the budget"
        whole = counted(self.candidates, "whole model")
        return f"{told}; {whole} about {duration(self.candidates_s)}"


def make_plan(
    budget: TimeBudget, missing: Sequence[Subgraph], nodes: int, forms_s: float, candidates: int
) -> SubgraphPlan:
    """Divide the time that is left.

    A subgraph is expected to build in as much of the model's time as it has of its nodes.

    Args:
        budget: The time.
        missing: Subgraphs that are not timed yet.
        nodes: Number of nodes in the model.
        forms_s: Seconds of timed runs for each form of a subgraph.
        candidates: Whole models that the search may try.
    """
    forms = [1 + len(subgraph.schemes) for subgraph in missing]
    shares = [len(subgraph.content.nodes) / max(1, nodes) for subgraph in missing]
    expected_s = sum(
        count * (share * budget.build_s + forms_s)
        for count, share in zip(forms, shares, strict=True)
    )
    limit_s = budget.subgraphs_s(candidates)
    left_s = budget.left_s() - budget.end_s() - min(expected_s, max(0.0, limit_s))
    fitting = next(
        (n for n in range(candidates, 0, -1) if budget.trial_s(n, Effort.CONFIRM) <= left_s), 0
    )
    trials_s = budget.trial_s(fitting, Effort.CONFIRM) if fitting else 0.0
    return SubgraphPlan(len(missing), expected_s, limit_s, fitting, trials_s)
