"""User-specified shapes and value ranges of a model's inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TypeVar, cast, overload

from qdqtune.records._errors import UsageError

_T = TypeVar("_T")

# Names may contain any separator, so each pattern lets the value decide where the name ends.
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
    """Shapes and value ranges for a model's inputs; unspecified values are random.

    The name "" stands for the only input of a single-input model.

    Attributes:
        shapes: Full shapes by input name; None keeps the model's dim.
        dims: Sizes of symbolic dims, by symbol; they apply wherever the symbol occurs.
        ranges: Lowest and highest value by input name, both inclusive.
        seed: Seed for random values.

    Raises:
        UsageError: If a value has the wrong type, a size is below 1, or a range is empty.
    """

    shapes: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "shapes", _checked_shapes(self.shapes))
        _check_dims(self.dims)
        _check_ranges(self.ranges)
        if not _is_whole(self.seed) or self.seed < 0:
            raise UsageError(f"seed is {self.seed!r}.", "It must be a whole number of at least 0.")

    @classmethod
    def from_text(
        cls,
        shapes: Iterable[str] = (),
        dims: Iterable[str] = (),
        ranges: Iterable[str] = (),
        seed: int = 0,
    ) -> InputRequest:
        """Parse command-line text; each text may hold several items separated by commas or spaces.

        Args:
            shapes: `NAME:1x3x224x224`, `NAME:1,3,224,224` or `NAME:[1,3,224,224]`; without a name
                for the only input.
            dims: `SYMBOL=8`.
            ranges: `NAME:LOW:HIGH`; without a name for the only input.
            seed: Seed for random values.

        Raises:
            UsageError: If a text can't be parsed, or contradicts another about the same name.
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


ShapesOrRequest = InputRequest | Mapping[str, Sequence[int | None]]
"""An input request, or only shapes by input name."""


@overload
def request_of(asked: ShapesOrRequest, argument: str = "inputs") -> InputRequest: ...
@overload
def request_of(asked: ShapesOrRequest | None, argument: str = "inputs") -> InputRequest | None: ...
def request_of(asked: ShapesOrRequest | None, argument: str = "inputs") -> InputRequest | None:
    """Normalize to an `InputRequest`; None stays None.

    Args:
        asked: A request, or shapes by name.
        argument: The argument's name in an error message.

    Raises:
        UsageError: If it can't be converted.
    """
    if asked is None or isinstance(asked, InputRequest):
        return asked
    if not isinstance(asked, Mapping):
        raise UsageError(
            f"{argument} is {asked!r:.80}, which can't be read as shapes.",
            'It must be a dict of shapes, such as {"image": (1, 3, 224, 224)}, or an InputRequest.',
        )
    return InputRequest(cast(Mapping[str, tuple[int | None, ...]], asked))  # it makes tuples


def _checked_shapes(shapes: object) -> dict[str, tuple[int | None, ...]]:
    advice = 'Map names of inputs to their sizes: {"image": (1, 3, 224, 224)}.'
    if not isinstance(shapes, Mapping):
        raise UsageError(f"The shapes are {shapes!r:.80}, not a dict.", advice)
    found: dict[str, tuple[int | None, ...]] = {}
    for name, shape in shapes.items():
        if not isinstance(name, str):
            raise UsageError(f"The name of an input is {name!r:.80}, not a text.", advice)
        if not isinstance(shape, Sequence) or isinstance(shape, str | bytes):
            raise UsageError(f"{name!r}: {shape!r:.80} can't be read as shapes.", advice)
        if not all(size is None or _is_whole(size) for size in shape):
            raise UsageError(
                f"{name!r}: {tuple(shape)!r:.80} can't be read as shapes.",
                "Sizes must be whole numbers, or None for a dim that stays as the model has it.",
            )
        found[name] = tuple(None if size is None else int(size) for size in shape)
        if any(size is not None and size < 1 for size in found[name]):
            what = f"of the input {name!r}" if name else "given"
            raise UsageError(
                f"The shape {shape_text(found[name])} {what} has a size below 1.",
                "Write ? for a dim that stays as the model has it.",
            )
    return found


def _check_dims(dims: object) -> None:
    if not isinstance(dims, Mapping) or not all(
        isinstance(name, str) and _is_whole(size) for name, size in dims.items()
    ):
        raise UsageError(
            f"dims is {dims!r:.80}.", 'Map names of dims to whole numbers: {"batch": 8}.'
        )
    for name, size in dims.items():
        if size < 1:
            raise UsageError(f"The dim {name!r} can't be {size}.", "Sizes are from 1 up.")


def _check_ranges(ranges: object) -> None:
    advice = 'Map names of inputs to their lowest and highest value: {"ids": (0, 999)}.'
    if not isinstance(ranges, Mapping):
        raise UsageError(f"ranges is {ranges!r:.80}, not a dict.", advice)
    for name, pair in ranges.items():
        is_pair = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
        if not is_pair or not all(isinstance(end, Real) for end in pair):
            raise UsageError(f"The range of the input {name!r} is {pair!r:.80}.", advice)
        low, high = pair
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise UsageError(
                f"There are no numbers from {low} to {high} (the range of {name!r}).",
                "Write the lowest value first: NAME:LOW:HIGH.",
            )


def _is_whole(value: object) -> bool:
    """Whether a value is an integer, including NumPy's; booleans are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_item(text: str, what: str) -> bool:
    """Whether a text is an item that names its input or dim.

    Args:
        text: The text.
        what: ``shape``, ``dim`` or ``range``.
    """
    found = _ITEMS[what].fullmatch(text)
    return found is not None and bool(found[1])


def shape_text(dims: Iterable[int | str | None] | None) -> str:
    """Format a shape as users type it: `1x3x224x224`, with names and ? for open dims.

    Args:
        dims: The dims; None if not even their number is known.
    """
    if dims is None:
        return "[...]"
    listed = list(dims)
    shown = ["?" if dim is None else str(dim) for dim in listed]
    is_named = any(isinstance(dim, str) for dim in listed)  # a name may have an x in it
    return f"[{','.join(shown)}]" if is_named or not shown else "x".join(shown)


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
