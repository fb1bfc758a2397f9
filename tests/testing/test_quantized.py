"""The quantized ops of the kit, in every dialect there is."""

from __future__ import annotations

import pytest

from qdqtune.qdq.dialects import DIALECTS
from qdqtune.testing._computing import op_type_of, quantized_op

TYPES = [(name, kind) for name, dialect in DIALECTS.items() for kind in dialect.formats]


@pytest.mark.parametrize("op", ["depthwise Conv", "Gemm"])
@pytest.mark.parametrize(("dialect", "quant_type"), TYPES)
def test_every_dialect_has_them(dialect: str, quant_type: str, op: str) -> None:
    assert op_type_of(op) in DIALECTS[dialect].rules
    made = quantized_op(op, dialect, quant_type, extreme=False)
    assert "QuantizeLinear" in {node.op_type for node in made.model.graph.node}
    assert made.expected["y"].std() > 0
