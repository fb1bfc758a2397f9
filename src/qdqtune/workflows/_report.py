"""`report`: `report.html` of one or several runs, from the records in their folders."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqtune.graph._files import check_writable, write_text
from qdqtune.records._errors import NewerSchemaError, UsageError
from qdqtune.records._placement import Placement
from qdqtune.records._report import PageReport, ReportDetails, RunView, TrialView
from qdqtune.records._tuning import Summary
from qdqtune.records._untrusted_files import parse_json, read_text
from qdqtune.workflows._arguments import checked_path
from qdqtune.workflows.tuning._folder import DETAILS, JOURNAL, REPORT, SUMMARY
from qdqtune.workflows.tuning._journal_format import whole_lines

_logger = logging.getLogger(__name__)

_FLOAT = Placement().digest()
# Far more than a run writes; larger files and longer searches would take minutes and gigabytes.
_MOST_DETAILS = 32 << 20
_MOST_TRIALS = 5000
# No model is a million times as fast as another; longer chains of gains come from no run.
_LARGEST_GAIN = math.log(1e6)


def report(
    folders: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
) -> PageReport:
    """Write the report of one run, or of several side by side.

    Args:
        folders: The output folders of the runs.
        output: The file to write; None for `report.html` in the only folder, where it replaces an
            earlier one.
        force: Whether another existing file may be replaced.

    Raises:
        UsageError: If there is no folder, or one is not that of a finished run.
        OutputError: If the report can't be written.
    """
    from qdqtune.report._html import page_html

    if not folders:
        raise UsageError("No run was given.", "Name the --output_dir of `qdqtune tune`.")
    paths = [checked_path(folder, "folder") for folder in folders]
    if output is None and len(paths) > 1:
        raise UsageError(
            "A report of several runs belongs to none of their folders.",
            "Name the file to write: -o report.html.",
        )
    target = paths[0] / REPORT if output is None else checked_path(output, "output")
    if output is not None:
        check_writable(target, force=force)
    runs = [read_run(path) for path in paths]
    try:
        html = page_html(runs)
    except (ArithmeticError, ValueError) as error:  # speedups of 0 and the like
        named = ", ".join(map(str, paths))
        raise UsageError(
            f"The records in {named} contain figures that no run produces: {error}.",
            "Run the same `qdqtune tune` again, or name another folder.",
        ) from error
    write_text(target, html, force=True)
    return PageReport(str(target), tuple(map(str, folders)), len(html.encode()))


def read_summary(folder: Path) -> Summary:
    """Read the summary of a finished run.

    Raises:
        UsageError: If it is not the folder of one.
    """
    try:
        return Summary.from_dict(parse_json(read_text(folder / SUMMARY), SUMMARY))
    except NewerSchemaError:
        raise
    except FileNotFoundError:
        raise UsageError(
            f"{folder} is not the folder of a finished run: it has no {SUMMARY}.",
            "Name the --output_dir of `qdqtune tune`; the same command finishes a run that was "
            "killed.",
        ) from None
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{folder / SUMMARY} can't be read: {error}.", "Run the same `qdqtune tune` again."
        ) from None


def read_run(folder: Path) -> RunView:
    """Read the records of a finished run; damaged details are left out.

    Raises:
        UsageError: If it is not the folder of one.
    """
    summary = read_summary(folder)
    details = read_details(folder / DETAILS)
    named = details.folder if details is not None else ""
    journal = folder / JOURNAL
    trials = tuple(_trials(whole_lines(journal))) if journal.is_file() else ()
    if len(trials) > _MOST_TRIALS:
        _logger.warning(
            "%s has %s measurements; the report shows the first %s",
            journal, f"{len(trials):,}", f"{_MOST_TRIALS:,}",
        )  # fmt: skip
    return RunView(summary, named or folder.name, trials[:_MOST_TRIALS], details)


def read_details(path: Path) -> ReportDetails | None:
    """Read the data of a report; None if there is none, or if it is damaged.

    Raises:
        NewerSchemaError: If a newer version wrote it.
    """
    try:
        return ReportDetails.from_dict(parse_json(read_text(path, _MOST_DETAILS), path.name))
    except NewerSchemaError:
        raise
    except FileNotFoundError:
        return None
    except (OSError, KeyError, TypeError, ValueError) as error:
        _logger.warning("%s is damaged and left out: %s", path, error)
        return None


def _trials(lines: Iterator[Mapping[str, Any]]) -> Iterator[TrialView]:
    """Yield the measurements of a journal; times of its sessions follow each other."""
    gains: dict[str, float | None] = {_FLOAT: 0.0}
    ended_s = now_s = 0.0
    for line in lines:
        if line["kind"] == "session":
            ended_s = now_s
        now_s = max(now_s, ended_s + float(line.get("at_s", 0.0)))
        if line["kind"] != "measurement":
            continue
        base, own = gains.get(line["reference"]), line["gain"]
        gain = base + own if base is not None and own is not None else None
        if gain is not None and abs(gain) > _LARGEST_GAIN:
            gain = None
        if gain is not None:
            gains[line["candidate"]] = gain
        yield TrialView(
            candidate=line.get("id", ""),
            at_s=now_s,
            stage=str(line.get("stage", "")),
            gain=gain,
            error=line["error"],
            confirms=line["effort"].startswith("confirm"),
            failure=line["failure"] or "",
            latency_ms=line["latency_ms"],
        )
