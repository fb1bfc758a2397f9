"""What subgraph mode has to show: the pieces, and what became of them in the whole model."""

from __future__ import annotations

from collections.abc import Sequence

from qdqtune.records.subgraphs import Batch
from qdqtune.records.tuning import Summary, TunePlan
from qdqtune.report.tables import text_table

MODE = "subgraph"
STAGE = "subgraphs"
"""The stage whose steps are pieces, not whole models."""

_HEADER = [
    "tried on the whole model",
    "quantized",
    "dropped",
    "predicted",
    "measured",
    "std error",
    "",
]
_NUMBERS = (1, 2, 3, 4, 5)
_RAW = "raw"
# What the search calls a step from the best so far; everything else began from the float model.
_STEPS = frozenset({"batches", "doubts", "schemes"})


def batches_table(batches: Sequence[Batch]) -> str:
    """What was tried on the whole model beside what the pieces had promised."""
    return text_table(_HEADER, [_row(batch) for batch in batches], right=_NUMBERS)


def batches_note(batches: Sequence[Batch]) -> str:
    """How to read the table."""
    stages = {batch.stage for batch in batches}
    note = "Quantized and dropped count fusion groups; speedups are over float"
    if stages & _STEPS:
        note += ", those of schemes, batches and doubts over the best before them"
    # An assembly without Q/DQ is the float model, which is not timed against itself.
    return f"{note}." if _RAW in stages else f"{note}. The pieces advise to leave all float."


def pieces_line(summary: Summary) -> str:
    """How many pieces there were to choose from, and how many were timed; empty if unknown."""
    found, timed = summary.subgraphs, summary.subgraph_benchmarks
    if not found:  # it ended before all of them were
        return f"{timed} benchmarks of pieces." if timed else ""
    return (
        f"{found['groups']} fusion groups ({found['structural']} by structure alone), "
        f"{found['units']} could be quantized: {found['pieces']} distinct pieces, "
        f"{f'{timed} benchmarks of them' if timed else 'known from before'}."
    )


def plan_lines(plan: TunePlan) -> list[str]:
    """What a run would do about the pieces."""
    return [
        f"what {plan.engine} fuses is found out in a run, and each distinct piece of it is timed "
        "alone, as float and quantized",
        f"at most {plan.benchmarks} assemblies of the whole model on {plan.engine}; nothing was "
        "measured or written",
    ]


def _row(batch: Batch) -> list[str]:
    return [
        batch.stage,
        str(batch.quantized),
        str(batch.dropped),
        f"{batch.predicted:.3f}x",
        "failed" if batch.measured is None else f"{batch.measured:.3f}x",
        "" if batch.measured is None else f"{100 * batch.error:.1f} %",
        "taken" if batch.accepted else "",
    ]
