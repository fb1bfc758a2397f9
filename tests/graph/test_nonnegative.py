"""Tensors that can't be negative are known by the ops that compute them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._nonnegative import nonnegative_tensors
from tests.conftest import model_from_text

CONSTANTS = {
    "zero": np.array(0, np.float32),
    "six": np.array(6, np.float32),
    "minus": np.array(-1, np.float32),
    "shape": np.array([1, -1]),
}


@pytest.mark.parametrize(
    ("body", "is_nonnegative"),
    [
        ("y = Relu(x)", True),
        ("y = Sigmoid(x)", True),
        ("y = HardSigmoid(x)", True),
        ("y = Softmax(x)", True),
        ("y = Neg(x)", False),
        ("y = HardSwish(x)", False),
        ("y = LeakyRelu(x)", False),
        ("y = Clip(x, zero, six)", True),
        ("y = Clip(x, zero)", True),
        ("y = Clip(x, minus, six)", False),
        ("y = Clip(x, , six)", False),
        ("y = Clip(x, low)", False),
        ("y = MaxPool<kernel_shape = [2, 2]>(r)", True),
        ("y = MaxPool<kernel_shape = [2, 2]>(x)", False),
        ("a = AveragePool<kernel_shape = [2, 2]>(r) y = Flatten(a)", True),
        ("a = GlobalAveragePool(r) b = Reshape(a, shape) y = Transpose<perm = [1, 0]>(b)", True),
        ("y = Reshape(x, shape)", False),
        ("y, z = Split<axis = 1, num_outputs = 2>(r)", True),
        ("y = Add(r, r)", True),
        ("y = Add(r, x)", False),
        ("s = Sigmoid(x) y = Mul(r, s)", True),
        ("y = Sub(r, r)", False),
        ("y = Concat<axis = 1>(r, r)", True),
        ("y = Concat<axis = 1>(r, x)", False),
        ("y = Max(x, r)", True),
        ("y = Min(x, r)", False),
        ("y = Conv(r, r)", False),
        ("y = nobody.Relu(x)", False),
    ],
)
def test_what_an_op_gives(body: str, is_nonnegative: bool) -> None:
    text = f"g (float[1,4,8,8] x, float low) => (float[A,B] y) {{ r = Relu(x) {body} }}"
    model = model_from_text(text, **CONSTANTS)
    found = nonnegative_tensors(GraphIndex(ir.from_proto(model)))
    assert "r" in found
    assert ("y" in found) is is_nonnegative
    assert not found & {"x", "low", *CONSTANTS}
