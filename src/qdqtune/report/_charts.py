"""Charts of a report as inline SVG; text in them is escaped by `Markup.format`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from qdqtune.records._printable import printable

_WIDTH, _HEIGHT = 640.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 60.0, 16.0, 30.0, 42.0
# Height of a label, as large as it is on a phone.
_LABEL = 20.0
# Standard errors in the interval of a measurement.
_SPREAD = 2.0
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Mark:
    """A point of a chart.

    Attributes:
        x: Its position to the right.
        y: Its position upwards.
        low: Lower end of its interval.
        high: Upper end.
        label: What it is; shown by browsers on hover.
        target: Id of the row about it; empty if there is none.
        kind: Its CSS class.
    """

    x: float
    y: float
    low: float
    high: float
    label: str
    target: str = ""
    kind: str = ""

    @classmethod
    def measured(
        cls, x: float, gain: float, error: float, label: str, target: str, kind: str
    ) -> Mark:
        """Return the mark of a speedup, from its logarithm and the standard error of that."""
        low, high = (math.exp(gain + sign * _SPREAD * error) for sign in (-1.0, 1.0))
        return cls(x, math.exp(gain), low, high, label, target, kind)


def join(parts: Iterable[Markup]) -> Markup:
    """Concatenate parts."""
    return Markup("").join(parts)


def ticks(low: float, high: float, count: int = 5, least: float = 0.0) -> list[float]:
    """Return round numbers that divide an interval, in steps of this size at least."""
    if not high > low:
        return [low]
    rough = max((high - low) / count, least)
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * each for each in _STEPS if size * each >= rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


class Axes:
    """A chart's scales, from data to its pixels.

    Args:
        xs: The least and the largest value to the right.
        ys: Those upwards.
        names: What both axes show.
        suffix: The unit of numbers upwards.
        least: The least step between numbers to the right.
        room: Pixels to the right of the chart, for labels `behind` it.
    """

    def __init__(
        self,
        xs: tuple[float, float],
        ys: tuple[float, float],
        names: tuple[str, str],
        suffix: str = "×",
        least: float = 0.0,
        room: float = _RIGHT,
    ) -> None:
        self._xs, self._ys, self._names, self._suffix = xs, ys, names, suffix
        self._least, self._right = least, _WIDTH - room

    def x(self, value: float) -> float:
        """Return the pixel of a value to the right."""
        return _LEFT + (self._right - _LEFT) * _share(value, self._xs)

    def y(self, value: float) -> float:
        """Return the pixel of a value upwards."""
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * _share(value, self._ys)

    def svg(self, label: str, content: Markup) -> Markup:
        """Return the chart with its axes around the content."""
        lines = [
            Markup(
                '<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>'
                '<text class="tick end" x="{:.1f}" y="{:.1f}">{}{}</text>'
            ).format(
                _LEFT, self._right, self.y(value), self.y(value),
                _LEFT - 7, self.y(value) + 4, f"{value:g}", self._suffix,
            )
            for value in ticks(*self._ys)
        ]  # fmt: skip
        lines += [
            Markup('<text class="tick mid" x="{:.1f}" y="{:.1f}">{}</text>').format(
                self.x(value), _HEIGHT - _BOTTOM + 18, f"{value:g}"
            )
            for value in ticks(*self._xs, count=8, least=self._least)
        ]
        right, up = self._names
        lines += [
            Markup('<text class="axis end" x="{:.1f}" y="{:.1f}">{}</text>').format(
                self._right, _HEIGHT - 4, right
            ),
            Markup('<text class="axis" x="4" y="14">{}</text>').format(up),
        ]
        return Markup(
            '<svg class="chart" viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}{}</svg>'
        ).format(_WIDTH, _HEIGHT, label, join(lines), content)

    def marks(self, marks: Sequence[Mark]) -> Markup:
        """Return points with their intervals, those with a target as links."""
        return join(map(self._mark, marks))

    def _mark(self, mark: Mark) -> Markup:
        x, top, bottom = self.x(mark.x), self.y(mark.high), self.y(mark.low)
        whisker = Markup("")
        if bottom - top > 1.0:
            whisker = Markup('<path class="whisker" d="M{:.1f} {:.1f}V{:.1f}"/>').format(
                x, top, bottom
            )
        found = Markup(
            '<g class="mark {}">{}<circle cx="{:.1f}" cy="{:.1f}" r="3.5">'
            "<title>{}</title></circle></g>"
        ).format(mark.kind, whisker, x, self.y(mark.y), printable(mark.label))
        if mark.target:
            return Markup('<a href="#{}">{}</a>').format(mark.target, found)
        return found

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> Markup:
        """Return a line through points."""
        path = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)
        return Markup('<path class="{}" d="M{}"/>').format(kind, path) if points else Markup("")

    def steps(self, points: Sequence[tuple[float, float]], kind: str) -> Markup:
        """Return a line that keeps its height until the next point."""
        if not points:
            return Markup("")
        (x, y), *rest = points
        path = f"M{self.x(x):.1f} {self.y(y):.1f}"
        path += "".join(f"H{self.x(right):.1f}V{self.y(up):.1f}" for right, up in rest)
        return Markup('<path class="{}" d="{}H{:.1f}"/>').format(kind, path, self._right)

    def level(self, value: float) -> Markup:
        """Return a horizontal line."""
        return Markup('<path class="level" d="M{:.1f} {:.1f}H{:.1f}"/>').format(
            _LEFT, self.y(value), self._right
        )

    def above_left(self, value: float, label: str) -> Markup:
        """Return the label of a horizontal line, above its left end."""
        return Markup('<text class="direct muted" x="{:.1f}" y="{:.1f}">{}</text>').format(
            _LEFT + 4, self.y(value) - 4, label
        )

    def behind(self, labels: Iterable[tuple[float, str, str]]) -> Markup:
        """Return labels to the right of where lines end; none covers a point or another label.

        Args:
            labels: Where the line ends, its label, and the CSS class of that.
        """
        found, y = [], -math.inf
        for value, label, kind in sorted(labels, reverse=True):
            y = max(self.y(value) + 4, y + _LABEL)
            found.append(
                Markup('<text class="direct {}" x="{:.1f}" y="{:.1f}">{}</text>').format(
                    kind, self._right + 6, y, label
                )
            )
        return join(found)

    def rug(self, values: Iterable[float], kind: str) -> Markup:
        """Return ticks on the lower axis."""
        low = _HEIGHT - _BOTTOM
        path = "".join(f"M{self.x(value):.1f} {low:.1f}v-6" for value in values)
        return Markup('<path class="{}" d="{}"/>').format(kind, path) if path else Markup("")

    def crosses(self, marks: Sequence[Mark]) -> Markup:
        """Return failures as crosses near the lower axis."""
        y = _HEIGHT - _BOTTOM - 8
        return join(
            Markup('<path class="failed" d="M{:.1f} {:.1f}l6 6m0 -6l-6 6"><title>{}</title></path>')
            .format(self.x(mark.x) - 3, y, printable(mark.label))
            for mark in marks
        )  # fmt: skip


def _share(value: float, ends: tuple[float, float]) -> float:
    low, high = ends
    return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5


def span(values: Iterable[float], also: float | None = None) -> tuple[float, float]:
    """Return the least and the largest of some values, with a margin."""
    known = [value for value in values if math.isfinite(value)]
    known += [also] if also is not None else []
    low, high = min(known, default=0.0), max(known, default=1.0)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def interval_bar(
    value: float, low: float, high: float, most: float, kind: str, reference: float | None = None
) -> Markup:
    """Return a horizontal bar with its interval, on a scale that begins at 0.

    Args:
        value: Its length.
        low: Lower end of the interval.
        high: Upper end.
        most: The end of the scale.
        kind: Its CSS class.
        reference: A value to mark on the scale.
    """

    def at(each: float) -> float:
        return 200.0 * min(1.0, max(0.0, each / most)) if most else 0.0

    mark = Markup("")
    if reference is not None:
        mark = Markup('<path class="level" d="M{:.2f} 0V18"/>').format(at(reference))
    whisker = Markup("")
    if high > low:
        whisker = Markup('<path class="whisker" d="M{0:.2f} 9H{1:.2f}M{0:.2f} 5V13M{1:.2f} 5V13"/>')
        whisker = whisker.format(at(low), at(high))
    return Markup(
        '<svg class="bar" viewBox="0 0 200 18" preserveAspectRatio="none" aria-hidden="true">{}'
        '<rect class="{}" y="4" width="{:.2f}" height="10"/>{}</svg>'
    ).format(mark, kind, at(value), whisker)


def twin_bars(before: float, after: float | None, most: float, kind: str) -> Markup:
    """Return two thin bars, one below the other, on a scale that begins at 0."""

    def width(each: float) -> float:
        return 200.0 * each / most if most else 0.0

    second = Markup("")
    if after is not None:
        second = Markup('<rect class="{}" y="10" width="{:.2f}" height="6"/>').format(
            kind, width(after)
        )
    return Markup(
        '<svg class="bar" viewBox="0 0 200 18" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="float" y="2" width="{:.2f}" height="6"/>{}</svg>'
    ).format(width(before), second)


def dumbbell(
    predicted: float | None, measured: float | None, error: float, ends: tuple[float, float]
) -> Markup:
    """Return a prediction and a measurement on one scale, with the line of no change."""

    def at(each: float) -> float:
        return 4.0 + 192.0 * _share(each, ends)

    parts = [Markup('<path class="level" d="M{:.1f} 0V18"/>').format(at(1.0))]
    if measured is not None:
        low, high = (at(measured * math.exp(sign * _SPREAD * error)) for sign in (-1, 1))
        if predicted is not None:
            link = Markup('<path class="link" d="M{:.1f} 9H{:.1f}"/>')
            parts.append(link.format(at(predicted), at(measured)))
        parts += [
            Markup('<path class="whisker" d="M{:.1f} 9H{:.1f}"/>').format(low, high),
            Markup('<circle class="dot" cx="{:.1f}" cy="9" r="4"/>').format(at(measured)),
        ]
    if predicted is not None:
        ring = Markup('<circle class="ring" cx="{:.1f}" cy="9" r="4"/>')
        parts.append(ring.format(at(predicted)))
    return Markup('<svg class="pair" viewBox="0 0 200 18" aria-hidden="true">{}</svg>').format(
        join(parts)
    )
