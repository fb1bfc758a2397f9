"""Flags for a model's inputs: shapes, dims and value ranges."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from qdqtune.cli.lists import InputItemsAction
from qdqtune.records.inputs import InputRequest


def add_input_items(group: argparse._ActionsContainer) -> None:
    """Add the flags that `input_request` reads, except the seed."""
    add_shapes(group, "shapes of inputs; ? is a dim as the model has it")
    add_dim(group)
    group.add_argument(
        "--input_range",
        action=InputItemsAction,
        item="range",
        default=[],
        metavar="NAME:LOW:HIGH",
        help="values of an input, both ends included",
    )


def add_shapes(group: argparse._ActionsContainer, what: str) -> None:
    """Add `--shapes` and its alias.

    Args:
        group: The argument group to add it to.
        what: The help text.
    """
    group.add_argument(
        "--shapes",
        "--opt_shapes",
        action=InputItemsAction,
        item="shape",
        default=[],
        metavar="NAME:1x3x224x224",
        help=what,
    )


def shape_request(texts: Sequence[str] | None) -> InputRequest | None:
    """Parse the value of `--min_shapes` or `--max_shapes`; None if the flag wasn't given.

    Raises:
        UsageError: If it can't be parsed.
    """
    return InputRequest.from_text(texts) if texts else None


def add_dim(group: argparse._ActionsContainer) -> None:
    """Add `--dim`."""
    group.add_argument(
        "--dim",
        action=InputItemsAction,
        item="dim",
        default=[],
        metavar="SYMBOL=SIZE",
        help="size of a symbolic dim, wherever it stands",
    )


def input_request(options: argparse.Namespace) -> InputRequest:
    """Build the input request from the flags of `add_inputs`.

    Raises:
        UsageError: If one of them can't be parsed.
    """
    return InputRequest.from_text(options.shapes, options.dim, options.input_range, options.seed)
