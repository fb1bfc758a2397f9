"""What shape inference tells about values is taken over as it is."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune.graph import _shapes as inference
from qdqtune.graph._shapes import infer_shapes
from tests.conftest import model_from_text


def test_sequences_do_not_become_tensors() -> None:
    text = """g (float[4,16] x) => (float[M,N] y) {
        q = SplitToSequence<axis=0>(x)
        y = ConcatFromSequence<axis=0>(q)
    }"""
    model = ir.from_proto(model_from_text(text))
    infer_shapes(model)
    sequence = model.graph.node(0).outputs[0]
    assert isinstance(sequence.type, ir.SequenceType)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_weights_that_nobody_reads_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[2,4] x) => (float[M,N] y, float[4] shown) { y = Add(x, read) }"
    weights = {name: np.ones(4, np.float32) for name in ("read", "shown", "fed", "unread")}
    proto = model_from_text(text, **weights)
    fed = onnx.helper.make_tensor_value_info("fed", onnx.TensorProto.FLOAT, [4])
    proto.graph.input.append(fed)
    model = ir.from_proto(proto)
    seen: list[set[str]] = []

    def see(proto: onnx.ModelProto, *, follow_values: bool) -> bytes:
        seen.append({weight.name for weight in proto.graph.initializer})
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=follow_values)
        return inferred.SerializeToString()

    monkeypatch.setattr(inference, "_inferred", see)
    infer_shapes(model)
    assert seen == [{"read", "shown", "fed"}]
    assert list(model.graph.initializers) == list(weights)
    assert [value.name for value in model.graph.inputs] == ["x", "fed"]
    shape = model.graph.outputs[0].shape
    assert shape is not None
    assert shape.numpy() == (2, 4)
