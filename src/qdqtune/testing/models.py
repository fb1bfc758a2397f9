"""The models that every engine is tried on, and what they compute by ONNX's reference."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from qdqtune import zoo
from qdqtune.calibration.random_inputs import random_inputs
from qdqtune.graph.index import GraphIndex

Array = npt.NDArray[Any]
Arrays = dict[str, Array]

SMALL: dict[str, dict[str, Any]] = {
    "resnet18": {"blocks": (1, 1), "width": 8, "image": 32},
    "resnet34": {"blocks": (2, 1), "width": 8, "image": 32},
    "resnet50": {"blocks": (1, 1), "width": 8, "image": 32},
    "mobilenet_v2": {"width": 0.1, "image": 32},
    "efficientnet": {"width": 0.1, "depth": 0.25, "image": 32},
    "shufflenet_v2": {"width": 0.5, "image": 32},
    "convnext": {"depths": (1, 1), "dims": (16, 32), "image": 32},
    "vit": {"layers": 2, "width": 32, "head_width": 16, "image": 32},
    "bert": {"layers": 2, "width": 32, "head_width": 16, "sequence": 16, "vocabulary": 100},
    "unet": {"width": 4, "image": 32},
    "yolo": {"width": 4, "image": 64},
    "chain": {"nodes": 50},
}
"""A size of each zoo architecture that even a slow engine runs at once."""

TOWER_LAYERS = 4
"""Of the usual tower: a run of it takes far longer than the call that starts it."""
# The first opset of which ONNX's reference has Q and DQ.
_HEADER = '<ir_version: 9, opset_import: ["": 19]>'


def model_of(text: str, **constants: Array) -> onnx.ModelProto:
    """A model from ONNX text; its nodes are called n0, n1, and so on."""
    model = parser.parse_model(f"{_HEADER}\n{text}")
    for position, node in enumerate(model.graph.node):
        node.name = f"n{position}"
    model.graph.initializer.extend(
        numpy_helper.from_array(values, name) for name, values in constants.items()
    )
    return model


def feeds_of(model: onnx.ModelProto) -> Arrays:
    """Seeded inputs that are legal for a model."""
    return next(random_inputs(GraphIndex(ir.from_proto(model)), 1))


def reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Arrays:
    """What a model computes, op by op as it is written."""
    evaluator = ReferenceEvaluator(model)
    results = evaluator.run(None, dict(feeds))
    return dict(zip(evaluator.output_names, map(np.asarray, results), strict=True))


def nearness_db(expected: Array, actual: Array) -> float:
    """Signal-to-noise ratio of an output: infinite if equal, minus infinite if not a number."""
    wanted, got = expected.astype(np.float64), actual.astype(np.float64)
    noise = float(np.square(got - wanted).sum())
    if math.isnan(noise):
        return -math.inf
    signal = float(np.square(wanted).sum())
    if noise == 0.0:
        return math.inf
    return 10.0 * math.log10(signal / noise) if signal and math.isfinite(noise) else -math.inf


@functools.cache
def tower(layers: int, width: int = 256, rows: int | str = 64) -> onnx.ModelProto:
    """So many products of a matrix, one after the other, with nothing that could be left out."""
    rng = np.random.default_rng(layers)
    values = rng.standard_normal((layers, width, width), np.float32) / np.float32(width**0.5)
    names = ["x", *(f"h{layer}" for layer in range(1, layers)), "y"]
    body = "".join(
        f"m{layer} = MatMul({names[layer]}, w{layer}) {names[layer + 1]} = Tanh(m{layer}) "
        for layer in range(layers)
    )
    text = f"tower (float[{rows}, {width}] x) => (float[{rows}, {width}] y) {{ {body} }}"
    return model_of(text, **{f"w{layer}": values[layer] for layer in range(layers)})


def tower_feeds(rows: int = 64) -> Arrays:
    """Inputs of a tower."""
    return {"x": np.random.default_rng(rows).standard_normal((rows, 256), np.float32)}


@dataclass(frozen=True)
class Case:
    """A model and what it computes.

    Attributes:
        model: The model; not to be changed.
        feeds: Its inputs; several where the shapes differ from run to run.
        expected: Its outputs on each of them, by ONNX's reference.
    """

    model: onnx.ModelProto
    feeds: tuple[Arrays, ...]
    expected: tuple[Arrays, ...]

    @classmethod
    def of(cls, model: onnx.ModelProto, *feeds: Arrays) -> Case:
        """Runs the reference."""
        return cls(model, feeds, tuple(reference(model, each) for each in feeds))


@functools.cache
def zoo_case(name: str) -> Case:
    """A small model of the zoo."""
    model = zoo.build(name, **SMALL[name])
    return Case.of(model, feeds_of(model))


def _numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


_IDS = np.array([[4, 0, 3], [1, 1, 2]], np.int64)

ODDITIES: dict[str, Callable[[], Case]] = {
    "several outputs, not in the order of the nodes": lambda: Case.of(
        model_of(
            "g (float[2, 3] x) => (float[2, 3] c, float[2, 3] a, float[2, 3] b)"
            "{ a = Relu(x) b = Neg(x) c = Add(a, b) }"
        ),
        {"x": _numbers(2, 3)},
    ),
    "a scalar input": lambda: Case.of(
        model_of("g (float[2, 3] x, float s) => (float[2, 3] y) { y = Mul(x, s) }"),
        {"x": _numbers(2, 3), "s": np.array(-2.5, np.float32)},
    ),
    "an int64 input": lambda: Case.of(
        model_of(
            "g (int64[2, 3] ids) => (float[2, 3, 4] y) { y = Gather(table, ids) }",
            table=_numbers(5, 4),
        ),
        {"ids": _IDS},
    ),
    "open dims": lambda: Case.of(
        model_of(
            "g (float[n, 8] x) => (float[n, 4] y) { h = MatMul(x, w) y = Relu(h) }",
            w=_numbers(8, 4),
        ),
        {"x": _numbers(3, 8)},
        {"x": _numbers(7, 8, seed=1)},
        {"x": _numbers(2, 8, seed=2)},
    ),
    "an output that is read inside": lambda: Case.of(
        model_of("g (float[2, 3] x) => (float[2, 3] h, float[2, 3] y) { h = Relu(x) y = Neg(h) }"),
        {"x": _numbers(2, 3)},
    ),
    "an input passed through": lambda: Case.of(
        model_of(
            "g (float[2, 3] x) => (float[2, 3] same, float[2, 3] y)"
            "{ same = Identity(x) y = Relu(x) }"
        ),
        {"x": _numbers(2, 3)},
    ),
}
"""Models with something that is easily got wrong, by what that is."""
