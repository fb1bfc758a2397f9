"""`qdqtune export`: write a candidate of a tuning run as a model, or list its float nodes."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import TYPE_CHECKING

from qdqtune.cli._flags import add_format, add_output
from qdqtune.records._errors import UsageError
from qdqtune.report._export import TOOLS, exclusion_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdqtune.cli import AddParser
    from qdqtune.records._results import Candidate

_SHOWN = 20
_INDENT = " " * len("error: ")


def add_parser(add: AddParser) -> None:
    """Declare the command."""
    parser = add(
        description="Write any candidate of a tuning run as a model of its own, or list them. "
        "With --exclusion_list: write which nodes stay float, for another quantization tool.",
        examples=(
            "qdqtune export autotuner_output --candidate c0000 -o candidate.onnx",
            "qdqtune export quantized.onnx --exclusion_list onnxruntime -o exclude.json",
        ),
    )
    parser.add_argument(
        "folder",
        metavar="SOURCE",
        help="the --output_dir of `qdqtune tune`; with --exclusion_list also a Q/DQ model",
    )
    parser.add_argument("--list", action="store_true", help="list the candidates")
    parser.add_argument("--candidate", metavar="ID", help="the candidate to write; see --list")
    parser.add_argument(
        "--exclusion_list",
        choices=TOOLS,
        help="write the nodes that stay float, in the form in which this tool takes nodes to "
        "exclude",
    )
    parser.add_argument(  # its former name
        "--lists", dest="exclusion_list", choices=TOOLS, help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--against",
        metavar="FLOAT",
        help="with --exclusion_list: the float model whose node names are used (default: that of "
        "the run)",
    )
    add_output(parser, required=False)
    add_format(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    return _write_list(options) if options.exclusion_list else _write_candidate(options)


def _write_list(options: argparse.Namespace) -> int:
    from qdqtune.graph._files import check_writable, write_text
    from qdqtune.records._printable import printable
    from qdqtune.workflows._exclusion_list import float_nodes

    if options.output is not None:
        check_writable(options.output, force=options.force)
    names = float_nodes(options.folder, against=options.against)
    text = exclusion_text(options.exclusion_list, names)
    if options.output is None:
        print(text)
        return 0
    write_text(options.output, text + "\n", force=options.force)
    if options.format == "json":
        record = {"kind": "list", "tool": options.exclusion_list, "output": options.output}
        print(json.dumps({**record, "nodes": len(names)}, indent=1))
    else:
        print(printable(f"{options.output}: {len(names)} nodes that stay float"))
    return 0


def _write_candidate(options: argparse.Namespace) -> int:
    from qdqtune.records._printable import printable
    from qdqtune.report._export import candidates_record, candidates_text
    from qdqtune.workflows._export import export, list_candidates

    candidates = list_candidates(options.folder)
    is_json = options.format == "json"
    if options.list:
        record = candidates_record(candidates)
        print(json.dumps(record, indent=1) if is_json else candidates_text(candidates))
        return 0
    chosen = _chosen(options, candidates)
    if options.output is None:
        raise UsageError("No output file was given.", "Name it: -o OUT.onnx.")
    report = export(options.folder, chosen.id, options.output, force=options.force)
    if is_json:
        print(json.dumps(report.to_dict(), indent=1))
    else:
        text = f"{report.output}: candidate {chosen.id}, {chosen.tensors} tensors quantized"
        print(printable(text))
    return 0


def _chosen(options: argparse.Namespace, candidates: Sequence[Candidate]) -> Candidate:
    from qdqtune.report._export import candidates_text

    for one in candidates:
        if one.id == options.candidate:
            return one
    what = (
        "No candidate was given."
        if options.candidate is None
        else f"{options.folder} has no candidate {options.candidate!r}."
    )
    table = textwrap.indent(candidates_text(candidates, most=_SHOWN), _INDENT)
    raise UsageError(what, f"Name one of these with --candidate ID:\n{table}")
