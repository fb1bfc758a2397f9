"""What the user says goes before everything else."""

from __future__ import annotations

from qdqtune.rules.draft import Draft, Verdict
from qdqtune.rules.rule import Rule

_NAME = "asked"
_ASKED = Verdict(_NAME, "it was asked to stay float")


def _apply(draft: Draft) -> None:
    wishes = draft.wishes
    for node in draft.index.nodes:
        if node.name in wishes.never:
            verdict = wishes.why.get(node.name or "", _ASKED)
            draft.leave(node, verdict.rule, verdict.reason)
        elif wishes.only is not None and node.name in wishes.only:
            draft.choose(node, _NAME, "it was asked for")
    if wishes.only is not None:
        for node in list(draft.undecided()):
            if node.name not in draft.completion.moving:
                draft.leave(node, _NAME, "it was not asked for")


rule = Rule(_NAME, "Somebody knows the model better than any rule.", _apply)
