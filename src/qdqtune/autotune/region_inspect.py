"""`python -m qdqtune.autotune.region_inspect`: print the region tree of a model."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtune._parser import Parser
from qdqtune.cli._flags import add_limits, positive
from qdqtune.cli._runner import FAILED, OK, USAGE, run_safely, set_up_logging
from qdqtune.config import REGIONS
from qdqtune.records._precision import AUTO

if TYPE_CHECKING:
    from qdqtune.search.regions._region import Region

__all__ = ["inspect_region_search", "main"]


_DEFAULT_SEQUENCE_SIZE = 10


def get_parser() -> argparse.ArgumentParser:
    """Build the parser."""
    parser = Parser(
        prog="python -m qdqtune.autotune.region_inspect",
        description="Show how a model is divided into regions. `qdqtune inspect` shows more: "
        "patterns, what can be quantized, and why the rest can't.",
        examples=(
            "python -m qdqtune.autotune.region_inspect --model model.onnx",
            "python -m qdqtune.autotune.region_inspect --model model.onnx --include_all_regions",
        ),
    )
    parser.add_argument("--model", "-m", required=True, metavar="MODEL", help="an ONNX model")
    parser.add_argument(
        "--max_sequence_size",
        type=positive,
        default=_DEFAULT_SEQUENCE_SIZE,
        metavar="N",
        help="longest sequence of nodes inside a composite region (default: %(default)s)",
    )
    parser.add_argument(
        "--regions",
        choices=REGIONS,
        default=AUTO,
        help="what divides the model: its structure, or the modules that exporters record as "
        "scopes of nodes, if they do (default: %(default)s)",
    )
    parser.add_argument(
        "--include_all_regions",
        action="store_true",
        help="also show regions without quantizable operations",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also show the names of nodes and tensors, and log what is done",
    )
    add_limits(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The command line without the program name; None uses `sys.argv`.

    Returns:
        0 on success, 1 if the model can't be read, 2 for a usage error.
    """
    try:
        options = get_parser().parse_args(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE
    set_up_logging(2 if options.verbose else 0, quiet=False)

    def run() -> int:
        _show(
            options.model,
            options.max_sequence_size,
            options.include_all_regions,
            verbose=options.verbose,
            divided_by=options.regions,
        )
        return OK

    return run_safely(run, options, usage=FAILED)


def inspect_region_search(
    onnx_path: str | os.PathLike[str],
    max_sequence_size: int = _DEFAULT_SEQUENCE_SIZE,
    include_all_regions: bool = False,
    regions: str = AUTO,
) -> list[Region]:
    """Print the region tree of a model and return the regions.

    Args:
        onnx_path: The model.
        max_sequence_size: Maximum number of nodes in a sequence inside a composite region.
        include_all_regions: Whether regions without quantizable operations are shown and returned.
        regions: What divides the model, as for `tune`.

    Returns:
        The outermost regions, with their children.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    return _show(
        onnx_path, max_sequence_size, include_all_regions, verbose=False, divided_by=regions
    )


def _show(
    path: str | os.PathLike[str],
    max_sequence_size: int,
    all_regions: bool,
    *,
    verbose: bool,
    divided_by: str = AUTO,
) -> list[Region]:
    from qdqtune.report._inspection import region_tree_text
    from qdqtune.search.regions._region import walk
    from qdqtune.workflows._inspect import regions_of

    regions, records = regions_of(Path(path), max_sequence_size, divided_by)
    print(region_tree_text(records, all_regions=all_regions, verbose=verbose))
    if all_regions:
        return regions
    kept = {record.id for record in records if record.quantizable}
    left = [region for region in regions if region.id in kept]
    for region in walk(left):
        for child in region.children:
            if child.id not in kept:
                region.remove_child(child)
    return left


if __name__ == "__main__":
    sys.exit(main())
