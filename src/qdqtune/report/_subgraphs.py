"""Reports of subgraph mode: the subgraphs, and how their choices did in the whole model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from qdqtune.records._subgraphs import Batch
from qdqtune.records._tuning import Summary, TunePlan
from qdqtune.report._formatting import text_table

MODE = "subgraph"
STAGE = "subgraphs"
"""The stage whose steps are subgraphs instead of whole models."""
AS_GIVEN = "as given"
"""The name of the seed that holds the placement of a model that was already quantized."""

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
# As a difference of logarithms.
_FAR = 0.1
_FAR_OFF = "Subgraph timings predicted the whole model poorly: region mode may find more."
# The search's prefix for a step from the best so far; all other steps start from the float model.
_STEPS = frozenset({"batches", "doubts", "schemes"})


def batches_lines(summary: Summary) -> list[str]:
    """Report what was tried on the whole model and how to read it; empty if nothing was."""
    if not summary.batches:
        return []
    notes = [_note(summary), *_same_seeds(summary)]
    if _timed(summary) and _is_far_off(summary.batches):
        notes.append(_FAR_OFF)
    return [batches_table(summary.batches, has_costs=_timed(summary) > 0), *notes]


def batches_table(batches: Sequence[Batch], *, has_costs: bool = True) -> str:
    """Build the table of whole-model trials and the predictions from subgraphs.

    Args:
        batches: The trials.
        has_costs: Whether any subgraph was timed, so that there are predictions.
    """
    rows = [_row(batch, has_costs=has_costs) for batch in batches]
    return text_table(_HEADER, rows, right=_NUMBERS)


def _note(summary: Summary) -> str:
    stages = {batch.stage for batch in summary.batches}
    is_early = _timed(summary) < _all_subgraphs(summary)
    note = f"Quantized and dropped count fusion groups{' that were timed' if is_early else ''}; "
    if AS_GIVEN in summary.seeds:
        note += (
            "speedups in this table are over the float model inside, that of the result is over "
            "the model as given"
        )
    else:
        note += "speedups are over float"
    if stages & _STEPS:
        note += "; those of schemes, batches and doubts are over the best before them"
    # An assembly without Q/DQ is the float model, which is not timed against itself.
    is_advice = _RAW not in stages and _timed(summary) == _all_subgraphs(summary) > 0
    return (
        f"{note}. By the subgraph timings, all of it should stay float."
        if is_advice
        else f"{note}."
    )


def _same_seeds(summary: Summary) -> list[str]:
    """List whole-model choices without a row because they turned out to equal another one."""
    tried = {batch.stage for batch in summary.batches}
    first = {speedup: name for name, speedup in reversed([*summary.seeds.items()]) if name in tried}
    return [
        f"{name}: the same as {first[speedup]}."
        for name, speedup in summary.seeds.items()
        if name not in tried and speedup in first
    ]


def _is_far_off(batches: Sequence[Batch]) -> bool:
    """Whether most predictions were far from the measurements."""
    errors = [
        abs(math.log(batch.measured / batch.predicted))
        for batch in batches
        if batch.measured and batch.predicted > 0.0
    ]
    return bool(errors) and statistics.median(errors) > _FAR


def _timed(summary: Summary) -> int:
    return summary.subgraphs.get("pieces", 0)


def _all_subgraphs(summary: Summary) -> int:
    return summary.subgraphs.get("all_pieces", _timed(summary))


def subgraph_lines(summary: Summary) -> list[str]:
    """Report how many subgraphs there were, and how many were timed; empty if unknown."""
    found, benchmarks = summary.subgraphs, summary.subgraph_benchmarks
    if not found:  # the run ended before it found any
        return [f"{benchmarks} benchmarks of subgraphs."] if benchmarks else []
    timed, subgraphs = _timed(summary), _all_subgraphs(summary)
    groups = f"{found['groups']} fusion groups ({found['structural']} by structure alone)"
    if timed < subgraphs:  # what can be quantized is known only for the timed ones
        why = ": the time was up" if summary.stopped == "budget" else ""
        told = f" {benchmarks} benchmarks of them." if benchmarks else ""
        return [f"{groups}. {timed} of {subgraphs} distinct subgraphs were timed{why}.{told}"]
    return [
        f"{groups}, {found['units']} could be quantized: {subgraphs} distinct subgraphs, "
        f"{f'{benchmarks} benchmarks of them' if benchmarks else 'known from before'}."
    ]


def plan_lines(plan: TunePlan) -> list[str]:
    """Report what a run would do with the subgraphs."""
    return [
        f"what {plan.engine} fuses is found out in a run, and each distinct subgraph is timed "
        "alone, as float and quantized",
        f"at most {plan.benchmarks} assemblies of the whole model on {plan.engine}; nothing was "
        "measured or written",
    ]


def _row(batch: Batch, *, has_costs: bool) -> list[str]:
    is_guess = not has_costs and batch.predicted == 1.0
    return [
        batch.stage,
        str(batch.quantized) if has_costs else "-",
        str(batch.dropped) if has_costs else "-",
        "-" if is_guess else f"{batch.predicted:.3f}x",
        "failed" if batch.measured is None else f"{batch.measured:.3f}x",
        "" if batch.measured is None else f"{100 * batch.error:.1f} %",
        "taken" if batch.accepted else "",
    ]
