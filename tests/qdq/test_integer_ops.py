"""Models quantized in another way than with Q/DQ pairs."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qdqtune.qdq._preprocess import refuse_integer_ops
from qdqtune.records._errors import ModelError
from tests.conftest import model_from_text

QLINEAR = "y = QLinearMatMul(x, s, z, w, s, z, s, z)"
DYNAMIC = "y = MatMulInteger(x, w)"


def model(node: str, domain: str = "") -> ir.Model:
    body = f"g (uint8[2,2] x, uint8[2,2] w, float s, uint8 z) => (int32[2,2] y) {{ {node} }}"
    proto = model_from_text(body)
    proto.graph.node[0].domain = domain
    return ir.from_proto(proto)


@pytest.mark.parametrize(
    ("node", "domain", "what"),
    [
        (QLINEAR, "", "QOperator format (1 QLinearMatMul)"),
        (QLINEAR.replace("QLinearMatMul", "QLinearAdd"), "com.microsoft", "1 QLinearAdd"),
        (DYNAMIC, "", "dynamically (1 MatMulInteger)"),
    ],
)
def test_they_get_a_clear_message(node: str, domain: str, what: str) -> None:
    with pytest.raises(ModelError) as caught:
        refuse_integer_ops(model(node, domain), "m.onnx")
    assert what in caught.value.what
    assert "float model" in caught.value.hint


def test_others_of_that_name_are_none_of_our_business() -> None:
    refuse_integer_ops(model(QLINEAR, "my.ops"), "m.onnx")
