"""Random small models for subgraph mode: few enough choices that all of them can be enumerated."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx

from qdqtune.zoo._builder import GraphBuilder, Marginal, Value
from qdqtune.zoo._layers import (
    POINTWISE,
    Window,
    add,
    concat,
    conv,
    flatten,
    gemm,
    global_average_pool,
    image_input,
    max_pool,
    relu,
    relu6,
)

MOST_CHOICES = 12
"""Ops of a model that can be quantized, at most."""
_FEWEST_CHOICES = 7
# A Conv and a sum that reads it, for example.
_LARGEST_STEP = 2
_WIDTHS = (2, 6, 16, 32, 48, 64, 96, 128)
_SIZES = (24, 32, 48, 64, 96)
_RECENT = 4


def random_model(seed: int) -> onnx.ModelProto:
    """A model with fan-out, residual sums, concatenations, depthwise and pointwise ops.

    Args:
        seed: The same seed gives the same model.
    """
    return _Grower(seed).grown()


class _Grower:
    """Adds random ops to what is there; what nobody reads in the end is an output."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._builder = GraphBuilder(f"random{seed}", seed)
        self._values = [image_input(self._builder, 1, self._random.choice(_SIZES))]
        self._unread: dict[str, Value] = {}
        self._choices = 0
        self._names = 0
        self._kinds: list[tuple[Callable[[], object], int]] = [
            (self._conv, 8), (self._depthwise, 3), (self._sum, 4), (self._concat, 2),
            (self._gate, 1), (self._function, 1), (self._pool, 1), (self._twins, 2),
        ]  # fmt: skip

    def grown(self) -> onnx.ModelProto:
        target = self._random.randint(_FEWEST_CHOICES, MOST_CHOICES)
        has_head = target > _FEWEST_CHOICES and self._random.random() < 0.3
        self._conv(self._values[0])
        grow, weights = zip(*self._kinds, strict=True)
        while self._choices + _LARGEST_STEP <= target - (3 if has_head else 0):
            self._random.choices(grow, weights)[0]()
        if has_head:
            self._head()
        outputs = {f"out{number}": value for number, value in enumerate(self._unread.values())}
        return self._builder.model(outputs)

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def _read(self, *values: Value) -> None:
        for value in values:
            self._unread.pop(value.name, None)

    def _made(self, value: Value, choices: int = 1) -> Value:
        # Estimates of ever narrower distributions would run out of spread; nobody needs them here.
        channels = value.shape[1]
        value = Value(
            value.name, value.shape, Marginal.normal(np.zeros(channels), np.ones(channels))
        )
        self._values.append(value)
        self._unread[value.name] = value
        self._choices += choices
        return value

    def _recent(self) -> Value:
        """Something to read: the newest most often, so that models are deep as well."""
        made = self._values[1:][-_RECENT:]
        return made[-1] if self._random.random() < 0.5 else self._random.choice(made)

    def _activated(self, x: Value) -> Value:
        kind = self._random.choice((relu, relu, relu6, None))
        return x if kind is None else kind(self._builder, x, self._name("act"))

    def _conv(self, x: Value | None = None, width: int = 0) -> Value:
        x = self._recent() if x is None else x
        width = width or self._random.choice(_WIDTHS)
        window = self._random.choice((POINTWISE, POINTWISE, Window(3), Window(3), Window(5)))
        self._read(x)
        return self._made(
            self._activated(conv(self._builder, x, self._name("conv"), width, window))
        )

    def _depthwise(self) -> None:
        x = self._recent()
        self._read(x)
        channels = x.shape[1]
        window = Window(self._random.choice((3, 5)), groups=channels)
        y = conv(self._builder, x, self._name("depthwise"), channels, window)
        self._made(self._activated(y))

    def _sum(self) -> None:
        """A sum of two that are alike, or of one and a Conv of it."""
        x = self._recent()
        alike = [v for v in self._values[1:] if v.shape == x.shape and v.name != x.name]
        y = self._random.choice(alike) if alike else self._conv(x, x.shape[1])
        self._read(x, y)
        self._made(self._activated(add(self._builder, x, y, self._name("add"))))

    def _concat(self) -> None:
        x = self._recent()
        fits = [v for v in self._values[1:] if v.shape[2:] == x.shape[2:] and v.name != x.name]
        y = self._random.choice(fits) if fits else self._conv(x)
        self._read(x, y)
        self._made(concat(self._builder, [x, y], self._name("concat")))

    def _gate(self) -> None:
        x = self._recent()
        self._read(x)
        gate = self._builder.node("Sigmoid", self._name("sigmoid"), [x])
        self._made(self._builder.node("Mul", self._name("mul"), [x, gate]), 2)

    def _function(self) -> None:
        """Pointwise ops that no dialect has an integer kernel for."""
        x = self._recent()
        self._read(x)
        for _ in range(self._random.randint(1, 2)):
            x = self._builder.node(
                self._random.choice(("Tanh", "Elu", "Abs")), self._name("f"), [x]
            )
        self._made(x, 0)

    def _pool(self) -> None:
        x = self._recent()
        if x.shape[-1] < 8:
            return
        self._read(x)
        self._made(max_pool(self._builder, x, self._name("pool"), Window(2, 2, padded=False)))

    def _twins(self) -> None:
        """Two Convs that read one tensor."""
        x = self._recent()
        self._conv(x)
        self._conv(x)

    def _head(self) -> None:
        x = self._recent()
        self._read(x)
        mean = global_average_pool(self._builder, x, self._name("mean"))
        flat = flatten(self._builder, mean, self._name("flat"))
        self._made(gemm(self._builder, flat, self._name("gemm"), self._random.choice((10, 100))), 3)
