"""OpenVINO computes floats in other types by CPU and by option: each is told, and in effect.

What a CPU can't do is asked of OpenVINO and skipped; other CPUs are faked in test_openvino.py.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from tests.conftest import model_from_text

from qdqtune.engines import _registry as registry
from qdqtune.engines._hardware import read_cpu
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._worker import Worker, WorkerFailure
from qdqtune.testing import Bench, EngineUnderTest
from qdqtune.testing._bench import FLOAT_PROMISES, nearness_db
from qdqtune.testing._computing import ComputesQuantized, RunsModels
from qdqtune.testing._conformance import HasBench
from qdqtune.testing._measuring import TellsLayers, TellsWhatItIs

NATIVE: dict[str, str] = {}
AVX2 = {"max_cpu_isa": "AVX2"}
FLOAT32 = {"inference_precision": "f32"}
BFLOAT16 = {"inference_precision": "bf16"}
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")

pytestmark = pytest.mark.skipif(
    not registry.available("openvino").usable, reason="OpenVINO is not installed"
)


def options(given: dict[str, str]) -> SessionOptions:
    return SessionOptions(threads=1, engine_options=given)


def skip_if_unknown_here(worker: Worker, given: dict[str, str]) -> None:
    told = worker.info().float_type
    if given == BFLOAT16 and told != "bfloat16":
        pytest.skip(f"OpenVINO computes bfloat16 in {told} on a CPU with {read_cpu().isa}")


@pytest.fixture(params=[NATIVE, AVX2, FLOAT32, BFLOAT16], ids=["native", "AVX2", "f32", "bf16"])
def given(request: pytest.FixtureRequest) -> dict[str, str]:
    return dict(request.param)


@pytest.fixture
def worker(given: dict[str, str]) -> Iterator[Worker]:
    with Worker("openvino", options(given), timeout_s=60) as worker:
        skip_if_unknown_here(worker, given)
        yield worker


@pytest.fixture
def product(tmp_path) -> str:
    weights = np.random.default_rng(1).standard_normal((256, 256), np.float32)
    text = "g (float[32,256] x) => (float[32,256] y) { y = MatMul(x, w) }"
    onnx.save(model_from_text(text, w=weights), tmp_path / "product.onnx")
    return str(tmp_path / "product.onnx")


def test_the_type_that_is_told_is_the_one_in_effect(
    worker: Worker, given: dict[str, str], product: str
) -> None:
    """The kernel's own word, and how far its result is off, agree with what `info` says."""
    info = worker.info()
    x = np.random.default_rng(2).standard_normal((32, 256), np.float32)
    (weights,) = onnx.load(product).graph.initializer
    exact = x.astype(np.float64) @ onnx.numpy_helper.to_array(weights)
    model = worker.open(product)
    worker.feed(model, {"x": x})
    layers = worker.layers(model, 1)
    (kernel,) = [each for each in layers if each.op_type in ("FullyConnected", "MatMul")]
    assert kernel.precision == info.float_type
    found_db = nearness_db(exact, worker.run(model, {"x": x})["y"])
    assert found_db >= FLOAT_PROMISES[info.float_type].op_db
    assert (found_db >= FLOAT_PROMISES["float32"].op_db) == (info.float_type == "float32")
    if given in (FLOAT32, AVX2):
        assert info.float_type == "float32"
    if given == AVX2 and IS_X86:
        assert info.isa in ("avx2", "x86")
        assert "avx512" not in kernel.provider
        assert "amx" not in kernel.provider


def test_a_limit_that_leaves_no_kernels_of_the_type_is_told_with_the_type() -> None:
    with Worker("openvino", options(NATIVE), timeout_s=60) as worker:
        native = worker.info()
    with Worker("openvino", options(AVX2), timeout_s=60) as worker:
        limited = worker.info()
    assert limited.float_type == "float32"
    assert limited.options["max_cpu_isa"] == "AVX2"
    if native.float_type == "bfloat16":
        assert "inference_precision" not in native.options
        assert limited.options["inference_precision"] == "f32"


def test_a_type_without_kernels_is_refused() -> None:
    with Worker("openvino", options(BFLOAT16), timeout_s=60) as worker:
        skip_if_unknown_here(worker, BFLOAT16)
    with (
        Worker("openvino", options(AVX2 | BFLOAT16), timeout_s=60) as worker,
        pytest.raises(WorkerFailure, match="max_cpu_isa=AVX2 leaves no kernels for it"),
    ):
        worker.info()


@pytest.mark.slow
class TestOpenVinoFloats(TellsLayers, ComputesQuantized, RunsModels, TellsWhatItIs, HasBench):
    """What the kit asks of arithmetic, layers and records, with every type and with older kernels.

    With the options of this machine, all of the kit is run by test_conformance.py.
    """

    @pytest.fixture(params=[AVX2, FLOAT32, BFLOAT16], ids=["AVX2", "f32", "bf16"])
    def engine(self, request: pytest.FixtureRequest) -> EngineUnderTest:
        given = dict(request.param)
        dialect = native_dialect("openvino", options=given).name
        other = {"ENABLE_CPU_PINNING": "NO"}
        return EngineUnderTest("openvino", options(given), dialect=dialect, other_options=other)

    @pytest.fixture
    def bench(self, engine: EngineUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
        bench = self.bench_of(engine, tmp_path_factory)
        skip_if_unknown_here(bench.worker, dict(engine.options.engine_options))
        return bench

    @pytest.mark.parametrize("architecture", ["resnet18", "shufflenet_v2", "vit"])
    def test_zoo_models_run(self, bench: Bench, architecture: str) -> None:
        super().test_zoo_models_run(bench, architecture)
