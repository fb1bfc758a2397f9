"""The candidates of a tuning run, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qdqtune.records.candidates import Candidate
from qdqtune.report.tables import message, printable, text_table

SCHEMA = 1

_LONGEST_FAILURE = 60


def candidates_text(candidates: Sequence[Candidate], most: int | None = None) -> str:
    """Format a table of candidates, fastest first.

    Args:
        candidates: The candidates to show.
        most: The maximum number to show.
    """
    if not candidates:
        return "Nothing was tried in this run."
    ordered = sorted(candidates, key=lambda one: -(one.speedup or 0.0))
    header = ["candidate", "tensors", "latency ms", "speedup", ""]
    table = text_table(header, [_row(one) for one in ordered[:most]], right=(1, 2, 3))
    more = len(ordered) - len(ordered[:most])
    return f"{table}\nand {more} more: --list" if more else table


def candidates_record(candidates: Sequence[Candidate]) -> dict[str, Any]:
    """Build the JSON form, in the order in which they were tried."""
    listed = [one.to_dict() for one in candidates]
    return {"kind": "candidates", "schema": SCHEMA, "candidates": listed}


def _row(one: Candidate) -> list[str]:
    remark = "float" if one.tensors == 0 else ""
    if one.failure is not None:
        first = printable(message(one.failure).split("\n", 1)[0])
        shown = first if len(first) <= _LONGEST_FAILURE else f"{first[:_LONGEST_FAILURE]}…"
        remark = f"failed: {shown}"
    elif one.tensors is None:
        remark = "no file"
    return [
        one.id,
        "" if one.tensors is None else str(one.tensors),
        "" if one.latency_ms is None else f"{one.latency_ms:.3f}",
        "" if one.speedup is None else f"{one.speedup:.3f}x",
        remark,
    ]
