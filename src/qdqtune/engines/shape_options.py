"""Ranges of input shapes as options of the engines that need them."""

from __future__ import annotations

from collections.abc import Mapping

from qdqtune.engines.tensorrt.shapes import Shapes, shapes_text

__all__ = ["MAX", "MIN", "OPT", "Shapes", "range_options", "shapes_text", "without_ranges"]

MIN, OPT, MAX = "min", "opt", "max"
_OPTIONS = {MIN: "min_shapes", OPT: "opt_shapes", MAX: "max_shapes"}


def range_options(shapes: Mapping[str, Shapes]) -> dict[str, str]:
    """Return the options for ranges of input shapes.

    Args:
        shapes: By `MIN`, `OPT` and `MAX`: shapes by input.
    """
    return {_OPTIONS[label]: shapes_text(found) for label, found in shapes.items() if found}


def without_ranges(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without shape ranges."""
    return {name: value for name, value in options.items() if name not in _OPTIONS.values()}
