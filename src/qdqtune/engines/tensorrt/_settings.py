"""Options common to all forms of TensorRT, including the ranges of input shapes."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from qdqtune.engines._interface import SessionOptions
from qdqtune.records._measurement import FLOAT32

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
OpenDims = Mapping[str, tuple[int | None, ...]]
"""Dims by input; None where the model leaves one open."""

# 'a:b':1x2 or x:1x2, where the last colon before the sizes ends the name.
_ITEM = re.compile(r"(?:'([^']*)'|([^',]+?)):(scalar|\d+(?:x\d+)*|)(?:,|$)")

STRONG, WEAK = "strong", "weak"
"""Whether types come from the model, or are chosen by the builder."""
FLOAT_TYPES = ("fp16", "bf16", "fp32")
COMMON = (
    "typing", "precision", "level", "workspace_mib", "min_shapes", "opt_shapes", "max_shapes",
    "plugins", "timing_cache", "plan_cache", "cuda_graph", "device",
)  # fmt: skip
"""Options that every form of TensorRT has."""
_LEVELS = range(6)
_LOW_FLOATS = {"fp16": "float16", "bf16": "bfloat16"}
_FIRST_WITH_TF32 = 80


class ShapeRange(NamedTuple):
    """The shapes that one input may have.

    Attributes:
        least: The smallest sizes.
        usual: The sizes that kernels are optimized for.
        most: The largest sizes.
    """

    least: Shape
    usual: Shape
    most: Shape

    def has(self, shape: Shape) -> bool:
        """Whether it contains a shape."""
        return len(shape) == len(self.least) and all(
            low <= size <= high
            for low, size, high in zip(self.least, shape, self.most, strict=True)
        )

    def with_usual(self, shape: Shape) -> ShapeRange:
        """Return the smallest range with this one and the shape in it, optimized for the shape."""
        return ShapeRange(
            tuple(map(min, self.least, shape)), shape, tuple(map(max, self.most, shape))
        )


@dataclass(frozen=True)
class ShapeRequest:
    """The user's shapes for inputs with open dims, each by input.

    Attributes:
        least: From `min_shapes`.
        usual: From `opt_shapes`.
        most: From `max_shapes`.
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
                if not fits_dims(shape, dims):
                    raise ValueError(
                        f"{what}_shapes has {sizes_text(shape)} for '{name}', whose dims are "
                        f"{'x'.join('?' if dim is None else str(dim) for dim in dims)}"
                    )

    def range_of(self, name: str, fed: Shape | None) -> ShapeRange | None:
        """Return the range of an input with open dims; None if nothing is known about it.

        Args:
            name: The input.
            fed: Its shape in a run; None if not known yet.

        Raises:
            ValueError: If the request contradicts itself, or excludes that run.
        """
        said = [shapes[name] for shapes in (self.usual, self.most, self.least) if name in shapes]
        if not said:
            return None if fed is None else ShapeRange(fed, fed, fed)
        usual = self.usual.get(name, fed if fed is not None else said[0])
        least, most = self.least.get(name, usual), self.most.get(name, usual)
        range_ = ShapeRange(least, usual, most)
        if not range_.has(usual):
            raise ValueError(
                f"the shapes of '{name}' don't grow from {sizes_text(least)} over "
                f"{sizes_text(usual)} to {sizes_text(most)}"
            )
        if fed is not None and not range_.has(fed):
            if name not in self.least and name not in self.most:  # no limits were set
                return range_.with_usual(fed)
            raise ValueError(
                f"the feed of '{name}' is {sizes_text(fed)}, which is not between "
                f"{sizes_text(least)} and {sizes_text(most)}"
            )
        return range_


def fits_dims(shape: Shape, dims: Sequence[int | None]) -> bool:
    """Whether a shape fits dims, where None is open."""
    return len(shape) == len(dims) and all(
        dim in (None, size) for dim, size in zip(dims, shape, strict=True)
    )


def widened(
    requested: ShapeRequest, shapes: Shapes, earlier: Mapping[str, ShapeRange]
) -> dict[str, ShapeRange]:
    """Return ranges that include a run and everything that the previous engine covered.

    Args:
        requested: The user's ranges.
        shapes: The shapes of the run.
        earlier: The ranges of the previous engine.

    Raises:
        ValueError: If the user's limits exclude the run.
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
    """Parses shapes as TensorRT's tools write them, such as `x:1x3x224x224,y:8` or `'a:b':2`.

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
    """Format shapes for `parse_shapes`."""
    return ",".join(f"{quoted(name)}:{sizes_text(shape)}" for name, shape in shapes.items())


def sizes_text(shape: Shape) -> str:
    """Format sizes as on the command line: `1x3x224x224`."""
    return "x".join(map(str, shape)) or "scalar"


def quoted(name: str) -> str:
    """Quote a name if it contains a colon."""
    return f"'{name}'" if ":" in name or "," in name else name


@dataclass(frozen=True)
class Settings:
    """How a model is opened.

    Attributes:
        typing: `strong` or `weak`; empty for the version's default.
        precision: Float type that kernels of a weakly typed network may use besides float32.
        level: Builder optimization level, from 0 to 5; None is TensorRT's default.
        workspace_mib: Memory limit for kernels; None is TensorRT's default.
        shapes: The shapes of inputs with open dims.
        plugins: Libraries with custom ops.
        timing_cache: File with kernel timings; empty for none.
        plan_cache: Folder that keeps built engines; empty for that of the run, if there is one.
        cuda_graph: Whether timed runs are launched as a CUDA graph; None is the default.
        device: Number of the GPU.
        tactic_sources: Libraries that kernels may come from; empty for TensorRT's default.
        compute_capability: The GPU type to build for; empty for the installed one.
        given: All options as passed.
    """

    typing: str = ""
    precision: str = FLOAT_TYPES[0]
    level: int | None = None
    workspace_mib: int | None = None
    shapes: ShapeRequest = field(default_factory=ShapeRequest)
    plugins: tuple[str, ...] = ()
    timing_cache: str = ""
    plan_cache: str = ""
    cuda_graph: bool | None = None
    device: int = 0
    tactic_sources: tuple[str, ...] = ()
    compute_capability: str = ""
    given: Mapping[str, str] = field(default_factory=dict)


def settings_of(options: SessionOptions, own: Collection[str] = ()) -> Settings:
    """Reads options.

    Args:
        options: The options as passed.
        own: Names of options that this form of TensorRT has besides the common ones.

    Raises:
        ValueError: If an option is unknown or its value is invalid.
    """
    if options.threads is not None:
        raise ValueError("it runs on the GPU and takes no number of threads: leave --threads out")
    given = dict(options.engine_options)
    known = (*COMMON, *own)
    for name in given:
        if name not in known:
            raise ValueError(f"there is no option '{name}'; there are {', '.join(known)}")
    return Settings(
        typing=_one_of(given, "typing", (STRONG, WEAK), ""),
        precision=_one_of(given, "precision", FLOAT_TYPES, FLOAT_TYPES[0]),
        level=_number(given, "level", _LEVELS),
        workspace_mib=_number(given, "workspace_mib", range(1, 1 << 40)),
        shapes=ShapeRequest(
            *(parse_shapes(given.get(f"{which}_shapes", "")) for which in ("min", "opt", "max"))
        ),
        plugins=tuple(path for path in given.get("plugins", "").split(os.pathsep) if path),
        timing_cache=given.get("timing_cache", ""),
        plan_cache=given.get("plan_cache", ""),
        cuda_graph=_switch(given, "cuda_graph"),
        device=_number(given, "device", range(1 << 10)) or 0,
        tactic_sources=tuple(filter(None, given.get("tactic_sources", "").split(","))),
        compute_capability=given.get("compute_capability", ""),
        given=given,
    )


def float_type_of(typing: str, precision: str, capability: str, *, tf32: bool = True) -> str:
    """Return the type that float32 is computed in; empty if that depends on an unknown GPU.

    Args:
        typing: Whether types come from the model, or are chosen by the builder.
        precision: The type that the builder may choose besides float32.
        capability: The GPU's compute capability, such as `sm90`.
        tf32: Whether products of float32 may have ten bits of precision: a builder's default.
    """
    if typing == WEAK and precision in _LOW_FLOATS:
        return _LOW_FLOATS[precision]
    number = re.fullmatch(r"sm(\d+)", capability)
    if number is None:
        return ""
    allowed = tf32 and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0"
    return "tf32" if allowed and int(number[1]) >= _FIRST_WITH_TF32 else FLOAT32


def _one_of(given: Mapping[str, str], name: str, choices: Collection[str], default: str) -> str:
    value = given.get(name, default)
    if name in given and value not in choices:
        raise ValueError(f"{name} is '{value}'; choices: {', '.join(choices)}")
    return value


def _number(given: Mapping[str, str], name: str, allowed: range) -> int | None:
    if name not in given:
        return None
    try:
        value = int(given[name])
    except ValueError:
        value = -1
    if value not in allowed:
        raise ValueError(
            f"{name} is '{given[name]}'; it is a number from {allowed[0]} to {allowed[-1]}"
        )
    return value


def _switch(given: Mapping[str, str], name: str) -> bool | None:
    if name not in given:
        return None
    if given[name] not in ("0", "1"):
        raise ValueError(f"{name} is '{given[name]}'; it is 0 or 1")
    return given[name] == "1"
