"""The real ONNX Runtime in the real worker."""

from __future__ import annotations

import shutil
import sys
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import psutil
import pytest

from qdqtune.engines._interface import InputSpec, SessionOptions
from qdqtune.engines._worker import FailureKind, Worker, WorkerFailure
from qdqtune.engines._worker_environment import read_arrays, write_arrays


def test_info_names_version_device_and_isa(worker):
    info = worker.info(SessionOptions(threads=2, engine_options={"session.x": "1"}))
    assert info.name == "onnxruntime"
    assert info.version.count(".") >= 2
    assert info.device
    assert info.isa
    assert (info.threads, dict(info.options)) == (2, {"session.x": "1"})


def test_parent_never_imports_the_engine(worker, conv_path, conv_feeds):
    code = (
        "import sys, numpy as np\n"
        "from qdqtune.engines._worker import Worker\n"
        "import qdqtune.engines._timing\n"
        "with Worker() as worker:\n"
        f"    model = worker.open({str(conv_path)!r})\n"
        "    assert model.build_s > 0\n"
        "assert not any(name.startswith('onnxruntime') for name in sys.modules)\n"
    )
    assert psutil.Popen([sys.executable, "-c", code]).wait(60) == 0


def test_open_tells_the_inputs(worker, conv_path):
    model = worker.open(conv_path)
    assert model.inputs == (InputSpec("x", "float32", (1, 3, 8, 8)),)
    assert worker.totals.building_s == pytest.approx(model.build_s)


def test_run_returns_the_outputs(worker, conv_path, conv_feeds):
    model = worker.open(conv_path)
    outputs = worker.run(model, conv_feeds)
    assert outputs["y"].shape == (1, 4, 8, 8)
    np.testing.assert_allclose(outputs["y"][0, 0, 4, 4], 1.0, rtol=1e-5)


def test_time_and_measure(worker, conv_path, conv_feeds):
    stored = worker.store(conv_feeds)
    model = worker.open(conv_path)
    worker.feed(model, stored)
    samples = worker.time(model, 7)
    assert len(samples) == 7
    assert min(samples) > 0
    measured = worker.measure(conv_path, stored, blocks=3, runs=5, drop=2)
    assert measured.ok
    assert [len(block) for block in measured.blocks_ms] == [5, 5, 5]
    assert measured.build_s > 0
    assert measured.timing_s > 0
    assert worker.totals.timing_s > measured.timing_s


def test_layers_come_from_the_engines_own_graph(worker, conv_path, conv_feeds):
    model = worker.open(conv_path)
    worker.feed(model, conv_feeds)
    layers = worker.layers(model, runs=3)
    kinds = [layer.op_type for layer in layers]
    assert any("Conv" in kind for kind in kinds)
    assert "Relu" not in kinds  # fused into the Conv
    assert all(layer.ms >= 0 and layer.provider == "CPUExecutionProvider" for layer in layers)


def test_options_reach_the_engine(worker, conv_path, conv_feeds, tmp_path):
    written = tmp_path / "optimized.onnx"
    raw = SessionOptions(
        threads=1,
        engine_options={"graph_optimization_level": "disable_all"},
        optimized_model_path=str(written),
    )
    model = worker.open(conv_path, raw)
    assert [node.op_type for node in onnx.load(written).graph.node] == ["Conv", "Relu"]
    worker.feed(model, conv_feeds)
    assert [layer.op_type for layer in worker.layers(model, 2)] == ["Conv", "Relu"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graph_optimization_level": "ludicrous"}, "choices: all"),
        ({"spinning": "1"}, "unknown option 'spinning'"),
    ],
)
def test_a_wrong_option_is_named(worker, conv_path, options, message):
    with pytest.raises(WorkerFailure, match=message):
        worker.open(conv_path, SessionOptions(engine_options=options))


def test_a_failing_model_is_a_value_and_the_child_lives_on(worker, tmp_path, conv_feeds, conv_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    worker.info()
    pid = worker.pid
    measured = worker.measure(broken, conv_feeds)
    assert not measured.ok
    assert "broken.onnx" in measured.error
    assert worker.measure(tmp_path / "missing.onnx", conv_feeds).error
    assert worker.measure(conv_path, {"wrong": np.zeros(1)}).error
    assert worker.measure(conv_path, conv_feeds, blocks=1).ok
    assert worker.pid == pid


def test_timing_without_feeds_says_so(worker, conv_path):
    model = worker.open(conv_path)
    with pytest.raises(WorkerFailure, match="no feeds") as caught:
        worker.time(model, 1)
    assert caught.value.kind is FailureKind.ERROR


def test_a_released_model_is_gone(worker, conv_path, conv_feeds):
    model = worker.open(conv_path)
    worker.release(model)
    with pytest.raises(WorkerFailure):
        worker.run(model, conv_feeds)


def test_external_data_is_found_beside_the_model(worker, conv_path, conv_feeds, tmp_path):
    path = tmp_path / "external.onnx"
    onnx.save(
        onnx.load(conv_path),
        path,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    outputs = worker.run(worker.open(path), conv_feeds)
    np.testing.assert_allclose(outputs["y"][0, 0, 4, 4], 1.0, rtol=1e-5)


def test_tensor_names_may_be_anything(worker, tmp_path):
    text = """
    <ir_version: 9, opset_import: ["" : 17]>
    g (float[2] a) => (float[2] b) { b = Neg(a) }
    """
    model = onnx.parser.parse_model(text)
    model.graph.input[0].name = model.graph.node[0].input[0] = "file"
    model.graph.output[0].name = model.graph.node[0].output[0] = "../../etc/passwd"
    path = tmp_path / "names.onnx"
    onnx.save(model, path)
    outputs = worker.run(worker.open(path), {"file": np.ones(2, np.float32)})
    np.testing.assert_array_equal(outputs["../../etc/passwd"], -np.ones(2))


def test_the_scratch_folder_goes_with_the_worker(conv_path, conv_feeds):
    with Worker(timeout_s=60) as worker:
        worker.measure(conv_path, conv_feeds, blocks=1, runs=1)
        folder = worker.scratch
        left_by_engines = {".ses"}  # ONNX Runtime's, in every folder for temporary files
        assert {path.name for path in folder.iterdir()} <= left_by_engines
        assert folder.stat().st_mode & 0o077 == 0
    assert not folder.exists()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float16).reshape(2, 3),
        np.array(3.5),
        np.zeros((0, 4), dtype=np.int64),
        np.array([1.5, -2.0], dtype=ml_dtypes.bfloat16),
        np.array([[1.5], [-2.0]], dtype=ml_dtypes.float8_e4m3fn),
        np.array(["a", "bé"], dtype=object),
        np.array([True, False]),
        np.arange(6).reshape(2, 3).T,
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_survive_the_trip(tmp_path, array):
    write_arrays(tmp_path / "a.npz", {"n": array})
    back = read_arrays(tmp_path / "a.npz")["n"]
    assert back.shape == array.shape
    assert back.dtype == array.dtype or array.dtype == object
    np.testing.assert_array_equal(back, array.astype(back.dtype))


@pytest.mark.parametrize("kind", [object, np.str_])
def test_text_travels(tmp_path, kind):
    write_arrays(tmp_path / "a.npz", {"n": np.array(["a", "longer"], kind)})
    assert read_arrays(tmp_path / "a.npz")["n"].tolist() == ["a", "longer"]


def test_arrays_without_a_tensor_type_are_refused(tmp_path):
    with pytest.raises(TypeError, match="'n'"):
        write_arrays(tmp_path / "a.npz", {"n": np.zeros(2, dtype=[("a", "i4")])})


def test_an_output_of_another_rank_than_declared_is_timed_all_the_same(tmp_path):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[600,600] x, int64[n] s) => (float[a,b] y) {
            p = MatMul(x, x) q = MatMul(p, x) y = Reshape(q, s)
        }"""
    )
    path = tmp_path / "rank.onnx"
    onnx.save(model, path)
    feeds = {
        "x": np.ones((600, 600), np.float32),
        "s": np.array([600, 300, 2], np.int64),
    }
    with Worker("onnxruntime") as worker:
        opened = worker.open(path)
        assert worker.run(opened, feeds)["y"].shape == (600, 300, 2)
        worker.feed(opened, feeds)
        first, *others = worker.time(opened, 5)
        assert len(others) == 4
        assert min(others) > first / 20  # each of them really ran


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize(("free", "is_wired"), [(4000, False), (4_000_000, True)])
def test_weights_are_written_only_where_there_is_room(
    external, free, is_wired, conv_path, conv_feeds, monkeypatch, caplog
):
    from qdqtune.engines._onnxruntime import OnnxRuntimeEngine

    model = onnx.load(conv_path)
    weights = np.full((400, 3, 1, 1), 0.5, np.float32)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights, "w"))
    del model.graph.node[0].attribute[:]
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 400
    onnx.save(model, conv_path, save_as_external_data=external, location="w.bin")
    assert (conv_path.stat().st_size < 2000) == external
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    session = OnnxRuntimeEngine().open(str(conv_path), SessionOptions(threads=1))
    session.set_feeds(conv_feeds)
    layers = session.layer_times(1)
    assert layers
    assert [bool(layer.outputs) for layer in layers] == [is_wired] * len(layers)
    assert ("has no room" in caplog.text) != is_wired
