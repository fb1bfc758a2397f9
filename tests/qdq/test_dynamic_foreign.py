"""Files that ONNX Runtime's `quantize_dynamic` wrote, and files that lie."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

from qdqtune.graph._files import load_model, save_model
from qdqtune.qdq._preprocess import refuse_integer_ops
from qdqtune.qdq._read_back import read, strip
from qdqtune.records._errors import ModelError
from tests.conftest import model_from_text

rng = np.random.default_rng(5)
WAYS: dict[str, dict[str, Any]] = {
    "int8 per channel": {"weight_type": QuantType.QInt8, "per_channel": True},
    "int8": {"weight_type": QuantType.QInt8},
    "uint8": {"weight_type": QuantType.QUInt8},
}


def normal(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def quantized(proto: onnx.ModelProto, folder: Path, way: str) -> tuple[Path, Path]:
    """Their file, and the float model's."""
    logging.getLogger().setLevel(logging.ERROR)
    source, target = folder / "float.onnx", folder / "theirs.onnx"
    onnx.save(proto, source)
    quantize_dynamic(source, target, **WAYS[way])
    return target, source


def run(path: Path, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [4, 6], ids=["square", "tall"])
def test_products_and_gemms_are_read(way: str, rows: int, tmp_path: Path) -> None:
    """A Gemm is a MatMul of the transposed weight and an Add in their file."""
    proto = model_from_text(
        f"g (float[5,4] x) => (float[5,{rows}] y) {{"
        " h = MatMul(x, w) a = Add(h, b) r = Relu(a) y = Gemm<transB=1>(r, g, c) }",
        w=normal(4, 4), b=normal(4), g=normal(rows, 4), c=normal(rows),
    )  # fmt: skip
    theirs, source = quantized(proto, tmp_path, way)
    model = load_model(theirs)
    refuse_integer_ops(model, theirs)
    reading = read(model)
    assert reading.placement.dynamic == {"n0", "n3_MatMul"}
    assert not reading.placement.edges
    assert (reading.left, reading.rounded) == (0, 2)
    assert {encoding.scale.size > 1 for encoding in reading.encodings.values()} == {
        way == "int8 per channel"
    }
    feeds = {"x": normal(5, 4)}
    for weights, tolerance in ((load_model(source), 1e-5), (None, 0.15)):
        model = load_model(theirs)
        assert strip(model, weights_from=weights).rounded == (0 if weights else 2)
        assert [node.op_type for node in model.graph] == ["MatMul", "Add", "Relu", "MatMul", "Add"]
        stripped = save_model(model, tmp_path / f"stripped{tolerance}.onnx")
        np.testing.assert_allclose(run(stripped, feeds), run(source, feeds), atol=tolerance)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_understood_is_counted(way: str, tmp_path: Path) -> None:
    """They let a product read a quantized table, without any scale of its own; Convs are theirs."""
    proto = model_from_text(
        "g (int64[2,3] ids, float[1,2,6,6] p) => (float[6,5] y, float[2,3,9] z, float[1,2,4,4] k) {"
        " e = Gather(table, ids) m = MatMul(e, w) z = Gather(table2, ids) r = Relu(m)"
        " f = Reshape(r, shape) y = Gemm<transB=1>(f, g, c) k = Conv(p, kernel) }",
        table=normal(9, 4), table2=normal(9, 9), w=normal(4, 4), g=normal(5, 4), c=normal(5),
        shape=np.array([6, 4]), kernel=normal(2, 2, 3, 3),
    )  # fmt: skip
    theirs, _ = quantized(proto, tmp_path, way)
    model = load_model(theirs)
    ops = [node.op_type for node in model.graph]
    reading = strip(model)
    assert reading.placement.dynamic == {"n5_MatMul"}
    assert ops.count("MatMulInteger") == 2
    # The other product, and the Conv with its DynamicQuantizeLinear.
    assert reading.left == 3
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    with pytest.raises(ModelError, match="in a form that can't be taken apart"):
        refuse_integer_ops(load_model(theirs), theirs)


PARTS = {
    "x": "float[2,4] x",
    "quantize": "q, s, z = DynamicQuantizeLinear(x)",
    "product": "i = MatMulInteger(q, w, z)",
    "cast": "f = Cast<to=1>(i)",
    "scales": "k = Mul(s, ws)",
    "scaled": "y = Mul(f, k)",
}
LIES: dict[str, dict[str, str]] = {
    "no zero point": {"product": "i = MatMulInteger(q, w)"},
    "another zero point": {"product": "i = MatMulInteger(q, w, other)"},
    "the product is read twice": {"scaled": "n = Neg(f) o = Mul(n, k) y = Add(o, f)"},
    "no scale of the input": {"scales": "k = Mul(ws, ws)"},
    "the scale of the input, twice": {"scales": "k = Mul(s, s)"},
    "scales that don't fit": {"scales": "k = Mul(s, wrong)"},
    "zero points that don't fit": {"product": "i = MatMulInteger(q, w, z, points)"},
    "a scale that is no constant": {"scales": "n = Neg(s) k = Mul(s, n)"},
    "one output": {"quantize": "q = DynamicQuantizeLinear(x)", "product": "i = MatMulInteger(q, w)",
                   "scales": "k = Mul(ws, ws)"},
    "one input": {"product": "i = MatMulInteger(q)"},
    "no input": {"quantize": "q, s, z = DynamicQuantizeLinear()"},
    "a weight that is computed": {"product": "v = Identity(w) i = MatMulInteger(q, v, z)"},
}  # fmt: skip


def parts(**changes: str) -> ir.Model:
    each = {**PARTS, **changes}
    head = each.pop("x")
    return ir.from_proto(
        model_from_text(
            f"g ({head}) => (float[2,3] y) {{ {' '.join(each.values())} }}",
            w=np.ones((4, 3), np.int8), ws=np.ones(3, np.float32), other=np.array(3, np.uint8),
            wrong=np.ones((2, 1), np.float32), points=np.ones(2, np.int8),
        )
    )  # fmt: skip


def test_the_parts_make_a_dynamic_op() -> None:
    assert read(parts()).placement.dynamic == {"n1"}


@pytest.mark.parametrize("lie", LIES)
def test_files_that_lie_are_left_alone(lie: str) -> None:
    model = parts(**LIES[lie])
    before = [node.op_type for node in model.graph]
    reading = strip(model)
    assert not reading.placement
    assert reading.left == 2
    assert [node.op_type for node in model.graph] == before


@pytest.mark.parametrize("mark", ["from Gemm", "from Gemm, transB", "from Gemm, alpha, gamma=3"])
def test_marks_that_others_set(mark: str) -> None:
    """They may be on any node, such as a sum that is no bias."""
    model = parts(scaled="p = Mul(f, k) y = Add(c, p)", x="float[2,4] x, float[2,3] c")
    for node in model.graph:
        node.doc_string = mark
    reading = strip(model)
    assert reading.placement.dynamic == {"n1"}
    assert [node.op_type for node in model.graph] == ["Gemm", "Add"]


def test_a_marked_sum_of_three_stays_one() -> None:
    text = "g (float[2] a, float[2] b, float[2] c) => (float[2] y) { y = Sum(a, b, c) }"
    model = ir.from_proto(model_from_text(text))
    model.graph[0].doc_string = "from Add"
    assert not strip(model).placement
    assert model.graph[0].op_type == "Sum"
