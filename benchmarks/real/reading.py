"""How well a recogniser of lines reads."""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from PIL import Image, ImageDraw, ImageFont

from benchmarks.real.task import Bar, Outputs, Score, Task
from benchmarks.real.wheels import Part, Sample, Wheels
from benchmarks.real.writing import lines


class ReadText(Task):
    """Reads letters and digits at random, rendered in Pillow's own font."""

    model = "real/rapidocr/rapidocr__models__PP-OCRv6_rec_small.onnx"
    bar = Bar("exact", most_drop=0.02, most_apart=0.01)

    def __init__(self, models: Path, wheels: Wheels) -> None:
        super().__init__(models, wheels)
        described = onnx.load(self.path, load_external_data=False).metadata_props
        letters = next(each.value for each in described if each.key == "character")
        self._alphabet = ["", *letters.splitlines(), " "]
        self._texts: list[str] = []

    def calibration_sets(self, sets: int) -> Mapping[str, list[Sample]]:
        """Other strings in the same font; the last set has other fonts, and words."""
        count = Part.CALIBRATION.samples
        seeds = range(1, sets) if sets > 1 else (1,)
        found = {f"seed {seed}": [x for _, x in _written(count, seed)] for seed in seeds}
        if sets > 1:
            other = lines(self.wheels, Part.CALIBRATION)
            found["other fonts"] = list(itertools.islice(other, count))
        return found

    def questions(self) -> Sequence[Sample]:
        """200 strings."""
        written = list(_written(200, seed=0))
        self._texts = [text for text, _ in written]
        return [sample for _, sample in written]

    def answer(self, _question: Sample, outputs: Outputs) -> str:
        """The text: the likeliest letter of every place, repetitions and blanks left out."""
        (scores,) = outputs.values()
        likeliest = [int(place) for place, _ in itertools.groupby(scores[0].argmax(1))]
        return "".join(self._alphabet[place] for place in likeliest).strip()

    def score(self, answers: Sequence[Any], _of_float: Sequence[Any]) -> Score:
        """The share of strings that are read without a mistake."""
        pairs = zip(answers, self._texts, strict=True)
        return {"exact": sum(read == text for read, text in pairs) / len(self._texts)}


def _written(count: int, seed: int) -> Iterator[tuple[str, Sample]]:
    """Strings, and pictures of them: dark on light or light on dark, crooked, with noise."""
    rng = random.Random(seed)
    texts = [_letters(rng) for _ in range(count)]
    for text in texts:
        size = rng.choice((22, 28, 34))
        is_dark = rng.random() < 0.3
        light, dark = rng.randint(200, 255), rng.randint(0, 80)
        image = _line(text, size, *((dark, light) if is_dark else (light, dark)))
        paper = image.getpixel((0, 0))
        image = image.rotate(rng.uniform(-1.5, 1.5), Image.Resampling.BICUBIC, fillcolor=paper)
        width = min(320, image.width * 48 // image.height)
        pixels = np.asarray(image.resize((width, 48), Image.Resampling.BILINEAR), np.float32)
        noise = np.random.default_rng(rng.randint(0, 1 << 30)).normal(0, 0.03, (48, width, 3))
        sample = np.zeros((1, 3, 48, 320), np.float32)
        sample[..., :width] = pixels / 127.5 - 1 + np.moveaxis(noise, -1, 0)
        yield text, {"x": sample}


def _letters(rng: random.Random) -> str:
    count = rng.randint(4, 10)
    return "".join(rng.choice(string.ascii_letters + string.digits) for _ in range(count))


def _line(text: str, size: int, paper: int, ink: int) -> Image.Image:
    font = ImageFont.load_default(size)
    image = Image.new("L", (int(font.getlength(text)) + 16, size + 14), paper)
    ImageDraw.Draw(image).text((8, 4), text, fill=ink, font=font)
    return image
