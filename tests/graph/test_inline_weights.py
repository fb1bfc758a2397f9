"""Weights on their way back into a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune.graph._files import model_from_proto
from qdqtune.graph._prepared_model import PreparedModel, external_bytes, inlined
from qdqtune.records._errors import ModelError
from tests.conftest import model_from_text


def model() -> onnx.ModelProto:
    chance = np.random.default_rng(0)
    return model_from_text(
        "g (float[2,64] x) => (float[2,64] y) { a = MatMul(x, w) b = MatMul(a, v) y = Add(b, s) }",
        w=chance.normal(size=(64, 64)).astype(np.float32),
        v=chance.normal(size=(64, 64)).astype(np.float32),
        s=np.ones(4, np.float32)[:1],
    )


def test_all_weights_are_inside_and_the_same(tmp_path: Path) -> None:
    given = model()
    base = PreparedModel(ir.from_proto(given), tmp_path)
    assert external_bytes(base.whole()) == 2 * 64 * 64 * 4
    content = inlined(base.whole(), tmp_path)
    result = onnx.load_from_string(content)
    onnx.checker.check_model(result, full_check=True)
    weights, original = (
        {each.name: onnx.numpy_helper.to_array(each) for each in proto.graph.initializer}
        for proto in (result, given)
    )
    assert weights.keys() == original.keys()
    for name, values in original.items():
        np.testing.assert_array_equal(weights[name], values)
    assert external_bytes(content) == 0


def test_a_model_in_memory_is_checked_and_not_changed() -> None:
    given = model()
    before = given.SerializeToString(deterministic=True)
    read = model_from_proto(given)
    assert [node.name for node in read.graph] == ["n0", "n1", "n2"]
    read.graph.outputs[0].name = "other"
    assert given.SerializeToString(deterministic=True) == before
    given.graph.node[0].op_type = "Nonsense"
    with pytest.raises(ModelError, match="not a valid ONNX model"):
        model_from_proto(given)
    with pytest.raises(ModelError):
        model_from_proto(onnx.ModelProto())
