"""What shape inference tells about values is taken over as it is."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from qdqtune.graph.inference import infer
from tests.conftest import model_from_text


def test_sequences_do_not_become_tensors() -> None:
    text = """g (float[4,16] x) => (float[M,N] y) {
        q = SplitToSequence<axis=0>(x)
        y = ConcatFromSequence<axis=0>(q)
    }"""
    model = ir.from_proto(model_from_text(text))
    assert infer(model)
    sequence = model.graph.node(0).outputs[0]
    assert isinstance(sequence.type, ir.SequenceType)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
