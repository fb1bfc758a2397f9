"""What `verify` shows."""

from __future__ import annotations

from qdqtune.records.verification import Check, Outcome, VerifyReport
from qdqtune.report.bench import bench_text
from qdqtune.report.tables import message

_VERDICTS = {
    None: "No run claims anything about it: this is a comparison of two files, not a verification.",
    Outcome.CONFIRMED: "It is what it was said to be.",
    Outcome.DIFFERS: "It is NOT what it was said to be.",
    Outcome.UNVERIFIED: "It can't be verified.",
}


def verify_text(report: VerifyReport) -> str:
    """The comparison, then each part of the claim; the last line is the verdict."""
    table = [bench_text(report.bench), ""] if report.bench is not None else []
    lines = [_check_line(check) for check in report.all_checks]
    if report.ignored:
        lines.append(
            f"Ignored, because a run's folder must not decide it: {', '.join(report.ignored)}."
        )
    if report.repeat_with:
        lines.append(
            "To check it under the conditions of the claim, repeat what you trust of them: "
            f"{report.repeat_with}"
        )
    lines.append(_VERDICTS[report.outcome])
    return "\n".join([*table, *map(message, lines)])


def _check_line(check: Check) -> str:
    doubt = "can't be verified: " if check.outcome is Outcome.UNVERIFIED else ""
    differs = "DIFFERS: " if check.outcome is Outcome.DIFFERS else ""
    return f"{check.name.capitalize()}: {doubt}{differs}{check.text}."
