"""Loops that never end are refused; those that may end are not."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune.graph._measured_shapes import check_ends
from qdqtune.records._errors import ModelError
from tests.conftest import model_from_text

BODY = "b (int64 i, bool go, float[2,4] v) => (bool on, float[2,4] r)"


def loop_of(trips: int | None, condition: str = "Identity(go)") -> onnx.ModelProto:
    """A model whose Loop goes around so often; None is without a number."""
    count = "" if trips is None else "m"
    weights = {} if trips is None else {"m": np.array(trips)}
    return model_from_text(
        f"""g (float[2,4] x) => (float[2,4] y) {{
            h = MatMul(x, w)
            y = Loop({count}, c, h) <body = {BODY} {{ on = {condition} r = Relu(v) }}>
        }}""",
        w=np.eye(4, dtype=np.float32),
        c=np.array(True),
        **weights,
    )


@pytest.mark.parametrize("trips", [1 << 62, 1 << 40, None])
@pytest.mark.parametrize("condition", ["Identity(go)", "Constant<value = bool {1}>()"])
def test_a_loop_without_end_is_refused(trips: int | None, condition: str) -> None:
    with pytest.raises(ModelError, match="goes around"):
        check_ends(ir.from_proto(loop_of(trips, condition)))


@pytest.mark.parametrize(
    ("trips", "condition"),
    [(1000, "Identity(go)"), (1 << 40, "Not(go)"), (1 << 40, "Constant<value = bool {0}>()")],
)
def test_a_loop_that_may_end_is_not(trips: int, condition: str) -> None:
    check_ends(ir.from_proto(loop_of(trips, condition)))
