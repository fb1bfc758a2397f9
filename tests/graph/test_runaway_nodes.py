"""Shapes and sequences that double when they are followed are not followed for ever."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qdqtune.graph._fold_limits import runaway_nodes
from qdqtune.graph._folding import fold
from tests.conftest import model_from_text


def doubled(first: str, step: str, levels: int = 60) -> ir.Model:
    steps = "".join(f"s{n + 1} = {step.replace('s', f's{n}')} " for n in range(levels))
    text = f"g (float[A,4] x) => (int64[N] y) {{ {first} {steps} y = Identity(s{levels}) }}"
    weights = {"i": np.array([0])} if "i)" in first else {}
    return ir.from_proto(model_from_text(text, **weights))


@pytest.mark.parametrize(
    ("first", "step"),
    [
        ("s0 = Shape(x)", "Concat<axis = 0>(s, s)"),
        ("p = Shape(x) s0 = Gather<axis = 0>(p, i)", "Add(s, s)"),
    ],
)
def test_symbolic_shapes_that_double(first: str, step: str) -> None:
    model = doubled(first, step)
    steps = [node.op_type for node in model.graph][:-1]
    fold(model)
    assert [node.op_type for node in model.graph] == steps  # the Identity is gone
    assert {node.domain for node in model.graph} == {""}


def test_a_sequence_of_all_rows() -> None:
    text = """g (float[1099511627776,4] x, int64 k) => (float[1,4] y) {
        s = SplitToSequence<axis = 0>(x, one) y = SequenceAt(s, k)
    }"""
    model = ir.from_proto(model_from_text(text, one=np.array(1)))
    fold(model)
    assert [node.op_type for node in model.graph] == ["SplitToSequence", "SequenceAt"]


def test_what_models_do_with_shapes_is_followed() -> None:
    text = """g (float[A,4] x) => (float[A,4] y) {
        s = Shape(x) d = Concat<axis = 0>(s, s) t = Gather<axis = 0>(d, i) y = Reshape(x, t)
    }"""
    model = ir.from_proto(model_from_text(text, i=np.array([0, 1])))
    assert not runaway_nodes(model)
    fold(model)
    assert [node.op_type for node in model.graph] == ["Identity"]
