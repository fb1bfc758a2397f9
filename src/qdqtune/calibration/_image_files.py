"""Image files as arrays: only the header first, then the pixels, prepared for a model."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtune._image_config import PAD, STRETCH
from qdqtune.calibration._array_files import StoredArray
from qdqtune.calibration._expected_inputs import Layout
from qdqtune.calibration._image_preprocessing import ImagePreprocessing, enlarged
from qdqtune.qdq._encoding import Array
from qdqtune.records._errors import LimitError, UsageError
from qdqtune.records._untrusted_files import open_plain, read_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = tuple(
    spelling for each in (".jpg", ".jpeg", ".png", ".bmp") for spelling in (each, each.upper())
)
_FORMATS = ("JPEG", "PNG", "BMP")  # Pillow would start other programs for some of its formats
_MOST_BYTES = 256 << 20
_MOST_PIXELS = 1 << 26
_GRAY = 114  # what detectors of the YOLO family are padded with


def image_batch(paths: Sequence[Path], how: ImagePreprocessing) -> StoredArray:
    """Open images that form one sample; only their headers are read.

    Raises:
        UsageError: If one of them is not an image, or Pillow is not installed.
        LimitError: If one is too large.
    """
    for path in paths:
        with _readable(path), open_plain(path) as file:
            _opened(path, file)
    label = str(paths[0]) if len(paths) == 1 else f"{paths[0]} to {paths[-1].name}"

    def samples(layout: Layout) -> Iterator[Array]:
        yield np.stack([_prepared(path, how) for path in paths]).reshape(layout.shape)

    dtype = np.dtype(np.uint8 if how.normalization is None else np.float32)
    return StoredArray(label, (len(paths), *how.shape), dtype, samples)


def _prepared(path: Path, how: ImagePreprocessing) -> Array:
    with _readable(path):
        image = _in_mode(path, "L" if how.channels == 1 else "RGB")
        pixels = np.asarray(_resized(path, image, how))
    pixels = pixels.reshape(*how.size, how.channels)
    if how.is_bgr:
        pixels = pixels[..., ::-1]
    if how.normalization is not None:
        scale, mean, std = (np.array(each, np.float32) for each in how.normalization)
        pixels = (pixels * scale - mean) / std
    return pixels if how.is_channels_last else np.moveaxis(pixels, -1, 0)


def _in_mode(path: Path, mode: str) -> Image:
    """Read an image, upright and in 8 bits per channel."""
    from PIL import Image, ImageOps

    image = _opened(path, io.BytesIO(read_bytes(path, _MOST_BYTES)))
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits, which Pillow would clip at 255
        high_bytes = (np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)
        image = Image.fromarray(high_bytes)
    if "transparency" in image.info and image.mode == "P":
        image = image.convert("RGBA")
    return image.convert(mode)


def _opened(path: Path, file: Any) -> Image:
    """Read the header of an image.

    Raises:
        LimitError: If it has too many pixels.
    """
    pillow = _pillow()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
        try:
            image: Image = pillow.open(file, formats=_FORMATS)
            pixels = image.width * image.height
        except pillow.UnidentifiedImageError:
            raise ValueError("it is not a JPEG, PNG or BMP image") from None
        except pillow.DecompressionBombError:
            pixels = _MOST_PIXELS + 1
    if pixels > _MOST_PIXELS:
        raise LimitError(
            f"{path} has more than {_MOST_PIXELS:,} pixels, the most that are read.",
            "Leave it out, or scale it down.",
        )
    return image


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise UsageError(
            "Images are read with Pillow, which is not installed.",
            "Install it: pip install 'qdqtune[images]'.",
        ) from None
    return Image


def _resized(path: Path, image: Image, how: ImagePreprocessing) -> Image:
    """Resize an image, and crop or pad it; the arithmetic is that of torchvision's transforms."""
    from PIL import Image as Images

    height, width = how.size
    if how.resize == STRETCH:
        sides = how.size if how.shortest_edge is None else enlarged(how.size, how.shortest_edge)
    elif how.resize == PAD:
        ratio = min(height / image.height, width / image.width)
        sides = max(1, round(image.height * ratio)), max(1, round(image.width * ratio))
    else:
        sides = enlarged((image.height, image.width), how.shortest_edge or min(how.size))
    if sides[0] * sides[1] > _MOST_PIXELS:
        raise LimitError(
            f"{path} is {image.height}x{image.width}: with the shorter side enlarged, it would "
            f"have more than {_MOST_PIXELS:,} pixels.",
            "Leave it out, or use --image_resize stretch.",
        )
    method = Images.Resampling[how.interpolation.upper()]
    image = image.resize((sides[1], sides[0]), method)
    if image.size == (width, height):
        return image
    if how.resize == PAD:
        ground = Images.new(image.mode, (width, height), (_GRAY,) * len(image.getbands()))
        ground.paste(image, ((width - sides[1]) // 2, (height - sides[0]) // 2))
        return ground
    top, left = round((sides[0] - height) / 2), round((sides[1] - width) / 2)
    return image.crop((left, top, left + width, top + height))


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (UsageError, MemoryError):
        raise
    except Exception as error:  # Pillow raises various exceptions on damaged files
        reason = str(error).strip().splitlines()
        raise UsageError(
            f"{path} can't be read: {reason[0] if reason else type(error).__name__}.",
            "Leave it out, or save it again as JPEG or PNG.",
        ) from None
