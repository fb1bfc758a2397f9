"""How images become a model's input: as flags, a preprocessor file and the input's shape say."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtune._image_config import BGR, CROP, NCHW, NHWC, PAD, RGB, ImageConfig
from qdqtune.calibration._expected_inputs import ExpectedInput
from qdqtune.calibration._preprocessor_files import beside_model, read_preprocessor
from qdqtune.records._errors import UsageError

_CROP_SHARE = 0.875  # 224 of 256, as most image classifiers were trained
_CHANNELS = (1, 3)
_logger = logging.getLogger(__name__)

_IMAGENET = "--image_mean 0.485,0.456,0.406 --image_std 0.229,0.224,0.225"


@dataclass(frozen=True)
class ImagePreprocessing:
    """What is done with an image.

    Attributes:
        batch: The number of images in a sample.
        size: Height and width of the result.
        resize: Whether images are cropped, stretched or padded to that size.
        shortest_edge: Length of the shorter side before the crop; None to crop nothing.
        interpolation: How they are resized.
        channels: 3 for colors, 1 for gray.
        is_bgr: Whether blue comes first.
        is_channels_last: Whether the channels are the last axis.
        normalization: Scale, mean and standard deviation by channel; None feeds raw pixels.
    """

    batch: int
    size: tuple[int, int]
    resize: str
    shortest_edge: int | None
    interpolation: str
    channels: int
    is_bgr: bool
    is_channels_last: bool
    normalization: tuple[float, tuple[float, ...], tuple[float, ...]] | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image in a sample."""
        if self.is_channels_last:
            return (*self.size, self.channels)
        return (self.channels, *self.size)


def image_preprocessing(
    inputs: Sequence[ExpectedInput], config: ImageConfig, model: Path | None
) -> ImagePreprocessing:
    """Determine how images are fed to a model.

    Args:
        inputs: The model's inputs.
        config: What the user asked for.
        model: The model's file, which a preprocessor file may lie beside.

    Raises:
        UsageError: If the model does not take images, or something is not known.
    """
    one, dims = _image_input(inputs)
    is_last = _is_channels_last(one, dims, config.image_layout)
    batch, *rest = dims
    channels = (rest.pop() if is_last else rest.pop(0)) or _CHANNELS[-1]
    if channels not in _CHANNELS:
        raise UsageError(
            f"The input {one.name!r} takes {channels} channels, but images have 3, or 1 if gray.",
            "Prepare the data in a function: loader.py:samples (docs/guides/calibration.md#code).",
        )
    path = config.image_preprocessor or (beside_model(model) if model is not None else None)
    given = read_preprocessor(Path(path)) if path is not None else {}
    if path is not None:
        _logger.info("images are prepared as %s says", path)
    size = _size(one, rest, config, given)
    resize = config.image_resize or given.get("resize", CROP)
    order = config.image_channel_order or given.get("channel_order", RGB)
    return ImagePreprocessing(
        batch or 1,
        size,
        resize,
        _shortest_edge(size, resize, config, given),
        config.image_interpolation or given.get("interpolation", "bilinear"),
        channels,
        order == BGR and channels > 1,
        is_last,
        _normalization(one, channels, config, given),
    )


def _image_input(
    inputs: Sequence[ExpectedInput],
) -> tuple[ExpectedInput, tuple[int | None, ...]]:
    if len(inputs) != 1:
        raise UsageError(
            f"Images feed one input, but the model has {len(inputs)}: "
            f"{', '.join(each.name for each in inputs)}.",
            "Prepare all of them in a function: loader.py:samples "
            "(docs/guides/calibration.md#code).",
        )
    (one,) = inputs
    if one.dims is None or len(one.dims) != 4:
        shape = "of any rank" if one.dims is None else f"with {len(one.dims)} axes"
        raise UsageError(
            f"The input {one.name!r} takes arrays {shape}, but images have 4: a batch, channels, "
            "height and width.",
            "Prepare the data in a function: loader.py:samples (docs/guides/calibration.md#code).",
        )
    return one, one.dims


def _is_channels_last(one: ExpectedInput, dims: tuple[int | None, ...], layout: str | None) -> bool:
    if layout is not None:
        return layout == NHWC
    if dims[3] in _CHANNELS and dims[1] not in _CHANNELS:
        return True
    if dims[1] in (*_CHANNELS, None):
        return False
    sizes = ", ".join("?" if dim is None else str(dim) for dim in dims)
    raise UsageError(
        f"The input {one.name!r} takes ({sizes}), where no axis has the 3 or 1 channels of an "
        "image.",
        f"If one is open, name the order: --image_layout {NCHW} or {NHWC}. Otherwise prepare the "
        "data in a function (docs/guides/calibration.md#code).",
    )


def _size(
    one: ExpectedInput, dims: Sequence[int | None], config: ImageConfig, given: Mapping[str, Any]
) -> tuple[int, int]:
    """Return height and width: as asked for, as the model has them, or as the file says."""
    asked = config.image_size
    if isinstance(asked, Sequence):
        return asked[0], asked[1]
    if asked is not None:
        return asked, asked
    height, width = (
        dim or default for dim, default in zip(dims, given.get("size", (None, None)), strict=True)
    )
    if height is None or width is None:
        raise UsageError(
            f"The input {one.name!r} takes images of any size.",
            "Give the size that it gets in use, such as --image_size 224.",
        )
    return height, width


def _shortest_edge(
    size: tuple[int, int], resize: str, config: ImageConfig, given: Mapping[str, Any]
) -> int | None:
    asked = config.image_shortest_edge
    if asked is not None:
        if asked < min(size) or resize == PAD:
            raise UsageError(
                f"A crop of {size[0]}x{size[1]} can't be taken from images with a shorter side of "
                f"{asked}, or from padded ones.",
                "Leave --image_shortest_edge out, or give a longer one.",
            )
        return asked
    if "shortest_edge" in given and resize == given.get("resize"):
        # At another size than the file's, the crop keeps its share of the image.
        edge: float = given["shortest_edge"] * min(size) / min(given["size"])
        return max(min(size), math.floor(edge))
    return round(max(size) / _CROP_SHARE) if resize == CROP else None


def _normalization(
    one: ExpectedInput, channels: int, config: ImageConfig, given: Mapping[str, Any]
) -> tuple[float, tuple[float, ...], tuple[float, ...]] | None:
    asked = {
        name: value
        for name in ("scale", "mean", "std")
        if (value := getattr(config, f"image_{name}")) is not None
    }
    if not one.dtype.is_floating_point():
        if asked:
            raise UsageError(
                f"The input {one.name!r} takes {one.dtype.name.lower()}, so that pixels are fed as "
                "they are.",
                f"Leave {' and '.join(f'--image_{name}' for name in asked)} out.",
            )
        return None
    known = {**given, **asked}
    if not {"scale", "mean", "std"} & known.keys():
        raise UsageError(
            f"How images are normalized for the input {one.name!r} is not known.",
            "Give the model's preprocessor file, --image_preprocessor preprocessor_config.json, "
            f"or a mean: {_IMAGENET} for most models trained on ImageNet, --image_mean 0 for "
            "values from 0 to 1.",
        )
    return (
        known.get("scale", 1 / 255),
        _by_channel("mean", known.get("mean", 0.0), channels),
        _by_channel("std", known.get("std", 1.0), channels),
    )


def _by_channel(name: str, value: float | Sequence[float], channels: int) -> tuple[float, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    if len(values) not in (1, channels):
        raise UsageError(
            f"There are {len(values)} values of --image_{name}, but the input has {channels} "
            f"channel{'s' * (channels != 1)}.",
            "Give one number, or one for each channel.",
        )
    return tuple(map(float, values * (channels // len(values))))


def enlarged(size: tuple[int, int], edge: int) -> tuple[int, int]:
    """Return a size with the same aspect ratio, whose shorter side has the given length."""
    height, width = size
    shorter = min(size)
    return math.floor(edge * height / shorter), math.floor(edge * width / shorter)
