"""Preprocessor files: how the publisher of a model prepares images."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqtune._image_config import BGR, CROP, INTERPOLATIONS, RGB, STRETCH
from qdqtune.records._errors import LimitError, UsageError
from qdqtune.records._untrusted_files import (
    list_in,
    number_in,
    object_in,
    parse_json,
    read_text,
    text_in,
    whole_in,
)

_TRANSFORMERS, _TIMM = "preprocessor_config.json", "config.json"
_MOST_BYTES = 1 << 20
_LARGE_CONVNEXT = 384  # from this size on, ConvNeXt's processor stretches
_logger = logging.getLogger(__name__)


def beside_model(model: Path) -> Path | None:
    """Return the preprocessor file that lies beside a model, if any.

    A model in a folder `onnx`, as on the Hugging Face Hub, has it one folder above.
    """
    for folder in (model.parent, *([model.parent.parent] if model.parent.name == "onnx" else [])):
        if (folder / _TRANSFORMERS).is_file():
            return folder / _TRANSFORMERS
        timm = folder / _TIMM
        if timm.is_file() and '"pretrained_cfg"' in read_text(timm, _MOST_BYTES):
            return timm
    return None


def read_preprocessor(path: Path) -> dict[str, Any]:
    """Return what a preprocessor file says about images.

    Args:
        path: A `preprocessor_config.json` of transformers, or a `config.json` of timm.

    Returns:
        Values of the options of `qdqtune._image_config.ImageConfig`, by name without `image_`, as
        far as the file says them.

    Raises:
        UsageError: If it can't be read, or says nothing about images.
    """
    try:
        body = object_in(parse_json(read_text(path, _MOST_BYTES), str(path)), "it")
        if "pretrained_cfg" in body or "input_size" in body:
            return _of_timm(object_in(body.get("pretrained_cfg", body), "pretrained_cfg"))
        body = object_in(body.get("image_processor", body), "image_processor")
        if not {"size", "image_mean", "do_resize"} & body.keys():
            raise ValueError("it says nothing about images")
        return _of_transformers(body, path)
    except LimitError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"The preprocessor file {path} can't be used: {reason}.",
            "Give a preprocessor_config.json, or flags: --image_mean, --image_std.",
        ) from None


def _of_transformers(body: Mapping[str, Any], path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"scale": 1.0, "mean": 0.0, "std": 1.0, "channel_order": RGB}
    if body.get("do_rescale", True):
        found["scale"] = _number(body, "rescale_factor", 1 / 255)
    if body.get("do_normalize", True) and "image_mean" in body:
        found["mean"] = _numbers(body["image_mean"], "image_mean")
        found["std"] = _numbers(body.get("image_std", 1.0), "image_std", above=0)
    if body.get("do_flip_channel_order", False):
        found["channel_order"] = BGR
    if isinstance(body.get("resample"), int):
        number = whole_in(body["resample"], "resample", 0)
        found["interpolation"] = dict(enumerate(INTERPOLATIONS)).get(number, "bilinear")
    if body.get("do_resize", True) and body.get("size") is not None:
        found |= _resizing(body, path)
    return found


def _resizing(body: Mapping[str, Any], path: Path) -> dict[str, Any]:
    size = body["size"]
    crop = None
    if body.get("do_center_crop", False):
        crop = _sides(body.get("crop_size", size), "crop_size")
    if isinstance(size, dict) and "longest_edge" in size:
        _logger.warning("%s limits the longer side of images, which is not followed", path)
        return {}
    shortest = size.get("shortest_edge") if isinstance(size, dict) else size
    if shortest is None or (isinstance(size, int) and crop is None):
        sides = _sides(size, "size")
        if crop is None:
            return {"resize": STRETCH, "size": sides}
        return {"resize": STRETCH, "size": crop, "shortest_edge": min(sides)}
    edge = whole_in(shortest, "shortest_edge", 1)
    if body.get("crop_pct") is not None:
        if edge >= _LARGE_CONVNEXT:
            return {"resize": STRETCH, "size": (edge, edge)}
        return _cropped((edge, edge), int(edge / _share(body)))
    return _cropped(crop, edge) if crop is not None else {}


def _of_timm(body: Mapping[str, Any]) -> dict[str, Any]:
    _, height, width = (
        whole_in(each, "input_size", 1) for each in list_in(body.get("input_size"), "input_size")
    )
    found: dict[str, Any] = {
        "scale": 1 / 255,
        "mean": _numbers(body.get("mean"), "mean"),
        "std": _numbers(body.get("std"), "std", above=0),
        "channel_order": RGB,
    }
    name = text_in(body.get("interpolation", "bilinear"), "interpolation")
    found["interpolation"] = name if name in INTERPOLATIONS else "bilinear"
    edge = math.floor(min(height, width) / _share(body))
    mode = text_in(body.get("crop_mode", "center"), "crop_mode")
    if mode == "squash":
        return found | {"resize": STRETCH, "size": (height, width), "shortest_edge": edge}
    if mode != "center":
        raise ValueError(f"its crop_mode {mode} is not supported")
    return found | _cropped((height, width), edge)


def _cropped(size: tuple[int, int], edge: int) -> dict[str, Any]:
    return {"resize": CROP, "size": size, "shortest_edge": edge}


def _share(body: Mapping[str, Any]) -> float:
    return number_in(body.get("crop_pct", 0.875), "crop_pct", 0.1, 1.0)


def _sides(value: Any, name: str) -> tuple[int, int]:
    """Return height and width from a number or an object."""
    sides = value if isinstance(value, dict) else {"height": value, "width": value}
    if "shortest_edge" in sides and "height" not in sides:
        sides = {"height": sides["shortest_edge"], "width": sides["shortest_edge"]}
    height, width = (whole_in(sides.get(side), f"{name}.{side}", 1) for side in ("height", "width"))
    return height, width


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    return number_in(body.get(name, default), name)


def _numbers(value: Any, name: str, above: float = -math.inf) -> float | tuple[float, ...]:
    values = value if isinstance(value, list) else [value]
    found = tuple(number_in(each, name) for each in values)
    if not found or min(found) <= above:
        raise ValueError(f"{name} can't be {value}")
    return found
