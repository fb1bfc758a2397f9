"""Options for images as calibration data; see `qdqtune.config`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from qdqtune.options import PATH, Config, Kind, number, one_of, option, options_of, whole

CROP, STRETCH, PAD = "crop", "stretch", "pad"
INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""In the order of Pillow's numbers for them, which preprocessor files contain."""

RGB, BGR = "rgb", "bgr"
NCHW, NHWC = "nchw", "nhwc"


def _accepts_size(value: Any) -> bool:
    sides = value if isinstance(value, Sequence) and len(value) == 2 else [value]
    return all(map(whole(1).accepts, sides))


def _read_size(text: str) -> int | tuple[int, ...]:
    sides = tuple(map(int, text.lower().split("x")))
    return sides[0] if len(sides) == 1 else sides


def _are_numbers(value: Any, above: float) -> bool:
    values = value if isinstance(value, Sequence) else [value]
    is_number = number("a number").accepts
    return bool(values) and all(is_number(each) and each > above for each in values)


def _read_numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


_SIZE = Kind("a size such as 224, or HEIGHTxWIDTH", _accepts_size, _read_size, metavar="HxW")
_MEAN = Kind(
    "a number, or one for each channel, such as 0.485,0.456,0.406",
    lambda value: _are_numbers(value, -math.inf), _read_numbers, metavar="X,...",
)  # fmt: skip
_STD = Kind(
    "a number above 0, or one for each channel, such as 0.229,0.224,0.225",
    lambda value: _are_numbers(value, 0), _read_numbers, metavar="X,...",
)  # fmt: skip

_FROM_FILE = "what the preprocessor file says, else "


@dataclass(frozen=True, kw_only=True)
class ImageConfig(Config):
    """How images in the calibration data become a model's input."""

    TITLE: ClassVar[str] = "images as calibration data (see docs/guides/calibration.md#images)"

    image_preprocessor: str | os.PathLike[str] | None = option(
        None, PATH, "a preprocessor_config.json, or timm's config.json, that says how",
        default_text="the one beside the model",
    )  # fmt: skip
    image_size: int | Sequence[int] | None = option(
        None, _SIZE, "height and width of what is fed", default_text="the model's"
    )
    image_resize: str | None = option(
        None, one_of((CROP, STRETCH, PAD)),
        "keep the aspect ratio and crop the center, stretch, or fit inside and pad with gray",
        default_text=_FROM_FILE + CROP,
    )  # fmt: skip
    image_shortest_edge: int | None = option(
        None, whole(1), "length of the shorter side before the crop",
        default_text=_FROM_FILE + "the size / 0.875; for stretch, the size",
    )  # fmt: skip
    image_interpolation: str | None = option(
        None, one_of(INTERPOLATIONS), "how images are resized", default_text=_FROM_FILE + "bilinear"
    )
    image_scale: float | None = option(
        None, number("a number"), "what pixels from 0 to 255 are multiplied by",
        default_text=_FROM_FILE + "1/255",
    )  # fmt: skip
    image_mean: float | Sequence[float] | None = option(
        None, _MEAN, "what is subtracted after scaling", default_text=_FROM_FILE + "0"
    )
    image_std: float | Sequence[float] | None = option(
        None, _STD, "what is divided by after that", default_text=_FROM_FILE + "1"
    )
    image_channel_order: str | None = option(
        None, one_of((RGB, BGR)), "the order of colors", default_text=_FROM_FILE + RGB
    )
    image_layout: str | None = option(
        None, one_of((NCHW, NHWC)), "the order of the input's axes", default_text="as its shape has"
    )

    def image_flags(self) -> Iterator[tuple[str, str]]:
        """Yield the flags for the options that are set, with their values."""
        for each, known in options_of(ImageConfig):
            value = getattr(self, each.name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                value = ("x" if known.kind is _SIZE else ",").join(map(str, value))
            if value is not None:
                yield known.flags[0], str(value)
