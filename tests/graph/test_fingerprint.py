"""Fingerprints: equal content, equal fingerprint; any change that matters changes it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from qdqtune.graph._fingerprint import fingerprint
from tests.conftest import model_from_text

WEIGHT = np.arange(4, dtype=np.float32)


def of(proto: onnx.ModelProto) -> str:
    return fingerprint(ir.from_proto(proto))


def _weight(model: onnx.ModelProto) -> None:
    values = numpy_helper.to_array(model.graph.initializer[0]).copy()
    values.flat[0] = np.nextafter(values.flat[0], np.float32(9))
    model.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(values, model.graph.initializer[0].name)
    )


def _attribute(model: onnx.ModelProto) -> None:
    model.graph.node[3].attribute.append(helper.make_attribute("strides", [1, 1]))


def _wiring(model: onnx.ModelProto) -> None:
    node = model.graph.node[4]
    node.input[0], node.input[1] = node.input[1], node.input[0]


def _name(model: onnx.ModelProto) -> None:
    model.graph.node[0].name = "other"


def _opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 18


@pytest.mark.parametrize("change", [_weight, _attribute, _wiring, _name, _opset])
def test_what_matters_counts(
    change: Callable[[onnx.ModelProto], None], residual: onnx.ModelProto
) -> None:
    other = copy.deepcopy(residual)
    change(other)
    assert of(other) != of(residual)


FUNCTION = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
g (float[4] x, float[4] z) => (float[4] y) { y = local.f<a = 2.0>(x, z) }
<domain: "local", opset_import: ["": 17]>
f <a, b: float = 1.0> (p, q) => (r) { s = Sub(p, q) r = Elu<alpha: float = @a>(s) }"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(p, q) => (r)", "(q, p) => (r)"),
        ("(p, q) => (r)", "(p, q) => (s)"),
        ("b: float = 1.0", "b: float = 1.5"),
        ("<a, b: float = 1.0>", "<a>"),
        ("<a, b", "<a, c, b"),
        ('opset_import: ["": 17]>', 'opset_import: ["": 16]>'),
        ("Sub(p, q)", "Sub(q, p)"),
    ],
)
def test_what_matters_in_a_function_counts(old: str, new: str) -> None:
    assert old in FUNCTION
    other = onnx.parser.parse_model(FUNCTION.replace(old, new))
    assert of(other) != of(onnx.parser.parse_model(FUNCTION))


def test_a_plain_model_keeps_the_fingerprint_it_always_had() -> None:
    proto = model_from_text("g (float[4] x) => (float[4] y) { y = Add(x, w) }", w=WEIGHT)
    assert of(proto) == "c0ac04211d96b8b57ac86113f2545b4e"


def test_what_does_not_matter_does_not(residual: onnx.ModelProto) -> None:
    other = copy.deepcopy(residual)
    other.doc_string = "hello"
    other.graph.node[0].doc_string = "hello"
    other.metadata_props.add(key="a", value="b")
    inferred = onnx.shape_inference.infer_shapes(other)
    assert of(inferred) == of(residual)
    reordered = copy.deepcopy(residual)
    tensors = list(reordered.graph.initializer)[::-1]
    del reordered.graph.initializer[:]
    reordered.graph.initializer.extend(tensors)
    assert of(reordered) == of(residual)
