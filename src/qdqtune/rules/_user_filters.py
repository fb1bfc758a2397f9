"""What the user says goes before everything else."""

from __future__ import annotations

from qdqtune.rules._placement_draft import Draft, Rule, RuleDecision

_NAME = "asked"
_ASKED = RuleDecision(_NAME, "it was asked to stay float")


def _apply(draft: Draft) -> None:
    constraints = draft.constraints
    for node in draft.index.nodes:
        if node.name in constraints.never:
            decision = constraints.why.get(node.name or "", _ASKED)
            draft.leave(node, decision.rule, decision.reason)
        elif constraints.only is not None and node.name in constraints.only:
            draft.choose(node, _NAME, "it was asked for")
    if constraints.only is not None:
        for node in list(draft.undecided()):
            if node.name not in draft.planner.passthrough:
                draft.leave(node, _NAME, "it was not asked for")


rule = Rule(_NAME, "Somebody knows the model better than any rule.", _apply)
