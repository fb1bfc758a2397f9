"""A detector like YOLOv8: C2f blocks, SPPF, a PAN neck, heads at three scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdqtune.zoo.builder import NO_VALUE, GraphBuilder, Value
from qdqtune.zoo.convolution import POINTWISE, Window
from qdqtune.zoo.image_layers import SILU_GAIN, add, concat, conv_bn, image_input, max_pool, silu
from qdqtune.zoo.settings import require_multiple
from qdqtune.zoo.yolo_head import detections

if TYPE_CHECKING:
    import onnx

_EPSILON = 1e-3
_COARSEST_STRIDE = 32
_DOWN = Window(3, 2)


def yolo(
    seed: int,
    *,
    width: int = 16,
    depth: int = 1,
    image: int = 320,
    batch: int = 1,
    classes: int = 80,
    folded: bool = False,
) -> onnx.ModelProto:
    """YOLOv8n: SiLU, C2f, SPPF, nearest upsampling, distribution focal head; boxes and scores."""
    require_multiple("image", image, "the coarsest stride", _COARSEST_STRIDE)
    b = GraphBuilder("yolo", seed, folded=folded, branches=6 * depth)
    fine, middle, coarse = _backbone(b, image_input(b, batch, image), width, depth)
    maps = _neck(b, fine, middle, coarse, depth)
    return b.model({"detections": detections(b, maps, image, classes)})


def conv_silu(
    b: GraphBuilder,
    x: Value,
    name: str,
    channels: int,
    window: Window = POINTWISE,
    *,
    gain: float = SILU_GAIN,
) -> Value:
    """Adds Conv, BatchNormalization and SiLU."""
    x = conv_bn(b, x, f"{name}.conv", channels, window, gain=gain, epsilon=_EPSILON)
    return silu(b, x, f"{name}.silu")


def _backbone(b: GraphBuilder, x: Value, width: int, depth: int) -> tuple[Value, Value, Value]:
    x = conv_silu(b, x, "stem", width, _DOWN)
    maps = []
    for stage, count in enumerate((depth, 2 * depth, 2 * depth, depth), start=1):
        channels = width * 2**stage
        x = conv_silu(b, x, f"stage{stage}.down", channels, _DOWN)
        x = _c2f(b, x, f"stage{stage}.c2f", channels, count, shortcut=True)
        maps.append(x)
    return maps[1], maps[2], _sppf(b, x, "sppf")


def _neck(
    b: GraphBuilder, fine: Value, middle: Value, coarse: Value, depth: int
) -> tuple[Value, Value, Value]:
    """Passes coarse features up to the finer maps, then fine ones back down."""

    def joined(x: Value, y: Value, name: str, channels: int) -> Value:
        x = concat(b, [x, y], f"{name}.concat")
        return _c2f(b, x, f"{name}.c2f", channels, depth, shortcut=False)

    up = joined(_upsample(b, coarse, "neck.up1"), middle, "neck.up1", middle.shape[1])
    fine = joined(_upsample(b, up, "neck.up2"), fine, "neck.up2", fine.shape[1])
    x = conv_silu(b, fine, "neck.down1", fine.shape[1], _DOWN)
    middle = joined(x, up, "neck.down1", middle.shape[1])
    x = conv_silu(b, middle, "neck.down2", middle.shape[1], _DOWN)
    return fine, middle, joined(x, coarse, "neck.down2", coarse.shape[1])


def _c2f(
    b: GraphBuilder, x: Value, name: str, channels: int, count: int, *, shortcut: bool
) -> Value:
    """Splits the channels, sends one half through bottlenecks, and keeps every step."""
    half = channels // 2
    x = conv_silu(b, x, f"{name}.cv1", channels)
    parts = b.split(f"{name}.split", x, (half, half), axis=1)
    for index in range(count):
        step = f"{name}.m{index}"
        y = conv_silu(b, parts[-1], f"{step}.cv1", half, Window(3))
        gain = 2 * SILU_GAIN * b.branch_gain if shortcut else SILU_GAIN
        y = conv_silu(b, y, f"{step}.cv2", half, Window(3), gain=gain)
        parts.append(add(b, parts[-1], y, f"{step}.add") if shortcut else y)
    return conv_silu(b, concat(b, parts, f"{name}.concat"), f"{name}.cv2", channels)


def _sppf(b: GraphBuilder, x: Value, name: str) -> Value:
    """Three max pools in a row, each step kept."""
    channels = x.shape[1]
    parts = [conv_silu(b, x, f"{name}.cv1", channels // 2)]
    height, width = x.shape[2:]
    for index, reach in enumerate((5, 9, 13)):
        seen = parts[0].marginal.largest_of(min(reach, height) * min(reach, width))
        parts.append(max_pool(b, parts[-1], f"{name}.pool{index}", Window(5), marginal=seen))
    return conv_silu(b, concat(b, parts, f"{name}.concat"), f"{name}.cv2", channels)


def _upsample(b: GraphBuilder, x: Value, name: str) -> Value:
    batch, channels, height, width = x.shape
    scales = b.initializer(f"{name}.scales", np.array([1, 1, 2, 2], np.float32))
    return b.node(
        "Resize",
        f"{name}.resize",
        [x, NO_VALUE, scales],
        shape=(batch, channels, 2 * height, 2 * width),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
