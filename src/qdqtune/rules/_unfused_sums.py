"""Sums that the engine would fuse with the normalization behind them, to its loss."""

from __future__ import annotations

from qdqtune.rules._placement_draft import Draft, rule


@rule("unfused sum", "Fused with the normalization behind it, it would be slower.")
def unfused_sums(draft: Draft) -> None:
    for name in draft.planner.unfused if draft.has_dynamic else ():
        node = draft.index.node[name]
        draft.keep_apart(node, "a kernel of its own is faster than one with the normalization")
