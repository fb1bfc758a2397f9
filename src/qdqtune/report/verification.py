"""What `verify` shows."""

from __future__ import annotations

from qdqtune.records.verification import Claim, Edges, VerifyReport
from qdqtune.report.bench import bench_text
from qdqtune.report.tables import printable

# How many names a line shows before it only counts.
_SHOWN = 3


def verify_text(report: VerifyReport) -> str:
    """The comparison, then what was said before; the last line is the verdict."""
    lines = [bench_text(report.bench), ""]
    if report.claim is not None:
        lines += _claim_lines(report, report.claim)
    if report.is_as_given is not None:
        same = "byte for byte" if report.is_as_given else "and it is not that one any more"
        lines.append(f"The run handed its baseline back: {same}.")
    if report.edges is not None:
        lines += _edge_lines(report.edges)
    known = report.claim is not None or report.edges is not None
    said = "It is what it was said to be." if known else "Nothing was said of it before."
    lines.append(said if report.ok else "It is NOT what it was said to be.")
    return "\n".join(lines[:2] + [printable(line) for line in lines[2:]])


def _claim_lines(report: VerifyReport, claim: Claim) -> list[str]:
    lines = [f"Claimed: {claim.speedup:.3f}x, {claim.low:.3f} to {claim.high:.3f}."]
    measured = report.measured
    if measured is None:
        return lines
    lines.append(f"Measured: {measured.ratio:.3f}x, {measured.low:.3f} to {measured.high:.3f}.")
    if report.other_conditions:
        then = ", ".join(
            f"{name} {before!r}, now {now!r}"
            for name, (before, now) in report.other_conditions.items()
        )
        lines.append(f"These can't be compared: the claim was made with {then}.")
    elif report.agrees:
        lines.append("They agree.")
    else:
        faster = measured.ratio > claim.speedup
        lines.append(f"They differ: it is {'faster' if faster else 'slower'} than claimed.")
    return lines


def _edge_lines(edges: Edges) -> list[str]:
    if edges.ok:
        return [f"Its {edges.expected} Q/DQ edges are exactly those of placement.json."]
    return [
        f"{len(names)} Q/DQ edges {what} placement.json: {_names(names)}."
        for names, what in ((edges.missing, "are only in"), (edges.surplus, "are not in"))
        if names
    ]


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_SHOWN])
    more = len(names) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
