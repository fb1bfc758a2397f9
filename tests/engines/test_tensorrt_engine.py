"""TensorRT's Python API passes the kit on a stand-in, and does what its options say.

The stand-in is tests/stand_ins/tensorrt_api: there is no GPU behind it, and its times are
simulated.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.conftest import model_from_text
from tests.stand_ins.tensorrt_api.fixtures import ENGINE, StandInWorkers, api_environment
from tests.stand_ins.tensorrt_api.situation import VERSIONS

from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._worker import FailureKind, Worker, WorkerFailure
from qdqtune.testing import EngineConformance, EngineUnderTest
from qdqtune.testing._computing import quantized_op

OPEN = "g (float[n,8] x) => (float[n,4] y) { h = MatMul(x, w) y = Relu(h) }"
FIXED = OPEN.replace("n,", "4,")
RESHAPED = "g (float[2,6] x, int64[2] s) => (float[a,b] y) { h = Neg(x) y = Reshape(h, s) }"
WEIGHTS = itertools.count(1)
# The version that `make test` has; the others differ in what TestOptions tries of them.
FAST = "10.16.1"
# Runs that take far longer than what starts them, also on a busy machine.
SLOWNESS = 20.0


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("caches")


def stand_in(cache_home: Path, version: str, dialect: str, **promised: object) -> EngineUnderTest:
    return EngineUnderTest(
        ENGINE,
        SessionOptions(engine_options=promised.pop("options", {})),
        dialect=dialect,
        measures=False,
        other_options={"level": "1", "workspace_mib": "64"},
        environment=api_environment(version, cache_home, slowness=SLOWNESS),
        **promised,
    )


@pytest.mark.slow
class TestStandInOf86(EngineConformance):
    @pytest.fixture
    def engine(self, cache_home: Path) -> EngineUnderTest:
        return stand_in(cache_home, "8.6.1", "tensorrt-8", architectures=("resnet18", "bert"))


class TestStandInOf1016(EngineConformance):
    @pytest.fixture
    def engine(self, cache_home: Path) -> EngineUnderTest:
        return stand_in(cache_home, "10.16.1", "tensorrt")


@pytest.mark.slow
class TestStandInOf11(EngineConformance):
    @pytest.fixture
    def engine(self, cache_home: Path) -> EngineUnderTest:
        options = {"cuda_graph": "1"}
        return stand_in(
            cache_home, "11.1.0", "tensorrt", quant_types=("int8",), options=options,
            architectures=("convnext", "yolo"),
        )  # fmt: skip


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInWorkers]:
    workers = StandInWorkers(tmp_path_factory.mktemp("engine"))
    yield workers
    workers.close()


@pytest.fixture(
    scope="module",
    params=[
        version if version == FAST else pytest.param(version, marks=pytest.mark.slow)
        for version in VERSIONS
    ],
)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def worker(workers: StandInWorkers, version: str) -> Worker:
    return workers.worker(version)


def write(folder: Path, text: str = FIXED) -> Path:
    """A new model: equal ones would be built once."""
    number = next(WEIGHTS)
    path = folder / f"m{number}.onnx"
    onnx.save(model_from_text(text, w=np.full((8, 4), number, np.float32)), path)
    return path


def rows(count: int) -> dict[str, np.ndarray]:
    return {"x": np.linspace(-1.0, 2.0, count * 8, dtype=np.float32).reshape(count, 8)}


def options_of(**given: object) -> SessionOptions:
    return SessionOptions(engine_options={name: str(value) for name, value in given.items()})


def refusal(worker: Worker, path: Path, options: SessionOptions) -> str:
    with pytest.raises(WorkerFailure) as caught:
        worker.open(path, options)
    assert caught.value.kind is FailureKind.ERROR
    return str(caught.value)


class TestOpenDims:
    def test_the_first_feed_decides(
        self, workers: StandInWorkers, worker: Worker, version: str, tmp_path: Path
    ) -> None:
        path = write(tmp_path, OPEN)
        opened = worker.open(path)
        builds = [workers.builds(version, path)]
        for count in (3, 3, 5, 4, 3, 7):
            assert worker.run(opened, rows(count))["y"].shape == (count, 4)
            builds.append(workers.builds(version, path))
        worker.release(opened)
        assert builds == [0, 1, 1, 2, 2, 2, 3]  # what was built for before is not forgotten

    def test_what_is_said_is_built_at_once(
        self, workers: StandInWorkers, worker: Worker, version: str, tmp_path: Path
    ) -> None:
        path = write(tmp_path, OPEN)
        said = options_of(min_shapes="x:2x8", opt_shapes="x:4x8", max_shapes="x:6x8")
        opened = worker.open(path, said)
        for count in (4, 2, 6):
            worker.feed(opened, rows(count))
            assert len(worker.time(opened, 2)) == 2
        for count in (1, 7):
            with pytest.raises(WorkerFailure, match=f"is {count}x8, which is not between 2x8 and"):
                worker.run(opened, rows(count))
        assert worker.run(opened, rows(3))["y"].shape == (3, 4)
        worker.release(opened)
        assert workers.builds(version, path) == 1

    def test_what_is_usual_is_no_limit(
        self, workers: StandInWorkers, worker: Worker, version: str, tmp_path: Path
    ) -> None:
        path = write(tmp_path, OPEN)
        opened = worker.open(path, options_of(opt_shapes="x:4x8"))
        assert workers.builds(version, path) == 1
        assert worker.run(opened, rows(9))["y"].shape == (9, 4)
        assert workers.builds(version, path) == 2
        worker.release(opened)

    @pytest.mark.parametrize(
        ("given", "reason"),
        [
            ({"opt_shapes": "z:4x8"}, "names the input 'z'"),
            ({"opt_shapes": "x:4x9"}, "whose dims are ?x8"),
            ({"max_shapes": "x:4"}, "whose dims are ?x8"),
            ({"min_shapes": "x:5x8", "max_shapes": "x:4x8"}, "don't grow"),
            ({"opt_shapes": "4x8"}, "can't be read as shapes"),
        ],
    )
    def test_nonsense_is_refused(
        self, worker: Worker, tmp_path: Path, given: dict[str, str], reason: str
    ) -> None:
        assert reason in refusal(worker, write(tmp_path, OPEN), options_of(**given))

    def test_values_that_decide_shapes(
        self, workers: StandInWorkers, worker: Worker, version: str, tmp_path: Path
    ) -> None:
        path = write(tmp_path, RESHAPED)
        opened = worker.open(path)
        x = np.arange(12, dtype=np.float32).reshape(2, 6)
        for shape in ((3, 4), (4, 3), (3, 4), (12, 1)):
            found = worker.run(opened, {"x": x, "s": np.array(shape, np.int64)})["y"]
            np.testing.assert_array_equal(found, -x.reshape(shape))
        worker.feed(opened, {"x": x, "s": np.array((6, 2), np.int64)})
        assert len(worker.time(opened, 2)) == 2
        worker.release(opened)
        assert workers.builds(version, path) == 3  # where values are outside of those before

    def test_kernels_are_chosen_for_what_is_timed(
        self, workers: StandInWorkers, tmp_path: Path
    ) -> None:
        worker, written = workers.worker("11.1.0"), tmp_path / "layers.json"
        options = SessionOptions(optimized_model_path=str(written))
        opened = worker.open(write(tmp_path, OPEN), options)
        worker.feed(opened, rows(3))
        worker.run(opened, rows(30))
        (told,) = json.loads(written.read_text())["I/O Tensors"][0]["ProfileInfo"]
        assert [told[f"{end}Shape"] for end in ("Min", "Opt", "Max")] == [[3, 8], [3, 8], [30, 8]]
        worker.release(opened)

    def test_a_run_on_other_shapes_leaves_the_timed_one(
        self, worker: Worker, tmp_path: Path
    ) -> None:
        opened = worker.open(write(tmp_path, OPEN), options_of(cuda_graph=1))
        worker.feed(opened, rows(3))
        worker.run(opened, rows(30))
        assert len(worker.time(opened, 4)) == 4
        worker.release(opened)


class TestTypes:
    def test_outputs_whose_size_only_a_run_tells(self, worker: Worker, tmp_path: Path) -> None:
        opened = worker.open(
            write(tmp_path, "g (float[4,8] x) => (int64[2,n] y) { y = NonZero(x) }"),
            options_of(cuda_graph=1),  # which can't be captured
        )
        for low in (0.0, 0.5, 9.0):
            x = np.maximum(rows(4)["x"] - low, 0)
            found = worker.run(opened, {"x": x})["y"]
            np.testing.assert_array_equal(found, np.array(np.nonzero(x)))
            assert found.dtype == np.int64
        worker.feed(opened, rows(4))
        assert len(worker.time(opened, 2)) == 2
        worker.release(opened)

    def test_large_integers(self, worker: Worker, version: str, tmp_path: Path) -> None:
        opened = worker.open(write(tmp_path, "g (int64[2] x) => (int64[2] y) { y = Neg(x) }"))
        x = np.array([3, 1 << 40], np.int64)
        if version.startswith("8"):
            with pytest.raises(WorkerFailure, match="numbers that int32 can't hold"):
                worker.run(opened, {"x": x})
            x = np.array([3, 1 << 30], np.int64)
        found = worker.run(opened, {"x": x})["y"]
        np.testing.assert_array_equal(found, -x)
        assert found.dtype == np.int64
        worker.release(opened)

    @pytest.mark.parametrize("precision", ["fp16", "fp32"])
    def test_weak_networks_compute_in_what_is_allowed(
        self, workers: StandInWorkers, tmp_path: Path, precision: str
    ) -> None:
        worker = workers.worker("10.16.1")
        text = "g (float[4,8] x) => (float[4,4] y) { h = MatMul(x, w) y = Softmax(h) }"
        opened = worker.open(write(tmp_path, text), options_of(typing="weak", precision=precision))
        worker.feed(opened, rows(4))
        told = {layer.precision for layer in worker.layers(opened, 2)}
        assert ("float16" in told) == (precision == "fp16")
        worker.release(opened)

    @pytest.mark.parametrize("version", ["8.6.1", "10.16.1"])
    def test_weak_networks_may_compute_in_integers(
        self, workers: StandInWorkers, tmp_path: Path, version: str
    ) -> None:
        worker = workers.worker(version)
        made = quantized_op("Gemm", "tensorrt-8", "int8", extreme=False)
        path = tmp_path / f"gemm{version}.onnx"
        onnx.save(made.model, path)
        opened = worker.open(path, options_of(typing="weak"))
        worker.feed(opened, made.feeds)
        assert any(layer.precision == "int8" for layer in worker.layers(opened, 2))
        worker.release(opened)


class TestOptions:
    @pytest.mark.parametrize(
        ("version", "given", "reason"),
        [
            ("8.6.1", {"typing": "strong"}, "version 8.6.1 has no such thing"),
            ("11.1.0", {"typing": "weak"}, "version 11.1.0 has no such thing"),
            ("8.6.1", {"precision": "bf16"}, "has no BF16"),
            ("11.1.0", {"tactic_sources": "CUBLAS"}, "choices: EDGE_MASK_CONVOLUTIONS"),
            ("10.16.1", {"tactic_sources": "CUBLAS,NO_SUCH"}, "'NO_SUCH'; choices: CUBLAS"),
            ("10.16.1", {"plugins": "/no/such/plugin.so"}, "/no/such/plugin.so can't be loaded"),
            ("10.16.1", {"compute_capability": "sm89"}, "no option 'compute_capability'"),
        ],
    )
    def test_what_there_is_not_is_refused(
        self,
        workers: StandInWorkers,
        tmp_path: Path,
        version: str,
        given: dict[str, str],
        reason: str,
    ) -> None:
        worker = workers.worker(version)
        assert reason in refusal(worker, write(tmp_path), options_of(**given))

    def test_typing_is_told(self, worker: Worker, version: str) -> None:
        wanted = "weak" if version.startswith("8") else "strong"
        assert worker.info().options["typing"] == wanted

    def test_a_cuda_graph_computes_and_repeats_the_same(
        self, worker: Worker, tmp_path: Path
    ) -> None:
        opened = worker.open(write(tmp_path, OPEN), options_of(cuda_graph=1))
        for count in (4, 5, 4):
            worker.feed(opened, rows(count))
            assert min(worker.time(opened, 3)) > 0
        assert worker.run(opened, rows(4))["y"].max() > 0
        worker.release(opened)

    def test_layers_are_written_as_strict_json(self, worker: Worker, tmp_path: Path) -> None:
        path = write(tmp_path, "g (float[1,3,6,6] x) => (float[1,2,4,4] y) {"
                     "h = Conv<kernel_shape=[3,3]>(x, k) y = Relu(h) }")  # fmt: skip
        proto = onnx.load(path)
        proto.graph.initializer.append(
            onnx.numpy_helper.from_array(np.ones((2, 3, 3, 3), np.float32), "k")
        )
        onnx.save(proto, path)
        written = tmp_path / "layers.json"
        opened = worker.open(path, SessionOptions(optimized_model_path=str(written)))
        told = json.loads(written.read_text())["Layers"]
        assert "[ONNX Layer: n0]\x1e[ONNX Layer: n1]" in {layer["Metadata"] for layer in told}
        worker.release(opened)
