"""Extreme weights and activations: the engine's integer kernels must not saturate here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._worker import Worker
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import infer_shapes
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq._encoding import quantize
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import select_ops
from qdqtune.qdq.dialects import DIALECTS
from qdqtune.records._ranges import Ranges
from tests.conftest import model_from_text

# The dialect for this machine, and the one that must be exact on every machine.
EXACT = {native_dialect("onnxruntime").name, "onnxruntime-novnni"}

CASES = {
    "conv3x3": ("g (float[1,32,6,6] x) => (float[1,16,4,4] y) { h = Conv(x, w) y = Neg(h) }", (16, 32, 3, 3)),
    "conv1x1": ("g (float[1,64,4,4] x) => (float[1,16,4,4] y) { h = Conv(x, w) y = Neg(h) }", (16, 64, 1, 1)),
    "depthwise": (
        "g (float[1,32,6,6] x) => (float[1,32,4,4] y) { h = Conv<group=32>(x, w) y = Neg(h) }", (32, 1, 3, 3),
    ),
    "matmul": ("g (float[3,64] x) => (float[3,16] y) { h = MatMul(x, w) y = Neg(h) }", (64, 16)),
    "matmul_wide": ("g (float[17,512] x) => (float[17,64] y) { h = MatMul(x, w) y = Neg(h) }", (512, 64)),
    "gemm": ("g (float[4,64] x) => (float[4,16] y) { h = Gemm<transB=1>(x, w) y = Neg(h) }", (16, 64)),
}  # fmt: skip


def extreme(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Mostly the largest magnitude, long runs of one sign: what saturates pairs of products."""
    signs = np.where(rng.random(shape) < 0.9, 1.0, -1.0)
    return (signs * rng.choice([1.0, 1.0, 0.97], shape)).astype(np.float32)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("quant_type", ["int8", "uint8"])
@pytest.mark.parametrize("name", sorted(EXACT))
def test_integer_result_is_exact(name: str, quant_type: str, case: str, tmp_path: Path) -> None:
    got, expected = run_case(DIALECTS[name], quant_type, case, tmp_path)
    np.testing.assert_array_equal(got, expected)


def run_case(
    dialect: Dialect, quant_type: str, case: str, folder: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Quantized output of the engine, and the same by integer arithmetic in numpy."""
    text, shape = CASES[case]
    rng = np.random.default_rng(0)
    proto = model_from_text(text, w=extreme(rng, shape))
    x_shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    x = rng.choice([1.0, 1.0, 0.98], x_shape).astype(np.float32)
    model = ir.from_proto(proto)
    infer_shapes(model)
    limit = (
        float(np.prod(shape) / max(shape[0] if not case.startswith("matmul") else shape[1], 1))
        * 1.1
    )
    ranges = Ranges({"x": (0.0, 1.0), "h": (-limit, limit)})
    inserter = Inserter(PreparedModel(model, folder), dialect, quant_type, ranges)
    placement = select_ops(inserter.index, dialect, [proto.graph.node[0].op_type]).placement
    with Worker() as worker:
        y = worker.run(worker.open(inserter.write(placement, "candidate")), {"x": x})["y"]
    pairs = {pair.tensor: pair.encoding for pair in inserter.encoder.pairs(
        inserter.index.effective(placement))}  # fmt: skip
    return quantize(-y, pairs["h"]), _expected(proto.graph.node[0], x, pairs, inserter)


def _expected(node: onnx.NodeProto, x: np.ndarray, pairs: dict, inserter: Inserter) -> np.ndarray:
    weight = inserter.index.value["w"].const_value.numpy()
    x_steps = quantize(x, pairs["x"]).astype(np.int64) - int(pairs["x"].zero_point)
    zero_point = int(pairs["w"].zero_point.reshape(-1)[0])
    w_steps = quantize(weight, pairs["w"]).astype(np.int64) - zero_point
    scale = pairs["w"].scale.astype(np.float64) * float(pairs["x"].scale) / float(pairs["h"].scale)
    if node.op_type == "Conv":
        sums = _correlate(x_steps, w_steps) * scale.reshape(1, -1, 1, 1)
    else:
        sums = x_steps @ (w_steps.T if node.op_type == "Gemm" else w_steps) * scale
    steps = np.rint(sums) + int(pairs["h"].zero_point)
    return np.clip(steps, 0, 255).astype(np.uint8)


def _correlate(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    if w.shape[1] == 1:  # depthwise
        return np.einsum("nchwij,cij->nchw", windows, w[:, 0])
    return np.einsum("nchwij,ocij->nohw", windows, w)
