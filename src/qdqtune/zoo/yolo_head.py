"""The head of the detector: per scale box and class maps, then boxes from distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdqtune.zoo.convolution import Window
from qdqtune.zoo.image_layers import SILU_GAIN, conv, conv_bn, silu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdqtune.zoo.builder import GraphBuilder, Value

_BINS = 16
_EPSILON = 1e-3


def detections(b: GraphBuilder, maps: Sequence[Value], image: int, classes: int) -> Value:
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
    scores = b.node("Sigmoid", "head.scores", [scores])
    shape = (batch, 4 + classes, places)
    return b.node("Concat", "head.detections", [boxes, scores], shape=shape, axis=1)


def _scale_head(b: GraphBuilder, x: Value, name: str, finest: int, classes: int) -> Value:
    box_width = max(16, finest // 4, 4 * _BINS)
    class_width = max(finest, min(classes, 100))
    boxes = _branch(b, x, f"{name}.box", box_width, 4 * _BINS)
    scores = _branch(b, x, f"{name}.cls", class_width, classes)
    shape = (x.shape[0], 4 * _BINS + classes, *x.shape[2:])
    return b.node("Concat", f"{name}.concat", [boxes, scores], shape=shape, axis=1)


def _branch(b: GraphBuilder, x: Value, name: str, width: int, channels: int) -> Value:
    for index in range(2):
        step = f"{name}.{index}"
        x = conv_bn(b, x, f"{step}.conv", width, Window(3), gain=SILU_GAIN, epsilon=_EPSILON)
        x = silu(b, x, f"{step}.silu")
    return conv(b, x, f"{name}.2", channels)


def _distances(b: GraphBuilder, boxes: Value) -> Value:
    """The expected distance to each side of the box: a Conv over the Softmax of its bins."""
    batch, _, places = boxes.shape
    x = b.reshape("dfl.reshape", boxes, (batch, 4, _BINS, places))
    x = b.transpose("dfl.transpose", x, (0, 2, 1, 3))
    x = b.node("Softmax", "dfl.softmax", [x], axis=1)
    bins = np.arange(_BINS, dtype=np.float32).reshape(1, _BINS, 1, 1)
    operands = [x, b.initializer("dfl.weight", bins)]
    x = b.node("Conv", "dfl.conv", operands, shape=(batch, 1, 4, places), kernel_shape=[1, 1])
    return b.reshape("dfl.flatten", x, (batch, 4, places))


def _decoded(b: GraphBuilder, distances: Value, sides: Sequence[int], image: int) -> Value:
    """Boxes as centre and size, from the distances around each place's centre."""
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
    box = b.node("Concat", "decode.box", [centre, size], shape=distances.shape, axis=1)
    return b.node("Mul", "decode.pixels", [box, pixels])
