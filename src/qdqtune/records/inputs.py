"""What a user says about a model's inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from qdqtune.records.errors import UsageError

_T = TypeVar("_T")

# Names may hold any of the separators, so each pattern lets the value decide where a name ends.
_SIZE = r"(?:-?\d+|\?)"
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_END = r"(?:\s*,|\s|$)"
_SHAPE = rf"\[[^\[\]]*\]|{_SIZE}(?:\s*,\s*{_SIZE})+|{_SIZE}(?:[xX]{_SIZE})*"
_SHAPE_ITEM = re.compile(rf"(?:(.+?):)?({_SHAPE}){_END}")
_DIM_ITEM = re.compile(rf"(.+?)=(-?\d+){_END}")
_RANGE_ITEM = re.compile(rf"(?:(.+?):)?({_NUMBER}):({_NUMBER}){_END}")
_ITEMS = {"shape": _SHAPE_ITEM, "dim": _DIM_ITEM, "range": _RANGE_ITEM}


@dataclass(frozen=True)
class InputRequest:
    """Shapes and values for inputs that the model leaves open; what is not said is made up.

    The name "" stands for the only input of a model that has one.

    Attributes:
        shapes: Whole shapes by input name; None leaves a dim as the model has it.
        dims: Sizes of symbolic dims, by symbol: they hold wherever the symbol stands.
        ranges: Lowest and highest value by input name; both ends can occur.
        seed: Seed of what is random.

    Raises:
        UsageError: If a size is below 1, or a range has no values in it.
    """

    shapes: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        for name, shape in self.shapes.items():
            if any(size is not None and size < 1 for size in shape):
                what = f"of the input {name!r}" if name else "given"
                raise UsageError(
                    f"The shape {shape_text(shape)} {what} has a size below 1.",
                    "Write ? for a dim that stays as the model has it.",
                )
        for symbol, size in self.dims.items():
            if size < 1:
                raise UsageError(f"The dim {symbol!r} can't be {size}.", "Sizes are from 1 up.")
        for name, (low, high) in self.ranges.items():
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise UsageError(
                    f"There are no numbers from {low} to {high} (the range of {name!r}).",
                    "Write the lowest value first: NAME:LOW:HIGH.",
                )

    @classmethod
    def from_text(
        cls,
        shapes: Iterable[str] = (),
        dims: Iterable[str] = (),
        ranges: Iterable[str] = (),
        seed: int = 0,
    ) -> InputRequest:
        """Read what a user typed; each text may hold several items, by commas or spaces.

        Args:
            shapes: `NAME:1x3x224x224`, `NAME:1,3,224,224` or `NAME:[1,3,224,224]`; without a name
                for the only input.
            dims: `SYMBOL=8`.
            ranges: `NAME:LOW:HIGH`; without a name for the only input.
            seed: Seed of what is random.

        Raises:
            UsageError: If a text can't be read, or says two things about one name.
        """
        found_shapes: dict[str, tuple[int | None, ...]] = {}
        for text, item in _items(_SHAPE_ITEM, shapes, "shape", "NAME:1x3x224x224"):
            _put(found_shapes, item[1] or "", _shape(item[2], text), "the shape of the input")
        found_dims: dict[str, int] = {}
        for _, item in _items(_DIM_ITEM, dims, "dim", "SYMBOL=8"):
            _put(found_dims, item[1].strip(), int(item[2]), "the dim")
        found_ranges: dict[str, tuple[float, float]] = {}
        for _, item in _items(_RANGE_ITEM, ranges, "range", "NAME:LOW:HIGH, as in ids:0:999"):
            pair = (_number(item[2]), _number(item[3]))
            _put(found_ranges, item[1] or "", pair, "the range of the input")
        return cls(found_shapes, found_dims, found_ranges, seed)


def is_item(text: str, what: str) -> bool:
    """Whether a text is one item for an input or a dim that it names.

    Args:
        text: The text.
        what: ``shape``, ``dim`` or ``range``.
    """
    found = _ITEMS[what].fullmatch(text)
    return found is not None and bool(found[1])


def shape_text(dims: Iterable[int | str | None] | None) -> str:
    """A shape as it is typed: `1x3x224x224`, with names and ? for open dims.

    Args:
        dims: The dims; None if not even their number is known.
    """
    if dims is None:
        return "[...]"
    listed = list(dims)
    if not listed:
        return "[]"
    if any(isinstance(dim, str) for dim in listed):
        # A name may have an x in it.
        return f"[{','.join('?' if dim is None else str(dim) for dim in listed)}]"
    return "x".join("?" if dim is None else str(dim) for dim in listed)


def _items(
    pattern: re.Pattern[str], texts: Iterable[str], what: str, form: str
) -> Iterator[tuple[str, re.Match[str]]]:
    for text in texts:
        rest = text.strip()
        if not rest:
            raise UsageError(f"A {what} is missing.", f"Write {form}.")
        while rest:
            item = pattern.match(rest)
            if item is None:
                raise UsageError(f"{text!r} can't be read as a {what}.", f"Write {form}.")
            yield text, item
            rest = rest[item.end() :].lstrip()


def _shape(text: str, whole: str) -> tuple[int | None, ...]:
    inner = text.strip("[]").strip()
    has_commas = "," in text or text.startswith("[")
    sizes = re.split(r"\s*,\s*" if has_commas else "[xX]", inner) if inner else []
    if not all(re.fullmatch(_SIZE, size) for size in sizes):
        raise UsageError(f"{whole!r} can't be read as a shape.", "Write NAME:[1,3,224,224].")
    return tuple(None if size == "?" else int(size) for size in sizes)


def _number(text: str) -> float:
    # An int stays one: the largest int64 is not a float.
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


def _put(found: dict[str, _T], name: str, value: _T, what: str) -> None:
    if found.setdefault(name, value) != value:
        raise UsageError(
            f"{what[0].upper()}{what[1:]} {name!r} is given twice, differently.", "Give it once."
        )
