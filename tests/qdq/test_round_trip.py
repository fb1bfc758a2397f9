"""insert -> read gives the placement; insert -> strip gives the model."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtune.graph._files import load_model, save_model
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._index import name_nodes
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import infer_shapes
from qdqtune.qdq._at_run_time import why_not_dynamic
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._op_units import canonical, merge, unit
from qdqtune.qdq._read_back import ReadResult, mentioned, read, strip
from qdqtune.qdq._smoothing import SMOOTHED, SMOOTHED_INPUTS, Smoothing, input_axis, smoothable
from qdqtune.qdq.dialects import DIALECTS
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import Ranges
from tests.models import draw_placement, small_models

WRITTEN = [
    pytest.param(dialect, quant_type, id=f"{dialect.name}-{quant_type}")
    for dialect in DIALECTS.values()
    for quant_type in dialect.formats
]


def inserter_for(
    proto: onnx.ModelProto, dialect: Dialect, quant_type: str, folder: str
) -> Inserter:
    model = ir.from_proto(proto)
    name_nodes(model)
    infer_shapes(model)
    base = PreparedModel(model, Path(folder))
    ranges = Ranges(dict.fromkeys(base.index.value, (-2.0, 3.0)))
    return Inserter(base, dialect, quant_type, ranges)


def check_round_trip(inserter: Inserter, placement: Placement) -> ReadResult:
    """What is read from a written model is its placement, and without that it is the model."""
    path = inserter.write(placement, "candidate")
    onnx.checker.check_model(str(path), full_check=True)
    candidate = load_model(path)
    assert read(candidate).placement == canonical(inserter.index, placement)
    reading = strip(candidate, weights_from=inserter.index.model)
    assert fingerprint(candidate) == fingerprint(inserter.index.model)
    return reading


@pytest.mark.parametrize(("dialect", "quant_type"), WRITTEN)
@given(data=st.data(), proto=small_models())
def test_insert_then_read_and_strip(
    dialect: Dialect, quant_type: str, data: st.DataObject, proto: onnx.ModelProto
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        inserter = inserter_for(proto, dialect, quant_type, folder)
        placement = draw_placement(data.draw, inserter.index, dialect)
        check_round_trip(inserter, placement)


@pytest.mark.parametrize(("dialect", "quant_type"), WRITTEN)
@given(data=st.data(), proto=small_models())
def test_smoothed_inputs_are_undone(
    dialect: Dialect, quant_type: str, data: st.DataObject, proto: onnx.ModelProto
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain = inserter_for(proto, dialect, quant_type, folder)
        index, smoothings = plain.index, {}
        for names in smoothable(index).values():
            weight = index.shape_read(index.node[names[0]], 1) or ()
            size = weight[input_axis(index.node[names[0]])]
            factors = data.draw(st.lists(st.floats(0.01, 100.0), min_size=size, max_size=size))
            smoothings |= dict.fromkeys(names, Smoothing(np.array(factors), -1.0, 2.0))
        inserter = plain.with_smoothings(smoothings)
        products = [index.node[name] for name in smoothings if data.draw(st.booleans())]
        units = [unit(index, dialect, node, whole=False) for node in products]
        placement = merge([draw_placement(data.draw, index, dialect), *units])
        dynamic = frozenset(
            name
            for name in smoothings
            if not why_not_dynamic(index, dialect, index.node[name]) and data.draw(st.booleans())
        )
        static = frozenset(edge for edge in placement.edges if edge.node not in dynamic)
        placement = replace(placement, edges=static, dynamic=dynamic)
        candidate = inserter.model(placement)
        smoothed = inserter.smoothed(placement)
        assert mentioned(candidate, SMOOTHED_INPUTS) == len(smoothed)
        assert sum((n.doc_string or "").startswith(SMOOTHED) for n in candidate.graph) == len(
            {(index.reads(index.node[name])[0], name in dynamic) for name in smoothed}
        )
        assert check_round_trip(inserter, placement).smoothed == len(smoothed)
        if not smoothed:
            assert inserter.serialized(placement) == plain.serialized(placement)


@given(data=st.data(), proto=small_models())
def test_a_read_placement_writes_the_same_model_again(
    data: st.DataObject, proto: onnx.ModelProto
) -> None:
    dialect = DIALECTS["onnxruntime"]
    with tempfile.TemporaryDirectory() as folder:
        inserter = inserter_for(proto, dialect, "int8", folder)
        placement = draw_placement(data.draw, inserter.index, dialect)
        first = inserter.model(placement)
        again = inserter.model(read(first).placement)
        assert fingerprint(again) == fingerprint(first)


@given(data=st.data(), proto=small_models())
def test_no_float_copy_of_a_quantized_weight_stays(
    data: st.DataObject, proto: onnx.ModelProto
) -> None:
    dialect = DIALECTS["onnxruntime"]
    with tempfile.TemporaryDirectory() as folder:
        inserter = inserter_for(proto, dialect, "int8", folder)
        placement = draw_placement(data.draw, inserter.index, dialect)
        edges = inserter.index.effective(placement)
        written = {tensor.name for tensor in inserter.proto(placement).graph.initializer}
        for name in inserter.index.model.graph.initializers:
            assert (name in written) == (not edges.issuperset(inserter.index.readers(name)))


@given(data=st.data(), proto=small_models())
def test_the_empty_placement_is_the_model(data: st.DataObject, proto: onnx.ModelProto) -> None:
    with tempfile.TemporaryDirectory() as folder:
        inserter = inserter_for(proto, DIALECTS["tensorrt"], "int8", folder)
        assert fingerprint(inserter.model(Placement())) == fingerprint(inserter.index.model)


def test_strip_restores_quantized_weights_within_half_a_step(
    residual: onnx.ModelProto, tmp_path: Path
) -> None:
    dialect = DIALECTS["onnxruntime"]
    inserter = inserter_for(residual, dialect, "int8", str(tmp_path))
    conv = inserter.index.node["n3"]
    model = inserter.model(unit(inserter.index, dialect, conv, whole=True))
    reading = strip(model)
    original = inserter.index.value["w2"].const_value.numpy()
    error = abs(model.graph.initializers["w2"].const_value.numpy() - original)
    step = reading.encodings["w2"].scale.reshape(-1, 1, 1, 1)
    assert (error <= step / 2 * 1.001).all()
    assert error.max() > 0


def test_a_written_candidate_survives_being_saved_elsewhere(
    residual: onnx.ModelProto, tmp_path: Path
) -> None:
    inserter = inserter_for(residual, DIALECTS["onnxruntime"], "int8", str(tmp_path))
    placement = Placement.of(outputs=["r1"])
    candidate = load_model(inserter.write(placement, "candidate"))
    other = tmp_path / "elsewhere"
    other.mkdir()
    save_model(candidate, other / "m.onnx")
    assert fingerprint(load_model(other / "m.onnx")) == fingerprint(candidate)
    assert sorted(file.name for file in other.iterdir()) == ["m.onnx", "m.onnx.data"]
