"""LSTMs that are dynamic, in every command that knows dynamic ops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import quantize_dynamic

from qdqtune.engines.layers._latency import estimated_shares
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq.dialects import ONNXRUNTIME
from qdqtune.records._placement import Placement
from qdqtune.testing._bench import model_of
from qdqtune.testing.simulated._kernels import true_latency_ms
from qdqtune.workflows._compare import compare
from qdqtune.workflows._imported_placement import import_placement
from qdqtune.workflows._insert import insert
from qdqtune.workflows._inspect import inspect
from qdqtune.workflows._quantize import quantize
from qdqtune.workflows._source_model import open_source
from qdqtune.workflows._strip import strip
from qdqtune.workflows.tuning._tune import tune

HIDDEN = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two LSTMs and a product, and what `quantize_dynamic` makes of it."""
    folder = tmp_path_factory.mktemp("lstm")
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / 8).astype(np.float32)

    text = f"""g (float[20,1,{HIDDEN}] x) => (float[20,1,16] y) {{
        a = LSTM<hidden_size={HIDDEN}, direction="bidirectional">(x, w0, r0, b0)
        t = Transpose<perm=[0,2,1,3]>(a)
        s = Reshape(t, shape)
        c = LSTM<hidden_size={HIDDEN}>(s, w1, r1, b1)
        u = Squeeze(c, axes)
        y = MatMul(u, v)
    }}"""
    model = model_of(
        text, w0=normal(2, 4 * HIDDEN, HIDDEN), r0=normal(2, 4 * HIDDEN, HIDDEN),
        b0=normal(2, 8 * HIDDEN), w1=normal(1, 4 * HIDDEN, 2 * HIDDEN),
        r1=normal(1, 4 * HIDDEN, HIDDEN), b1=normal(1, 8 * HIDDEN), v=normal(HIDDEN, 16),
        shape=np.array([20, 1, 2 * HIDDEN]), axes=np.array([1]),
    )  # fmt: skip
    onnx.save(model, folder / "float.onnx")
    quantize_dynamic(folder / "float.onnx", folder / "dynamic.onnx")
    return folder


LSTMS = {"n0", "n3"}


def test_insert_writes_them_and_compare_knows_them(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "ours.onnx"
    report = insert(folder / "float.onnx", target, dynamic=["LSTM"], dialect="onnxruntime")
    assert report.placement == Placement.of(dynamic=LSTMS)
    layers = compare(folder / "float.onnx", target).layers
    assert {(each.own.node, each.own.op_type) for each in layers} >= {(n, "LSTM") for n in LSTMS}
    assert inspect(target, dialect="onnxruntime").dynamic == len(LSTMS)
    assert inspect(target, dialect="onnxruntime").at_run_time == len(LSTMS) + 1


def test_quantize_writes_them_without_data(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "ours.onnx"
    report = quantize(
        folder / "float.onnx", target, dynamic=True, dialect="onnxruntime",
        performance_threshold=None,
    ).report  # fmt: skip
    assert {each.node for each in report.decisions if each.dynamic} >= LSTMS


def test_files_of_quantize_dynamic_begin_a_search(folder: Path, tmp_path: Path) -> None:
    report = strip(folder / "dynamic.onnx", tmp_path / "f.onnx", weights_from=folder / "float.onnx")
    assert (len(report.placement.dynamic), report.left, report.rounded) == (3, 0, 0)
    source = open_source(folder / "float.onnx")
    assert import_placement(source.model, folder / "dynamic.onnx").placement.dynamic >= LSTMS


@pytest.mark.parametrize("workflow", ["region", "subgraph"])
def test_tune_finds_them(workflow: str, folder: Path, tmp_path: Path) -> None:
    result = tune(
        folder / "float.onnx", engine="simulated", engine_options={"profile": "cpu-dynamic"},
        workflow=workflow, output_dir=tmp_path / "run",
        qdq_baseline=folder / "dynamic.onnx",
    )  # fmt: skip
    placement = Placement.from_json((tmp_path / "run/placement.json").read_text(), "it")
    assert placement.dynamic >= LSTMS
    assert result.summary.dynamic_ops == len(placement.dynamic)


def test_the_simulated_machine_knows_their_shapes(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "ours.onnx"
    insert(folder / "float.onnx", target, dynamic=["LSTM"], dialect="onnxruntime")
    before, after = (
        true_latency_ms(each, "cpu-dynamic") for each in (folder / "float.onnx", target)
    )
    assert 0.3 * before < after < 0.9 * before
    assert true_latency_ms(target, "cpu") >= before


def test_what_they_take_is_estimated(folder: Path, tmp_path: Path) -> None:
    index = PreparedModel(open_source(folder / "float.onnx").model, tmp_path).index
    assert ONNXRUNTIME.dynamic >= {"LSTM"}
    assert sum(estimated_shares(index)[name] for name in LSTMS) > 0.5
