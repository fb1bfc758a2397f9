from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, settings
from onnx import numpy_helper, parser

from qdqtune.calibration import _ranges as range_cache
from qdqtune.engines import _registry as registry
from qdqtune.engines._hardware import read_cpu, saturates_u8s8
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._openvino_settings import settings_of
from qdqtune.workflows import _quantize_steps as quantize_steps
from qdqtune.workflows.tuning import _baseline
from qdqtune.workflows.tuning._time_budget import PRESETS
from tests.in_process import real_processes, unguarded_inference, use_in_process_engines

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "8")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("ci")

# The folders of tests whose models could crash ONNX's native code.
_GUARDED = {"fuzz", "graph", "promises"}

SEVEN_BITS = saturates_u8s8(read_cpu().isa)
"""Whether 8-bit weights saturate here; other tools then need `reduce_range` to compute right."""

_CACHES = tempfile.TemporaryDirectory(prefix="qdqtune-tests-")
_NUMBERS = itertools.count()
os.environ[range_cache.FOLDER] = (
    f"{_CACHES.name}/shared"  # for what a module's tests have in common
)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # started by nohup
    # Still nothing happens here, but what the tests start would inherit that it is ignored.
    signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_configure(config: pytest.Config) -> None:
    """Starts what takes long to start once, or not at all."""
    is_fast_tier = "not slow" in config.getoption("markexpr")
    use_in_process_engines("simulated", *([registry.REFERENCE] if is_fast_tier else []))
    # What a loss of power leaves is not tested; waiting for disks takes half of a simulated run.
    os.fsync = lambda _: None  # type: ignore[assignment]
    # Every worker of OpenVINO would find this out by itself, in half a second.
    if registry.available("openvino").usable:
        limit = settings_of(SessionOptions()).max_cpu_isa
        if limit:
            os.environ.setdefault("ONEDNN_MAX_CPU_ISA", limit)


def pytest_collection_finish() -> None:
    """What was imported and collected stays: garbage is looked for often, and not there."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def worker_processes() -> Iterator[None]:
    """For what is about processes: the simulated engine has one, too."""
    with real_processes():
        yield


@pytest.fixture(autouse=True)
def inference_in_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """Most models are harmless; commands that a test starts have the guard in any case."""
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    with contextlib.nullcontext() if folder in _GUARDED else unguarded_inference():
        yield


@pytest.fixture
def brief_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """For commands that must run on a real engine, whatever they find.

    They measure little, and on a busy machine they don't wait for a quiet moment.
    """
    for name, preset in PRESETS.items():
        monkeypatch.setitem(PRESETS, name, replace(preset.with_runs(1), final_s=0.5))
    monkeypatch.setattr(quantize_steps, "TIMING_S", 0.3)
    monkeypatch.setattr(_baseline, "_WITHOUT_BUDGET_S", 0.0)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test calibrates by itself, and leaves the user's cache alone."""
    monkeypatch.setenv(range_cache.FOLDER, f"{_CACHES.name}/{next(_NUMBERS)}")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """The command line sets levels and handlers; the next test must not see them."""
    loggers = [logging.getLogger(), logging.getLogger("qdqtune")]
    kept = [(logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, kept, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


def model_from_text(text: str, opset: int = 17, **weights: np.ndarray) -> onnx.ModelProto:
    """A model from ONNX text; node names are n0, n1, ... and weights become initializers."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{text}')
    for position, node in enumerate(model.graph.node):
        node.name = f"n{position}"
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


@pytest.fixture
def residual() -> onnx.ModelProto:
    """Two convs with BatchNorm and a residual Add."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.normal(size=(4, 3, 3, 3)),
        "w2": rng.normal(size=(4, 4, 1, 1)),
        "b2": rng.normal(size=4),
        "gamma": rng.uniform(0.5, 1.5, 4),
        "beta": rng.normal(size=4),
        "mean": rng.normal(size=4),
        "var": rng.uniform(0.5, 1.5, 4),
    }
    return model_from_text(
        """
        g (float[1,3,8,8] x) => (float[1,4,8,8] y) {
            c1 = Conv<pads=[1,1,1,1]>(x, w1)
            bn = BatchNormalization(c1, gamma, beta, mean, var)
            r1 = Relu(bn)
            c2 = Conv(r1, w2, b2)
            y = Add(c2, r1)
        }""",
        **{name: array.astype(np.float32) for name, array in weights.items()},
    )


@pytest.fixture
def residual_path(residual: onnx.ModelProto, tmp_path: Path) -> Path:
    path = tmp_path / "residual.onnx"
    onnx.save(residual, path)
    return path


def matmul_file(folder: Path) -> Path:
    """Writes a MatMul of 64 x 64 with a Relu behind it."""
    text = "g (float[64,64] x) => (float[64,64] y) { h = MatMul(x, w) y = Relu(h) }"
    onnx.save(model_from_text(text, w=np.eye(64, dtype=np.float32)), folder / "m.onnx")
    return folder / "m.onnx"
