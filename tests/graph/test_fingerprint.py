"""Fingerprints: equal content, equal fingerprint; any change that matters changes it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from qdqtune.graph.fingerprint import fingerprint


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
