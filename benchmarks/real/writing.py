"""Rendered text: lines, pages and captchas, for readers and finders of text."""

from __future__ import annotations

import io
import string
from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from benchmarks.real.pictures import channels_first, crops
from benchmarks.real.wheels import Array, Part, Sample, Wheels
from benchmarks.real.words import docstrings

_MATPLOTLIB, _CAPTCHA = "matplotlib==3.11.2", "captcha==0.7.1"
_FONTS = "matplotlib/mpl-data/fonts/ttf/"
_FACES = {
    Part.CALIBRATION: ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono", "cmr10"),
    Part.HELD_OUT: ("DejaVuSans-Oblique", "DejaVuSerif-Bold", "STIXGeneral", "cmss10"),
}
_ALPHABET = string.ascii_letters + string.digits

Color = tuple[int, int, int]


class Typesetter:
    """Draws text in the fonts of a part."""

    def __init__(self, wheels: Wheels, part: Part) -> None:
        names = [f"{_FONTS}{face}.ttf" for face in _FACES[part]]
        self._faces = [wheels.read(_MATPLOTLIB, name) for name in names]
        if part is Part.CALIBRATION:
            self._faces.append(wheels.read(_CAPTCHA, "captcha/data/DroidSansMono.ttf"))
        texts = docstrings(part)
        self._words = [word for text in texts for word in text.split() if word.isascii()]
        self.rng = part.rng

    def font(self, size: int) -> ImageFont.FreeTypeFont:
        """One of the fonts."""
        face = self._faces[int(self.rng.integers(len(self._faces)))]
        return ImageFont.truetype(io.BytesIO(face), size)

    def letters(self, least: int, most: int) -> str:
        """Letters and digits at random."""
        count = int(self.rng.integers(least, most + 1))
        return "".join(_ALPHABET[int(self.rng.integers(len(_ALPHABET)))] for _ in range(count))

    def words(self, count: int) -> str:
        """English out of docstrings."""
        start = int(self.rng.integers(len(self._words) - count))
        return " ".join(self._words[start : start + count])

    def colors(self) -> tuple[Color, Color]:
        """Paper and ink, one light and one dark."""
        light, dark = self._color(180, 256), self._color(0, 90)
        return (light, dark) if self.rng.random() < 0.7 else (dark, light)

    def line(self) -> Image.Image:
        """A line of text, a little crooked, on plain paper."""
        text = self.letters(4, 10) if self.rng.random() < 0.5 else self.words(3)
        font = self.font(int(self.rng.integers(20, 40)))
        paper, ink = self.colors()
        left, top, right, bottom = font.getbbox(text)
        image = Image.new("RGB", (int(right - left) + 16, int(bottom - top) + 14), paper)
        ImageDraw.Draw(image).text((8 - left, 6 - top), text, fill=ink, font=font)
        angle = self.rng.uniform(-1.5, 1.5)
        return image.rotate(angle, Image.Resampling.BICUBIC, fillcolor=paper)

    def glyph(self, size: int, ink: Color, turn: float) -> Image.Image:
        """One turned letter on a transparent ground."""
        image = Image.new("RGBA", (2 * size, 2 * size), (*ink, 0))
        place = (size // 2, size // 3)
        ImageDraw.Draw(image).text(place, self.letters(1, 1), fill=ink, font=self.font(size))
        return image.rotate(self.rng.uniform(-turn, turn), Image.Resampling.BICUBIC)

    def _color(self, low: int, high: int) -> Color:
        red, green, blue = (int(level) for level in self.rng.integers(low, high, 3))
        return red, green, blue


def lines(wheels: Wheels, part: Part) -> Iterator[Sample]:
    """What a recogniser of lines takes: 48 high, padded to 320 wide, from -1 to 1."""
    pen = Typesetter(wheels, part)
    while True:
        yield {"x": _fitted(pen, pen.line(), 320)}


def turned_lines(wheels: Wheels, part: Part) -> Iterator[Sample]:
    """Lines of which every other one stands on its head."""
    pen = Typesetter(wheels, part)
    while True:
        line = pen.line()
        yield {"x": _fitted(pen, line, 192)}
        yield {"x": _fitted(pen, line.rotate(180), 192)}


def pages(wheels: Wheels, part: Part) -> Iterator[Sample]:
    """Photographs and paper with lines of text on them, 512 by 384, from -1 to 1."""
    pen = Typesetter(wheels, part)
    size = (512, 384)
    for crop in crops(wheels, part, size, pen.rng):
        paper, ink = pen.colors()
        image = crop if pen.rng.random() < 0.6 else Image.new("RGB", size, paper)
        draw = ImageDraw.Draw(image)
        for _ in range(int(pen.rng.integers(2, 9))):
            place = (int(pen.rng.integers(0, 300)), int(pen.rng.integers(0, 350)))
            font = pen.font(int(pen.rng.integers(12, 48)))
            if image is crop:
                ink = pen.colors()[1]
            draw.text(place, pen.words(int(pen.rng.integers(1, 5))), fill=ink, font=font)
        yield {"x": channels_first(image, bgr=True) / 127.5 - 1}


def captchas(wheels: Wheels, part: Part) -> Iterator[Sample]:
    """Letters to copy: grey, 64 by 160, crossed by lines and dots, from 0 to 1."""
    pen = Typesetter(wheels, part)
    while True:
        paper, ink = pen.colors()
        image = Image.new("RGB", (160, 64), paper)
        count = int(pen.rng.integers(4, 7))
        for position in range(count):
            glyph = pen.glyph(int(pen.rng.integers(26, 40)), ink, 30)
            left = position * 150 // count - glyph.width // 4 + 5
            image.paste(glyph, (left, 32 - glyph.height // 2), glyph)
        draw = ImageDraw.Draw(image)
        for _ in range(int(pen.rng.integers(0, 4))):
            ends = [int(end) for end in pen.rng.integers(0, (160, 64, 160, 64))]
            draw.line(ends, fill=ink, width=1)
        pixels = np.asarray(image.convert("L"), np.float32) / 255
        pixels[pen.rng.random(pixels.shape) < 0.01] = 0.5
        yield {"input1": pixels[None, None]}


def click_captchas(wheels: Wheels, part: Part) -> Iterator[Sample]:
    """Photographs with letters strewn over them, on grey to 416 by 416, from 0 to 255."""
    pen = Typesetter(wheels, part)
    for crop in crops(wheels, part, (416, 260), pen.rng):
        for _ in range(int(pen.rng.integers(3, 7))):
            glyph = pen.glyph(int(pen.rng.integers(30, 60)), pen.colors()[1], 45)
            place = (int(pen.rng.integers(0, 340)), int(pen.rng.integers(0, 180)))
            crop.paste(glyph, place, glyph)
        ground = Image.new("RGB", (416, 416), (114, 114, 114))
        ground.paste(crop, (0, 0))
        yield {"images": channels_first(ground, bgr=True)}


def _fitted(pen: Typesetter, line: Image.Image, width: int) -> Array:
    wide = min(width, max(1, line.width * 48 // line.height))
    pixels = channels_first(line.resize((wide, 48), Image.Resampling.BILINEAR), bgr=True)
    noisy = pixels / 127.5 - 1 + pen.rng.normal(0, 0.03, pixels.shape)
    fitted = np.zeros((1, 3, 48, width), np.float32)
    fitted[..., :wide] = noisy
    return fitted
