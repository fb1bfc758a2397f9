"""The engine under test, its worker, and the test models."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from qdqtune import zoo
from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.engines._hosts import LocalHost
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._worker import FailureKind, OpenModel, Worker, WorkerFailure
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._accuracy import TensorError
from qdqtune.records._measurement import FLOAT32

if TYPE_CHECKING:
    from qdqtune.engines._interface import Feeds

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
    "gpt": {"layers": 2, "width": 32, "head_width": 16, "sequence": 16, "vocabulary": 100},
    "unet": {"width": 4, "image": 32},
    "yolo": {"width": 4, "image": 64},
    "chain": {"nodes": 50},
}
"""A size of each zoo architecture that even a slow engine runs quickly."""

TOWER_LAYERS = 4
"""Size of the default tower: a run takes far longer than the call that starts it."""
# The first opset in which ONNX's reference implements Q and DQ.
_HEADER = '<ir_version: 9, opset_import: ["": 19]>'

_ONE_THREAD = SessionOptions(threads=1)
_TIMEOUT_S = 120.0


def model_of(text: str, **constants: Array) -> onnx.ModelProto:
    """Parse a model from ONNX text, with or without header, and name its nodes n0, n1 and so on."""
    model = parser.parse_model(text if text.startswith("<") else f"{_HEADER}\n{text}")
    for position, node in enumerate(model.graph.node):
        node.name = f"n{position}"
    model.graph.initializer.extend(
        numpy_helper.from_array(values, name) for name, values in constants.items()
    )
    return model


def feeds_of(model: onnx.ModelProto) -> Arrays:
    """Return seeded inputs that are valid for a model."""
    return next(random_inputs(GraphIndex(ir.from_proto(model)), 1))


def reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Arrays:
    """Return a model's outputs, computed op by op as written."""
    results = ReferenceEvaluator(model).run(None, dict(feeds))
    names = (value.name for value in model.graph.output)
    return dict(zip(names, map(np.asarray, results), strict=True))


def nearness_db(expected: Array, actual: Array) -> float:
    """Return the signal-to-noise ratio of an output: infinite if equal, minus infinite for NaN."""
    wanted, got = expected.astype(np.float64), actual.astype(np.float64)
    signal, noise = (float(np.square(each).sum()) for each in (wanted, got - wanted))
    return TensorError(signal=signal, noise=noise).sqnr_db


@functools.cache
def tower(layers: int, width: int = 256, rows: int | str = 64) -> onnx.ModelProto:
    """Build a model of consecutive matrix products, none of which can be optimized away."""
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
    """Return the inputs of a tower."""
    return {"x": np.random.default_rng(rows).standard_normal((rows, 256), np.float32)}


@dataclass(frozen=True)
class Case:
    """A model and its expected outputs.

    Attributes:
        model: The model, which must not be changed.
        feeds: Its inputs; several if shapes differ from run to run.
        expected: Its outputs for each of them, by ONNX's reference.
    """

    model: onnx.ModelProto
    feeds: tuple[Arrays, ...]
    expected: tuple[Arrays, ...]

    @classmethod
    def of(cls, model: onnx.ModelProto, *feeds: Arrays) -> Case:
        """Compute the expected outputs with the reference."""
        return cls(model, feeds, tuple(reference(model, each) for each in feeds))


@functools.cache
def zoo_case(name: str) -> Case:
    """Return the case of a small zoo model."""
    model = zoo.build(name, **SMALL[name])
    return Case.of(model, feeds_of(model))


def _numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _odd(text: str, *feeds: Arrays, **constants: Array) -> Callable[[], Case]:
    return lambda: Case.of(model_of(text, **constants), *feeds)


_X = {"x": _numbers(2, 3)}
ODDITIES: dict[str, Callable[[], Case]] = {
    "several outputs, not in the order of the nodes": _odd(
        "g (float[2, 3] x) => (float[2, 3] c, float[2, 3] a, float[2, 3] b)"
        "{ a = Relu(x) b = Neg(x) c = Add(a, b) }",
        _X,
    ),
    "a scalar input": _odd(
        "g (float[2, 3] x, float s) => (float[2, 3] y) { y = Mul(x, s) }",
        {**_X, "s": np.array(-2.5, np.float32)},
    ),
    "an int64 input": _odd(
        "g (int64[2, 3] ids) => (float[2, 3, 4] y) { y = Gather(table, ids) }",
        {"ids": np.array([[4, 0, 3], [1, 1, 2]], np.int64)},
        table=_numbers(5, 4),
    ),
    "open dims": _odd(
        "g (float[n, 8] x) => (float[n, 4] y) { h = MatMul(x, w) y = Relu(h) }",
        *({"x": _numbers(rows, 8, seed=seed)} for seed, rows in enumerate((3, 7, 2))),
        w=_numbers(8, 4),
    ),
    "an output that is read inside": _odd(
        "g (float[2, 3] x) => (float[2, 3] h, float[2, 3] y) { h = Relu(x) y = Neg(h) }", _X
    ),
    "an input passed through": _odd(
        "g (float[2, 3] x) => (float[2, 3] same, float[2, 3] y) { same = Identity(x) y = Relu(x) }",
        _X,
    ),
}
"""Models with a feature that is easy to get wrong, by that feature."""


@dataclass(frozen=True)
class FloatPromise:
    """The accuracy that a float type allows, as signal-to-noise ratios.

    Attributes:
        models_db: Ratio for the outputs of whole models against ONNX's reference.
        op_db: Ratio for those of single ops.
        epsilon: The largest relative rounding error.
    """

    models_db: float
    op_db: float
    epsilon: float


FLOAT_PROMISES = {
    FLOAT32: FloatPromise(80.0, 80.0, 2.0**-24),
    "tf32": FloatPromise(25.0, 50.0, 2.0**-11),
    "float16": FloatPromise(25.0, 50.0, 2.0**-11),
    "bfloat16": FloatPromise(15.0, 45.0, 2.0**-9),
}
"""By `EngineInfo.float_type`.

Measured: zoo models 100 dB and more in float32, 18 and more in bfloat16; single ops 130 and 52.
"""


@dataclass(frozen=True)
class EngineUnderTest:
    """An engine, and what it promises beyond what every engine must.

    Attributes:
        name: Its name in the registry, or `module:Class`.
        options: How its models are opened. One thread gives the steadiest times; it is not passed
            to an engine whose number of threads can't be set.
        dialect: The Q/DQ dialect that it expects.
        quant_types: Those of the dialect's quant types that it runs; empty for all.
        runs: Whether models can be run here; False if they can only be opened, as without a GPU.
            Tests that need runs are then skipped, after opening and feeding models.
        program: Whether it starts a program for every request, which then takes most of the time.
        measures: Whether its times are measured; False if they are simulated.
        layers: Whether `layer_times` lists the layers.
        integer_layers: Whether a quantized op is listed as a layer that computes in integers.
        architectures: The zoo models that it runs.
        float_db: Required signal-to-noise ratio of its float outputs against ONNX's reference; None
            for the one of the type that it reports to compute in, see `FLOAT_PROMISES`.
        steps: Number of quantization steps by which a quantized result may be off.
        other_options: Options that make its times incomparable with those under `options`: values
            that are neither defaults nor in `options`.
        environment: Variables for its process, such as PYTHONPATH.
    """

    name: str
    options: SessionOptions = _ONE_THREAD
    dialect: str = "onnxruntime"
    quant_types: tuple[str, ...] = ()
    runs: bool = True
    program: bool = False
    measures: bool = True
    layers: bool = True
    integer_layers: bool = True
    architectures: tuple[str, ...] = zoo.ARCHITECTURES
    float_db: float | None = None
    steps: int = 1
    other_options: Mapping[str, str] = field(default_factory=dict, hash=False)
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def promised_types(self) -> tuple[str, ...]:
        """The quant types that it runs."""
        return self.quant_types or tuple(dialect_named(self.dialect).formats)


class Bench:
    """An engine in a worker, and the test models.

    Args:
        engine: The engine.
        folder: The folder for models, each written once.

    Attributes:
        engine: The engine.
        folder: The folder.
        worker: The worker, shared by all tests of a class; a test closes what it opens.
    """

    def __init__(self, engine: EngineUnderTest, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self.worker = Worker(
            engine.name,
            engine.options,
            timeout_s=_TIMEOUT_S,
            host=LocalHost(variables=engine.environment),
        )

    @functools.cached_property
    def promise(self) -> FloatPromise:
        """The accuracy of floats: declared for the engine, or that of the type it reports."""
        told = self.worker.info().float_type or FLOAT32
        assert told in FLOAT_PROMISES, (
            f"`info().float_type` is {told!r}; it is one of {', '.join(FLOAT_PROMISES)}, or empty"
        )
        found, said = FLOAT_PROMISES[told], self.engine.float_db
        return found if said is None else replace(found, models_db=said, op_db=said)

    def needs_runs(self) -> None:
        """Skips the test if models can't be run here."""
        if not self.engine.runs:
            pytest.skip(f"{self.engine.name} opens models, but can't run them here")

    def close(self) -> None:
        """Ends the engine's process."""
        self.worker.close()

    def write(self, name: str, model: onnx.ModelProto, **how: Any) -> Path:
        """Writes a model unless it exists; `how` are options of `onnx.save`."""
        path = self.folder / f"{name}.onnx"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            onnx.save(model, path, **how)
        return path

    def tower(self, layers: int = TOWER_LAYERS) -> Path:
        """Writes a tower of matrix products, see `qdqtune.testing._bench.tower`."""
        return self.write(f"tower of {layers}", tower(layers))

    @contextlib.contextmanager
    def opened(
        self,
        path: str | os.PathLike[str],
        options: SessionOptions | None = None,
        feeds: Feeds | None = None,
    ) -> Iterator[OpenModel]:
        """Opens and feeds a model inside the context."""
        with self.worker.opened(path, options) as model:
            if feeds is not None:
                self.worker.feed(model, feeds)
            yield model

    def refusal(self, request: Callable[[], Any], what: str) -> WorkerFailure:
        """Makes a request that the engine must refuse with an exception, and returns the failure.

        Args:
            request: The request.
            what: Its fault, for the message if it is not refused.
        """
        self.worker.info()
        pid = self.worker.pid
        try:
            request()
        except WorkerFailure as failure:
            caught = failure
        else:
            raise AssertionError(f"{what}: nothing was raised, garbage is taken for a result")
        assert caught.kind is FailureKind.ERROR, (
            f"{what}: the engine should have raised an exception, but its process ended "
            f"({caught.kind.value}). Check what the native library is given. {caught}"
        )
        assert self.worker.pid == pid, f"{what}: the engine's process should live on"
        return caught
