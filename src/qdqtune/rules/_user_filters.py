"""What the user says goes before everything else."""

from __future__ import annotations

from qdqtune.rules._placement_draft import Draft, RuleDecision, rule


@rule("asked", "Somebody knows the model better than any rule.")
def user_filters(draft: Draft) -> None:
    constraints = draft.constraints
    asked = RuleDecision(draft.rule, "it was asked to stay float")
    for node in draft.index.nodes:
        if node.name in constraints.never:
            decision = constraints.why.get(node.name or "", asked)
            draft.leave(node, decision.reason, decision.rule)
        elif constraints.only is not None and node.name in constraints.only:
            draft.choose(node, "it was asked for")
    for node in draft.undecided() if constraints.only is not None else ():
        if node.name not in draft.planner.passthrough:
            draft.leave(node, "it was not asked for")
