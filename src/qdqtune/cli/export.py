"""`qdqtune export`: any candidate of a tuning run as a model of its own."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import TYPE_CHECKING

from qdqtune.cli.flags import add_format, add_output, common
from qdqtune.records.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdqtune.cli import Commands
    from qdqtune.records.candidates import Candidate

_SHOWN = 20
_INDENT = " " * len("error: ")


def add_parser(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "export",
        parents=[common()],
        help="write a candidate that a tuning run tried",
        description="Write any candidate of a tuning run as a model that needs nothing of the "
        "run's folder, or list them.",
    )
    parser.add_argument("folder", metavar="DIR", help="the --output_dir of `qdqtune tune`")
    parser.add_argument("--candidate", metavar="ID", help="which one; see --list")
    parser.add_argument("--list", action="store_true", help="list the candidates")
    add_output(parser, required=False)
    add_format(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from qdqtune.report.candidates import candidates_record, candidates_text
    from qdqtune.report.tables import printable
    from qdqtune.workflows.tuning.export import export_candidate, list_candidates

    candidates = list_candidates(options.folder)
    is_json = options.format == "json"
    if options.list:
        record = candidates_record(candidates)
        print(json.dumps(record, indent=1) if is_json else candidates_text(candidates))
        return 0
    chosen = _chosen(options, candidates)
    if options.output is None:
        raise UsageError("No file to write is named.", "Name it: -o OUT.onnx.")
    written = export_candidate(options.folder, chosen.id, options.output, force=options.force)
    if is_json:
        print(json.dumps({"kind": "export", "output": str(written), **chosen.to_dict()}, indent=1))
    else:
        print(printable(f"{written}: candidate {chosen.id}, {chosen.tensors} tensors quantized"))
    return 0


def _chosen(options: argparse.Namespace, candidates: Sequence[Candidate]) -> Candidate:
    from qdqtune.report.candidates import candidates_text

    for one in candidates:
        if one.id == options.candidate:
            return one
    what = (
        "No candidate is named."
        if options.candidate is None
        else f"{options.folder} has no candidate {options.candidate!r}."
    )
    table = textwrap.indent(candidates_text(candidates, most=_SHOWN), _INDENT)
    raise UsageError(what, f"Name one of these with --candidate ID:\n{table}")
