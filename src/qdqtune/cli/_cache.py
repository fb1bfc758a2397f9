"""`qdqtune cache`: show, merge or prune what runs found out."""

from __future__ import annotations

import argparse
from pathlib import Path

from qdqtune._command_configs import CacheConfig
from qdqtune.cli._flags import add_config, add_output, config_from
from qdqtune.cli._runner import OK, show
from qdqtune.records._errors import UsageError

DESCRIPTION = (
    "Show what is in a pattern cache, or in a folder that runs share (--cache_dir): how many "
    "patterns and subgraphs are known, of which engine and device. Put several together, or remove "
    "what is not needed any more."
)
EXAMPLES = (
    "qdqtune cache show autotuner_output",
    "qdqtune cache merge run_onnxruntime run_openvino -o project_cache",
)

_SHOW, _MERGE, _PRUNE = "show", "merge", "prune"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("action", metavar="ACTION", choices=(_SHOW, _MERGE, _PRUNE),
                        help="show, merge or prune")  # fmt: skip
    parser.add_argument(
        "caches", metavar="CACHE", nargs="+", type=Path,
        help="a pattern cache, the --cache_dir of runs, or the --output_dir of one",
    )  # fmt: skip
    what = "merge: the pattern cache to write if it ends in .yaml, else the folder to add to"
    add_output(parser, what, required=False)
    add_config(parser, CacheConfig)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from qdqtune.report._cache import cache_text
    from qdqtune.workflows._cache import merge_caches, prune_cache, show_cache

    config, output = config_from(options, CacheConfig), options.output
    if options.action == _MERGE:
        if output is None:
            raise UsageError("No output was given.", "Name it: -o CACHE.")
        report = merge_caches(options.caches, Path(output), config)
    elif len(options.caches) > 1 or output is not None:
        raise UsageError(
            f"{options.action} takes one cache.", "Run it for each of them, without -o."
        )
    elif options.action == _PRUNE:
        report = prune_cache(options.caches[0], config)
    else:
        report = show_cache(options.caches[0])
    show(options, report, lambda: cache_text(report))
    return OK
