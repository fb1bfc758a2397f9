"""`qdqtune export`: write a candidate of a tuning run as a model, or list its float nodes."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import TYPE_CHECKING

from qdqtune._command_configs import ExportConfig
from qdqtune.cli._flags import add_config, add_output, config_from
from qdqtune.cli._runner import OK, show
from qdqtune.records._errors import UsageError
from qdqtune.records._printable import printable
from qdqtune.records._results import EXCLUSION_TOOLS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdqtune.records._results import Candidate

DESCRIPTION = (
    "Write any candidate of a tuning run, or a point of its front, as a model of its own, or list "
    "the candidates. "
    "With --exclusion_list: write which nodes stay float, for another quantization tool."
)
EXAMPLES = (
    "qdqtune export autotuner_output --candidate c0000 -o candidate.onnx",
    "qdqtune export quantized.onnx --exclusion_list onnxruntime -o exclude.json",
)

_SHOWN = 20
_INDENT = " " * len("error: ")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "folder",
        metavar="SOURCE",
        help="the --output_dir of `qdqtune tune`; with --exclusion_list also a Q/DQ model",
    )
    add_output(parser, required=False)
    add_config(parser, ExportConfig)
    parser.add_argument(  # its former name
        "--lists", dest="exclusion_list", choices=EXCLUSION_TOOLS, help=argparse.SUPPRESS
    )


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    config = config_from(options, ExportConfig)
    if config.exclusion_list is not None:
        _write_list(options, config.exclusion_list, config)
    else:
        _write_candidate(options, config)
    return OK


def _write_list(options: argparse.Namespace, tool: str, config: ExportConfig) -> None:
    from qdqtune.graph._files import check_writable, write_text
    from qdqtune.report._progress import show_progress
    from qdqtune.report._tuning import exclusion_list
    from qdqtune.workflows._export import float_nodes

    output = options.output
    if output is not None:
        check_writable(output, force=config.force)
    with show_progress(quiet=options.quiet, first=f"reading {options.folder}"):
        names = float_nodes(options.folder, against=config.against)
    text = json.dumps(exclusion_list(tool, names), indent=1)
    if output is None:
        print(text)
        return
    write_text(output, text + "\n", force=config.force)
    record = {"kind": "list", "tool": tool, "output": output, "nodes": len(names)}
    show(options, record, lambda: printable(f"{output}: {len(names)} nodes that stay float"))


def _write_candidate(options: argparse.Namespace, config: ExportConfig) -> None:
    from qdqtune.report._progress import show_progress
    from qdqtune.report._tuning import candidates_record, candidates_text
    from qdqtune.workflows._export import export, list_candidates

    if config.pareto is not None:
        _write_point(options, config.pareto, config)
        return
    candidates = list_candidates(options.folder)
    if config.is_list:
        show(options, candidates_record(candidates), lambda: candidates_text(candidates))
        return
    chosen = _chosen(options.folder, config.candidate, candidates)
    if options.output is None:
        raise _no_output()
    with show_progress(quiet=options.quiet, first=f"writing candidate {chosen.id}"):
        report = export(options.folder, chosen.id, options.output, force=config.force)
    text = f"{report.output}: candidate {chosen.id}, {chosen.tensors} tensors quantized"
    show(options, report, lambda: printable(text))


def _write_point(options: argparse.Namespace, number: int, config: ExportConfig) -> None:
    from qdqtune.report._progress import show_progress
    from qdqtune.workflows._export import export

    if options.output is None:
        raise _no_output()
    with show_progress(quiet=options.quiet, first=f"writing point {number} of the front"):
        report = export(options.folder, number, options.output, force=config.force)
    found = report.candidate
    about = (f"point {number}", f"{found.speedup:.3f}x", found.accuracy)
    text = f"{report.output}: {', '.join(filter(None, about))}, {found.tensors} tensors quantized"
    show(options, report, lambda: printable(text))


def _no_output() -> UsageError:
    return UsageError("No output file was given.", "Name it: -o OUT.onnx.")


def _chosen(folder: str, candidate: str | None, candidates: Sequence[Candidate]) -> Candidate:
    from qdqtune.report._tuning import candidates_text

    for one in candidates:
        if one.id == candidate:
            return one
    what = (
        "No candidate was given."
        if candidate is None
        else f"{folder} has no candidate {candidate!r}."
    )
    table = textwrap.indent(candidates_text(candidates, most=_SHOWN), _INDENT)
    raise UsageError(what, f"Name one of these with --candidate ID:\n{table}")
