"""Odd ops: whatever integer kernels the engine makes of a unit, they compute what is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune.calibration._output_error import SignalToNoise
from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.calibration._ranges import collect_ranges
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._reference_engine import AS_WRITTEN
from qdqtune.engines._worker import Worker
from qdqtune.graph._folding import fold
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._op_units import unit, why_not
from qdqtune.records._ranges import CalibrationSource
from tests.conftest import model_from_text

rng = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


X = "float[2,8,6,6] x"
CASES: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "gemm_alpha": (
        "g (float[3,8] x) => (float[3,5] y) { h = Gemm<alpha=0.25, transB=1>(x, w, b) y = Neg(h) }",
        {"w": normal(5, 8), "b": normal(5)},
    ),
    "gemm_beta": (
        "g (float[3,8] x) => (float[3,5] y) { h = Gemm<beta=0.5>(x, w, b) y = Neg(h) }",
        {"w": normal(8, 5), "b": normal(5)},
    ),
    "gemm_row_bias": (
        "g (float[3,8] x) => (float[3,5] y) { h = Gemm(x, w, b) y = Neg(h) }",
        {"w": normal(8, 5), "b": normal(1, 5)},
    ),
    "gemm_scalar_bias": (
        "g (float[3,8] x) => (float[3,5] y) { h = Gemm(x, w, b) y = Neg(h) }",
        {"w": normal(8, 5), "b": normal(1)},
    ),
    "gemm_full_bias": (
        "g (float[3,8] x) => (float[3,5] y) { h = Gemm(x, w, b) y = Neg(h) }",
        {"w": normal(8, 5), "b": normal(3, 5)},
    ),
    "gemm_trans_a": (
        "g (float[8,3] x) => (float[3,5] y) { h = Gemm<transA=1>(x, w) y = Neg(h) }",
        {"w": normal(8, 5)},
    ),
    "matmul_batched_weight": (
        "g (float[2,4,8] x) => (float[2,4,5] y) { h = MatMul(x, w) y = Neg(h) }",
        {"w": normal(2, 8, 5)},
    ),
    "matmul_vector_weight": (
        "g (float[4,8] x) => (float[4] y) { h = MatMul(x, w) y = Neg(h) }",
        {"w": normal(8)},
    ),
    "matmul_constant_first": (
        "g (float[8,5] x) => (float[4,5] y) { h = MatMul(w, x) y = Neg(h) }",
        {"w": normal(4, 8)},
    ),
    "matmul_two_activations": (
        "g (float[2,4,8] x) => (float[2,4,4] y) {"
        " t = Transpose<perm=[0,2,1]>(x) h = MatMul(x, t) y = Neg(h) }",
        {},
    ),
    "conv_grouped": (
        f"g ({X}) => (float[2,4,4,4] y) {{ h = Conv<group=2>(x, w, b) y = Neg(h) }}",
        {"w": normal(4, 4, 3, 3), "b": normal(4)},
    ),
    "conv_depthwise_strided": (
        f"g ({X}) => (float[2,8,3,3] y) {{"
        " h = Conv<group=8, strides=[2,2], pads=[1,1,1,1]>(x, w, b) y = Neg(h) }",
        {"w": normal(8, 1, 3, 3), "b": normal(8)},
    ),
    "conv_1d": (
        "g (float[1,4,9] x) => (float[1,6,7] y) { h = Conv(x, w) y = Neg(h) }",
        {"w": normal(6, 4, 3)},
    ),
    "conv_3d": (
        "g (float[1,4,5,5,5] x) => (float[1,6,3,3,3] y) { h = Conv(x, w) y = Neg(h) }",
        {"w": normal(6, 4, 3, 3, 3)},
    ),
    "conv_clip": (
        f"g ({X}) => (float[2,4,6,6] y) {{ h = Conv(x, w) c = Clip(h, lo, hi) y = Neg(c) }}",
        {"w": normal(4, 8, 1, 1), "lo": np.float32(0), "hi": np.float32(1.5)},
    ),
    "conv_clip_symmetric": (
        f"g ({X}) => (float[2,4,6,6] y) {{ h = Conv(x, w) c = Clip(h, lo, hi) y = Neg(c) }}",
        {"w": normal(4, 8, 1, 1), "lo": np.float32(-1), "hi": np.float32(1)},
    ),
    "conv_leaky": (
        f"g ({X}) => (float[2,4,6,6] y) {{ h = Conv(x, w) c = LeakyRelu(h) y = Tanh(c) }}",
        {"w": normal(4, 8, 1, 1)},
    ),
    "mul_by_itself": (f"g ({X}) => (float[2,8,6,6] y) {{ h = Mul(x, x) y = Neg(h) }}", {}),
    "add_broadcast": (
        f"g ({X}) => (float[2,8,6,6] y) {{ h = Add(x, b) y = Neg(h) }}", {"b": normal(8, 1, 1)},
    ),
    "mul_scalar": (
        f"g ({X}) => (float[2,8,6,6] y) {{ h = Mul(x, b) y = Neg(h) }}",
        {"b": np.float32(0.125)},
    ),
    "softmax_channels": (f"g ({X}) => (float[2,8,6,6] y) {{ h = Softmax<axis=1>(x) y = Neg(h) }}", {}),
    "sigmoid": (f"g ({X}) => (float[2,8,6,6] y) {{ h = Sigmoid(x) y = Neg(h) }}", {}),
    "average_pool": (
        f"g ({X}) => (float[2,8,3,3] y) {{"
        " h = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], count_include_pad=1>(x)"
        " y = Neg(h) }",
        {},
    ),
    "global_average_pool": (
        f"g ({X}) => (float[2,8,1,1] y) {{ h = GlobalAveragePool(x) y = Neg(h) }}", {},
    ),
    "conv_transpose": (
        f"g ({X}) => (float[2,4,13,13] y) {{"
        " h = ConvTranspose<strides=[2,2], pads=[1,1,1,1], output_padding=[1,1], dilations=[1,1]>(x, w, b)"
        " y = Neg(h) }",
        {"w": normal(8, 4, 4, 4), "b": normal(4)},
    ),
    "max_pool": (
        f"g ({X}) => (float[2,8,3,3] y) {{"
        " h = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x) y = Neg(h) }",
        {},
    ),
    "max_pool_indices": (
        f"g ({X}) => (float[2,8,3,3] y, int64[2,8,3,3] i) {{"
        " h, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) y = Neg(h) }",
        {},
    ),
    "resize_nearest": (
        f'g ({X}) => (float[2,8,12,12] y) {{ h = Resize<mode="nearest">(x, , s) y = Neg(h) }}',
        {"s": np.array([1, 1, 2, 2], np.float32)},
    ),
    "resize_linear": (
        f'g ({X}) => (float[2,8,12,12] y) {{ h = Resize<mode="linear">(x, , s) y = Neg(h) }}',
        {"s": np.array([1, 1, 2, 2], np.float32)},
    ),
    "resize_cubic": (
        f'g ({X}) => (float[2,8,12,12] y) {{ h = Resize<mode="cubic">(x, , s) y = Neg(h) }}',
        {"s": np.array([1, 1, 2, 2], np.float32)},
    ),
    "split_unequal": (
        f"g ({X}) => (float[2,3,6,6] y, float[2,5,6,6] z) {{"
        " a, b = Split<axis=1>(x, s) y = Neg(a) z = Neg(b) }",
        {"s": np.array([3, 5])},
    ),
    "concat_twice_the_same": (
        f"g ({X}) => (float[2,16,6,6] y) {{ h = Concat<axis=1>(x, x) y = Neg(h) }}", {},
    ),
    "gather_table": (
        "g (int64[3] x) => (float[3,4] y) { h = Gather(w, x) y = Neg(h) }", {"w": normal(9, 4)},
    ),
    "where": (
        "g (bool[8] k, float[2,8] x) => (float[2,8] y) { h = Where(k, x, w) y = Neg(h) }",
        {"w": normal(8)},
    ),
    "slice": (
        f"g ({X}) => (float[2,8,3,6] y) {{ h = Slice(x, a, e, ax, d) y = Neg(h) }}",
        {"a": np.array([0]), "e": np.array([6]), "ax": np.array([2]), "d": np.array([2])},
    ),
    "expand": (
        "g (float[1,8] x) => (float[3,8] y) { h = Expand(x, s) y = Neg(h) }",
        {"s": np.array([3, 8])},
    ),
}  # fmt: skip


OPENVINO_LEAVES_FLOAT = {
    "add_broadcast",  # a constant is added in the kernel before
    "average_pool",
    "expand",
    "gather_table",
    "mul_by_itself",
    "mul_scalar",
    "resize_cubic",
    "resize_linear",
    "sigmoid",
    "softmax_channels",
    "where",
}
LEFT_FLOAT: dict[str, set[str]] = {
    "onnxruntime": {"conv_transpose"},
    "openvino": OPENVINO_LEAVES_FLOAT,
}


@pytest.fixture(scope="module")
def reference() -> Iterator[Worker]:
    with Worker() as shared:
        yield shared


@pytest.fixture(scope="module", params=LEFT_FLOAT)
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[str, Worker]]:
    with Worker(request.param, SessionOptions(threads=1)) as shared:
        yield request.param, shared


@pytest.mark.parametrize("case", CASES)
def test_fused_is_as_written(
    case: str, engine: tuple[str, Worker], reference: Worker, tmp_path: Path
) -> None:
    name, worker = engine
    text, weights = CASES[case]
    model = ir.from_proto(model_from_text(text, **{k: np.asarray(v) for k, v in weights.items()}))
    fold(model)
    base = PreparedModel(model, tmp_path)
    dialect = native_dialect(name)
    (node,) = [node for node in base.index.nodes if node.outputs[0].name in ("h", "a")]
    if case in LEFT_FLOAT[name]:
        assert why_not(base.index, dialect, node, "int8")
        return
    samples = list(random_inputs(base.index, 4))
    ranges = collect_ranges(base, reference, samples, CalibrationSource.RANDOM)
    inserter = Inserter(base, dialect, "int8", ranges)
    candidate = inserter.write(unit(base.index, dialect, node, whole=True), "candidate")
    onnx.checker.check_model(str(candidate), full_check=True)

    plain_path = base.write(base.whole(), "reference")
    agreement, quality = SignalToNoise(), SignalToNoise()
    plain_model, written_model = reference.open(plain_path), reference.open(candidate, AS_WRITTEN)
    fused_model = worker.open(candidate)
    for feeds in samples:
        plain, written = reference.run(plain_model, feeds), reference.run(written_model, feeds)
        fused = worker.run(fused_model, feeds)
        quality.add(plain, fused)
        agreement.add(written, fused)
    reference.release(plain_model)
    reference.release(written_model)
    worker.release(fused_model)
    assert min(agreement.decibels().values()) >= 40.0
    assert min(quality.decibels().values()) >= 25.0
