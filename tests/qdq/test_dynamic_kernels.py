"""Dynamic ops in ONNX Runtime: its kernels compute what the written nodes say, and are fused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from qdqtune.engines._native_dialect import native_dialect
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq.dialects import DIALECTS
from qdqtune.testing._bench import nearness_db, reference
from tests.conftest import model_from_text
from tests.qdq.test_exact_arithmetic import extreme
from tests.qdq.test_round_trip import inserter_for

# The dialect for this machine, and the one that must be exact on every machine.
EXACT = sorted({native_dialect("onnxruntime").name, "onnxruntime-novnni"})
FUSED = {"DynamicQuantizeMatMul", "MatMulIntegerToFloat"}
LEFTOVERS = {"MatMulInteger", "Cast", "Mul"}
REFERENCE_DB, OPTIMIZED_DB = 60.0, 40.0
rng = np.random.default_rng(2)


def normal(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


CASES: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "matmul": (
        "g (float[7,64] x) => (float[7,16] y) { y = MatMul(x, w) }", {"w": normal(64, 16)},
    ),
    "matmul and bias": (
        "g (float[2,5,64] x) => (float[2,5,16] y) { h = MatMul(x, w) y = Add(h, b) }",
        {"w": normal(64, 16), "b": normal(16)},
    ),
    "gemm": (
        "g (float[7,64] x) => (float[7,16] y) { y = Gemm(x, w, b) }",
        {"w": normal(64, 16), "b": normal(16)},
    ),
    "gemm, transposed": (
        "g (float[7,64] x) => (float[7,16] y) { y = Gemm<transB=1>(x, w, b) }",
        {"w": normal(16, 64), "b": normal(16)},
    ),
    "gemm without bias": (
        "g (float[7,64] x) => (float[7,16] y) { y = Gemm<transB=1>(x, w) }",
        {"w": normal(16, 64)},
    ),
    "gemm with a bias per row": (
        "g (float[7,64] x) => (float[7,16] y) { y = Gemm(x, w, b) }",
        {"w": normal(64, 16), "b": normal(7, 1)},
    ),
    "batch of weights": (
        "g (float[3,7,64] x) => (float[3,7,16] y) { y = MatMul(x, w) }", {"w": normal(3, 64, 16)},
    ),
    "one row": ("g (float[64] x) => (float[16] y) { y = MatMul(x, w) }", {"w": normal(64, 16)}),
    "one input, three readers": (
        "g (float[4,64] x) => (float[4,16] y) {"
        " q = MatMul(x, w) k = MatMul(x, v) d = MatMul(x, u) e = Add(q, k) y = Add(d, e) }",
        {"w": normal(64, 16), "v": normal(64, 16), "u": normal(64, 16)},
    ),
    "one after the other": (
        "g (float[4,64] x) => (float[4,16] y) {"
        " h = MatMul(x, w) a = Add(h, b) r = Relu(a) y = Gemm<transB=1>(r, v, c) }",
        {"w": normal(64, 32), "b": normal(32), "v": normal(16, 32), "c": normal(16)},
    ),
    "extreme": (
        "g (float[17,512] x) => (float[17,64] y) { y = MatMul(x, w) }",
        {"w": extreme(rng, (512, 64))},
    ),
}  # fmt: skip


def write(case: str, dialect: str, quant_type: str, folder: Path) -> tuple[Inserter, Path]:
    """A model with every op dynamic that can be."""
    text, weights = CASES[case]
    proto = model_from_text(text, **weights)
    inserter = inserter_for(proto, DIALECTS[dialect], quant_type, str(folder))
    planner = QuantizationPlanner(inserter.index, DIALECTS[dialect], quant_type)
    assert planner.dynamic
    return inserter, inserter.write(planner.placement((), dynamic=planner.dynamic), "candidate")


def feeds_for(case: str, proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    values = np.random.default_rng(9)
    if case == "extreme":
        return {"x": values.choice([1.0, 1.0, 0.98], shape).astype(np.float32)}
    return {"x": values.normal(size=shape).astype(np.float32)}


def run(path: Path, feeds: dict[str, np.ndarray], *, optimized: bool) -> np.ndarray:
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    )
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("quant_type", ["int8", "uint8"])
@pytest.mark.parametrize("dialect", EXACT)
def test_kernels_compute_what_is_written(
    dialect: str, quant_type: str, case: str, tmp_path: Path
) -> None:
    _, path = write(case, dialect, quant_type, tmp_path)
    proto = onnx.load(path)
    feeds = feeds_for(case, proto)
    expected = reference(proto, feeds)["y"]
    plain, optimized = (run(path, feeds, optimized=each) for each in (False, True))
    assert nearness_db(expected, plain) >= REFERENCE_DB
    assert nearness_db(plain, optimized) >= OPTIMIZED_DB
    if case != "one after the other":  # another rounding in the first may be a step in the next
        assert nearness_db(expected, optimized) >= REFERENCE_DB


@pytest.mark.parametrize("case", sorted(CASES.keys() - {"extreme"}))
def test_quantizing_at_run_time_is_as_exact_as_eight_bits_are(case: str, tmp_path: Path) -> None:
    _, path = write(case, EXACT[0], "int8", tmp_path)
    text, weights = CASES[case]
    proto = model_from_text(text, **weights)
    feeds = feeds_for(case, proto)
    near_db = nearness_db(reference(proto, feeds)["y"], run(path, feeds, optimized=True))
    assert 25.0 < near_db < 60.0  # the upper limit: something is quantized at all


@pytest.mark.parametrize(
    "case", ["matmul", "matmul and bias", "gemm, transposed", "one input, three readers"]
)
def test_the_engine_fuses_what_is_written(case: str, tmp_path: Path) -> None:
    """Not so, a dynamic op would be several kernels, and slower than a float one."""
    inserter, path = write(case, EXACT[0], "int8", tmp_path)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(options.optimized_model_filepath, load_external_data=False)
    ops = [node.op_type for node in optimized.graph.node]
    fused = f"ONNX Runtime {ort.__version__} makes this of a dynamic {case}: {ops}"
    products = len(QuantizationPlanner(inserter.index, inserter.dialect).dynamic)
    assert sum(op in FUSED for op in ops) == products, fused
    assert not LEFTOVERS.intersection(ops), fused
    if case in ("matmul and bias", "gemm, transposed"):
        assert "Add" not in ops, fused  # the kernel takes the bias along


def saturating_product(data: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """A product as x86 computes it without VNNI: pairs of u8*s8 are added in int16."""
    pairs = data.astype(np.int64)[:, :, None] * weight.astype(np.int64)[None]
    sums = pairs.reshape(len(data), -1, 2, weight.shape[1]).sum(axis=2)
    return np.clip(sums, -(2**15), 2**15 - 1).sum(axis=1)


def stored(dialect: str, folder: Path) -> np.ndarray:
    """The weight of the extreme case, as it is written."""
    folder.mkdir()
    _, path = write("extreme", dialect, "int8", folder)
    (found,) = [
        onnx.numpy_helper.to_array(tensor)
        for tensor in onnx.load(path).graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8
    ]
    return found


def test_seven_bits_never_saturate_and_eight_do(tmp_path: Path) -> None:
    seven, eight = (stored(name, tmp_path / name) for name in ("onnxruntime-novnni", "onnxruntime"))
    data = np.full((3, len(seven)), 255, np.uint8)  # the most that a step can be
    data[1] = rng.integers(0, 256, len(seven))
    assert np.abs(seven).max() == 64
    assert np.abs(eight).max() == 127
    np.testing.assert_array_equal(saturating_product(data, seven), data.astype(int) @ seven)
    assert (saturating_product(data, eight) != data.astype(int) @ eight).any()
