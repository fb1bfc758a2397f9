"""Shapes of inputs as TensorRT wants them: the smallest, the usual and the largest of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
OpenDims = Mapping[str, tuple[int | None, ...]]
"""Dims by input; None where the model leaves one open."""

# 'a:b':1x2 or x:1x2, where the last colon before the sizes ends the name.
_ITEM = re.compile(r"(?:'([^']*)'|([^',]+?)):(scalar|\d+(?:x\d+)*|)(?:,|$)")


@dataclass(frozen=True)
class ShapeRange:
    """What one input may look like.

    Attributes:
        least: The smallest sizes.
        usual: Those that kernels are chosen for.
        most: The largest.
    """

    least: Shape
    usual: Shape
    most: Shape

    def has(self, shape: Shape) -> bool:
        """Whether a shape lies in it."""
        return len(shape) == len(self.least) and all(
            low <= size <= high
            for low, size, high in zip(self.least, shape, self.most, strict=True)
        )

    def with_usual(self, shape: Shape) -> ShapeRange:
        """The smallest range that has this one and the shape in it, made for the shape."""
        return ShapeRange(
            tuple(map(min, self.least, shape)), shape, tuple(map(max, self.most, shape))
        )


@dataclass(frozen=True)
class ShapeRequest:
    """What a user says about inputs with open dims, each as shapes by input.

    Attributes:
        least: Of `min_shapes`.
        usual: Of `opt_shapes`.
        most: Of `max_shapes`.
    """

    least: Shapes = field(default_factory=dict)
    usual: Shapes = field(default_factory=dict)
    most: Shapes = field(default_factory=dict)

    def check_names(self, inputs: OpenDims) -> None:
        """Make sure that every name is an input, and every shape fits it.

        Raises:
            ValueError: If not.
        """
        for what, shapes in (("min", self.least), ("opt", self.usual), ("max", self.most)):
            for name, shape in shapes.items():
                if name not in inputs:
                    raise ValueError(
                        f"{what}_shapes names the input '{name}', the model has {list(inputs)}"
                    )
                dims = inputs[name]
                if len(shape) != len(dims) or any(
                    dim is not None and dim != size for dim, size in zip(dims, shape, strict=False)
                ):
                    raise ValueError(
                        f"{what}_shapes has {sizes_text(shape)} for '{name}', whose dims are "
                        f"{'x'.join('?' if dim is None else str(dim) for dim in dims)}"
                    )

    def range_of(self, name: str, fed: Shape | None) -> ShapeRange | None:
        """The range of an input with open dims; None if nothing is known of it.

        Args:
            name: The input.
            fed: A shape that it has in a run; None if none is known yet.

        Raises:
            ValueError: If what was said contradicts itself, or leaves that run out.
        """
        said = [shapes[name] for shapes in (self.usual, self.most, self.least) if name in shapes]
        if not said:
            return None if fed is None else ShapeRange(fed, fed, fed)
        usual = self.usual.get(name, fed if fed is not None else said[0])
        alone = len(said) == 1 and name in self.usual
        least = self.least.get(name, usual)
        most = self.most.get(name, usual)
        range_ = ShapeRange(least, usual, most)
        if not range_.has(usual) or any(a > b for a, b in zip(least, most, strict=True)):
            raise ValueError(
                f"the shapes of '{name}' don't grow from {sizes_text(least)} over "
                f"{sizes_text(usual)} to {sizes_text(most)}"
            )
        if fed is not None and not range_.has(fed):
            if alone:  # only what is usual was said, no limit
                return range_.with_usual(fed)
            raise ValueError(
                f"the feed of '{name}' is {sizes_text(fed)}, which is not between "
                f"{sizes_text(least)} and {sizes_text(most)}"
            )
        return range_


def widened(
    requested: ShapeRequest, shapes: Shapes, earlier: Mapping[str, ShapeRange]
) -> dict[str, ShapeRange]:
    """What inputs may look like so that a run fits, and all for which there was an engine.

    Args:
        requested: What the user says.
        shapes: Of the run.
        earlier: Ranges of the engine that there was.

    Raises:
        ValueError: If the user's limits leave the run out.
    """
    ranges = {}
    for name, shape in shapes.items():
        wanted = requested.range_of(name, shape) or ShapeRange(shape, shape, shape)
        if name in earlier:
            both = earlier[name].with_usual(wanted.least).with_usual(wanted.most)
            wanted = both.with_usual(wanted.usual)
        ranges[name] = wanted
    return ranges


def parse_shapes(text: str) -> dict[str, Shape]:
    """Reads `x:1x3x224x224,y:8` as TensorRT's tools write it; `'a:b':2` has a colon in its name.

    Raises:
        ValueError: If it can't be read.
    """
    found: dict[str, Shape] = {}
    rest = text.strip()
    while rest:
        item = _ITEM.match(rest)
        if item is None:
            raise ValueError(f"'{text}' can't be read as shapes: write NAME:1x3x224x224")
        name = item[1] if item[1] is not None else item[2].strip()
        sizes = "" if item[3] == "scalar" else item[3]
        found[name] = tuple(int(size) for size in sizes.split("x") if size)
        rest = rest[item.end() :].strip()
    return found


def shapes_text(shapes: Shapes) -> str:
    """What `parse_shapes` reads."""
    return ",".join(f"{quoted(name)}:{sizes_text(shape)}" for name, shape in shapes.items())


def sizes_text(shape: Shape) -> str:
    """The sizes as they are typed: `1x3x224x224`."""
    return "x".join(map(str, shape)) or "scalar"


def quoted(name: str) -> str:
    """A name as it is typed before a colon."""
    return f"'{name}'" if ":" in name or "," in name else name
