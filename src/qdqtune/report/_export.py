"""The output of `export`: the candidates of a run.

Or the float nodes in the formats of other tools.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from qdqtune.records._printable import message, printable
from qdqtune.records._results import Candidate
from qdqtune.report._formatting import cell, shortened, text_table

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
        remark = f"failed: {shortened(first, _LONGEST_FAILURE)}"
    elif one.tensors is None:
        remark = "no file"
    return [
        one.id,
        cell(one.tensors, "d"),
        cell(one.latency_ms, ".3f"),
        cell(one.speedup, ".3f", "x"),
        remark,
    ]


ListForm = list[str] | dict[str, list[str]]


def exclusion_list(tool: str, names: Sequence[str]) -> ListForm:
    """Return a list of nodes not to quantize, in the format that a tool takes.

    Args:
        tool: One of `EXCLUSION_TOOLS`.
        names: Names of nodes.
    """
    if tool == "modelopt":  # it matches regular expressions at the beginning of names
        return [f"^{re.escape(name)}$" for name in names]
    return {"names": list(names)} if tool == "nncf" else list(names)
