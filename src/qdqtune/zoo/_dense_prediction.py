"""Segmentation and detection: U-Net, and a detector like YOLOv8."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdqtune.zoo._builder import NO_VALUE, GraphBuilder, Marginal, Value
from qdqtune.zoo._layers import (
    BIAS_SIZE,
    POINTWISE,
    SILU_GAIN,
    Window,
    add,
    concat,
    conv,
    conv_bn,
    image_input,
    max_pool,
    relu,
    require_multiple,
    silu,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx


def unet(
    seed: int,
    *,
    levels: int = 4,
    width: int = 16,
    image: int = 128,
    batch: int = 1,
    classes: int = 2,
    folded: bool = False,
) -> onnx.ModelProto:
    """U-Net: MaxPool down, ConvTranspose up, Concat with the skipped maps."""
    require_multiple("image", image, "2**levels", 2**levels)
    b = GraphBuilder("unet", seed, folded=folded)
    x = _double_conv(b, image_input(b, batch, image), "inc", width)
    skips = []
    for level in range(1, levels + 1):
        skips.append(x)
        x = max_pool(b, x, f"down{level}.pool", Window(2, 2, padded=False))
        x = _double_conv(b, x, f"down{level}", width * 2**level)
    for level in range(levels, 0, -1):
        channels = width * 2 ** (level - 1)
        x = _conv_transpose(b, x, f"up{level}.conv_transpose", channels)
        x = concat(b, [skips.pop(), x], f"up{level}.concat")
        x = _double_conv(b, x, f"up{level}", channels)
    return b.model({"mask_logits": conv(b, x, "outc", classes)})


def _double_conv(b: GraphBuilder, x: Value, name: str, channels: int) -> Value:
    for part in ("1", "2"):
        x = conv_bn(b, x, f"{name}.conv{part}", channels, Window(3), bn_name=f"{name}.bn{part}")
        x = relu(b, x, f"{name}.relu{part}")
    return x


def _conv_transpose(b: GraphBuilder, x: Value, name: str, channels: int) -> Value:
    """Doubles the map: each input pixel becomes a 2x2 patch, without overlap."""
    batch, in_channels, height, width = x.shape
    weight = b.weights.normal(
        f"{name}.weight",
        (in_channels, channels, 2, 2),
        std=1.0 / float(np.sqrt(in_channels * x.marginal.mean_square)),
        channel_axis=1,
    )
    bias = b.weights.normal(f"{name}.bias", (channels,), std=BIAS_SIZE)
    taps = weight.astype(np.float64).reshape(in_channels, channels, 4)
    mean, var = x.marginal.moments
    corner_means = np.einsum("iot,i->ot", taps, mean)
    out_var = np.einsum("iot,i->o", taps**2, var) / 4 + corner_means.var(axis=1)
    return b.node(
        "ConvTranspose",
        name,
        [x, *b.parameters(name, weight=weight, bias=bias)],
        shape=(batch, channels, 2 * height, 2 * width),
        marginal=Marginal.normal(corner_means.mean(axis=1) + bias, out_var),
        kernel_shape=[2, 2],
        strides=[2, 2],
    )


_BINS = 16


def _detections(b: GraphBuilder, maps: Sequence[Value], image: int, classes: int) -> Value:
    """Adds the heads and the decoding.

    Returns:
        batch x (4 + classes) x places: centre, size (in pixels) and class scores.
    """
    batch = maps[0].shape[0]
    sides = [x.shape[2] for x in maps]
    places = sum(side**2 for side in sides)
    channels = 4 * _BINS + classes
    flat = []
    for scale, x in enumerate(maps):
        y = _scale_head(b, x, f"head{scale}", maps[0].shape[1], classes)
        flat.append(b.reshape(f"head{scale}.flatten", y, (batch, channels, y.shape[2] ** 2)))
    y = b.node("Concat", "head.concat", flat, shape=(batch, channels, places), axis=2)
    boxes, scores = b.split("head.split", y, (4 * _BINS, classes), axis=1)
    boxes = _decoded(b, _distances(b, boxes), sides, image)
    return concat(b, [boxes, b.node("Sigmoid", "head.scores", [scores])], "head.detections")


def _scale_head(b: GraphBuilder, x: Value, name: str, finest: int, classes: int) -> Value:
    box_width = max(16, finest // 4, 4 * _BINS)
    class_width = max(finest, min(classes, 100))
    boxes = _branch(b, x, f"{name}.box", box_width, 4 * _BINS)
    scores = _branch(b, x, f"{name}.cls", class_width, classes)
    return concat(b, [boxes, scores], f"{name}.concat")


def _branch(b: GraphBuilder, x: Value, name: str, width: int, channels: int) -> Value:
    for index in range(2):
        x = _conv_silu(b, x, f"{name}.{index}", width, Window(3))
    return conv(b, x, f"{name}.2", channels)


def _distances(b: GraphBuilder, boxes: Value) -> Value:
    """Adds the expected distance to each side of the box: a Conv over the Softmax of its bins."""
    batch, _, places = boxes.shape
    x = b.reshape("dfl.reshape", boxes, (batch, 4, _BINS, places))
    x = b.transpose("dfl.transpose", x, (0, 2, 1, 3))
    x = b.node("Softmax", "dfl.softmax", [x], axis=1)
    bins = np.arange(_BINS, dtype=np.float32).reshape(1, _BINS, 1, 1)
    operands = [x, b.initializer("dfl.weight", bins)]
    x = b.node("Conv", "dfl.conv", operands, shape=(batch, 1, 4, places), kernel_shape=[1, 1])
    return b.reshape("dfl.flatten", x, (batch, 4, places))


def _decoded(b: GraphBuilder, distances: Value, sides: Sequence[int], image: int) -> Value:
    """Adds boxes as centre and size, from the distances around each place's centre."""
    batch, _, places = distances.shape
    half = (batch, 2, places)
    centres = [
        np.stack(np.meshgrid(np.arange(n) + 0.5, np.arange(n) + 0.5)).reshape(2, -1) for n in sides
    ]
    strides = [np.full((1, n**2), image / n) for n in sides]
    anchors = b.initializer("decode.anchors", np.concatenate(centres, 1).astype(np.float32)[None])
    pixels = b.initializer("decode.strides", np.concatenate(strides, 1).astype(np.float32))
    before, after = b.split("decode.split", distances, (2, 2), axis=1)
    low = b.node("Sub", "decode.low", [anchors, before], shape=half)
    high = b.node("Add", "decode.high", [anchors, after], shape=half)
    total = b.node("Add", "decode.sum", [low, high])
    centre = b.node("Div", "decode.centre", [total, b.shared_scalar("decode.two", 2.0)])
    size = b.node("Sub", "decode.size", [high, low])
    return b.node("Mul", "decode.pixels", [concat(b, [centre, size], "decode.box"), pixels])


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
    return b.model({"detections": _detections(b, maps, image, classes)})


def _conv_silu(
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
    x = _conv_silu(b, x, "stem", width, _DOWN)
    maps = []
    for stage, count in enumerate((depth, 2 * depth, 2 * depth, depth), start=1):
        channels = width * 2**stage
        x = _conv_silu(b, x, f"stage{stage}.down", channels, _DOWN)
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
    x = _conv_silu(b, fine, "neck.down1", fine.shape[1], _DOWN)
    middle = joined(x, up, "neck.down1", middle.shape[1])
    x = _conv_silu(b, middle, "neck.down2", middle.shape[1], _DOWN)
    return fine, middle, joined(x, coarse, "neck.down2", coarse.shape[1])


def _c2f(
    b: GraphBuilder, x: Value, name: str, channels: int, count: int, *, shortcut: bool
) -> Value:
    """Splits the channels, sends one half through bottlenecks, and keeps every step."""
    half = channels // 2
    x = _conv_silu(b, x, f"{name}.cv1", channels)
    parts = b.split(f"{name}.split", x, (half, half), axis=1)
    for index in range(count):
        step = f"{name}.m{index}"
        y = _conv_silu(b, parts[-1], f"{step}.cv1", half, Window(3))
        gain = 2 * SILU_GAIN * b.branch_gain if shortcut else SILU_GAIN
        y = _conv_silu(b, y, f"{step}.cv2", half, Window(3), gain=gain)
        parts.append(add(b, parts[-1], y, f"{step}.add") if shortcut else y)
    return _conv_silu(b, concat(b, parts, f"{name}.concat"), f"{name}.cv2", channels)


def _sppf(b: GraphBuilder, x: Value, name: str) -> Value:
    """Three max pools in a row, each step kept."""
    channels = x.shape[1]
    parts = [_conv_silu(b, x, f"{name}.cv1", channels // 2)]
    height, width = x.shape[2:]
    for index, reach in enumerate((5, 9, 13)):
        seen = parts[0].marginal.largest_of(min(reach, height) * min(reach, width))
        parts.append(max_pool(b, parts[-1], f"{name}.pool{index}", Window(5), marginal=seen))
    return _conv_silu(b, concat(b, parts, f"{name}.concat"), f"{name}.cv2", channels)


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
