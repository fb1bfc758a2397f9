"""What ops only move: quantized once, before them, and in one encoding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.calibration._ranges import collect_ranges
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._worker import Worker
from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex, name_nodes
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import infer_shapes
from qdqtune.qdq._encoder import Encoder
from qdqtune.qdq._encoding import ReadEncoding
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._op_units import canonical
from qdqtune.qdq._quantization_planner import QuantizationPlanner, translate
from qdqtune.qdq._read_back import read
from qdqtune.qdq.dialects import DIALECTS, ONNXRUNTIME, OPENVINO
from qdqtune.records._placement import Edge, Placement
from qdqtune.records._ranges import CalibrationSource, Ranges
from tests.conftest import model_from_text
from tests.models import small_models

rng = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return (0.2 * rng.normal(size=shape)).astype(np.float32)


def between_convs(moves: str, channels: int = 16) -> str:
    """A graph in which `moves` lead from r and d, results of Convs, to h, which a Conv reads."""
    return (
        "g (float[1,16,12,12] x) => (float[1,16,?,?] y) {"
        " c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c) d = Conv<pads=[1,1,1,1]>(r, w)"
        f" {moves} y = Conv<pads=[1,1,1,1]>(h, w{channels}) }}"
    ).replace("?", "N")


MOVES = {
    "MaxPool": ("h = MaxPool<kernel_shape=[2,2], strides=[2,2]>(d)", {}),
    "Transpose": ("h = Transpose<perm=[0,1,3,2]>(d)", {}),
    "Reshape": ("h = Reshape(d, s)", {"s": np.array([1, 16, 6, 24])}),
    "Resize": ("h = Resize(d, , s)", {"s": np.array([1, 1, 2, 2], np.float32)}),
    "Slice": ("h = Slice(d, s, e, s)", {"s": np.array([2]), "e": np.array([8])}),
    "Concat": ("h = Concat<axis=1>(d, r)", {}),
    "Split": (
        "h1, h2 = Split<axis=1>(d, s) h = Concat<axis=1>(h2, h1)", {"s": np.array([4, 12])},
    ),
    "Squeeze": (
        "t = Transpose<perm=[0,2,1,3]>(d) q = Squeeze(t, o) h = Unsqueeze(q, u)",
        {"o": np.array([0]), "u": np.array([2])},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def reference() -> Iterator[Worker]:
    with Worker() as shared:
        yield shared


@pytest.fixture(scope="module")
def openvino() -> Iterator[Worker]:
    with Worker("openvino", SessionOptions(threads=1)) as shared:
        yield shared


def prepared(op_type: str, folder: Path) -> PreparedModel:
    moves, constants = MOVES[op_type]
    channels = 32 if op_type == "Concat" else 16
    weights = {"w": normal(16, 16, 3, 3), f"w{channels}": normal(16, channels, 3, 3)}
    model = ir.from_proto(model_from_text(between_convs(moves, channels), **weights, **constants))
    fold(model)
    return PreparedModel(model, folder)


@pytest.mark.parametrize("op_type", MOVES)
def test_values_are_moved_as_integers(
    op_type: str, reference: Worker, openvino: Worker, tmp_path: Path
) -> None:
    base = prepared(op_type, tmp_path)
    samples = list(random_inputs(base.index, 2))
    ranges = collect_ranges(base, reference, samples, CalibrationSource.RANDOM)
    planner = QuantizationPlanner(base.index, OPENVINO)
    placement = planner.placement(list(planner.units))
    assert planner.quantized(placement) == planner.units.keys()
    assert {
        "d",
        "h",
    } <= planner.candidate_edges.tensors  # a choice without the passthrough op needs both
    candidate = Inserter(base, OPENVINO, "int8", ranges).write(placement, "candidate")
    opened = openvino.open(candidate)
    openvino.feed(opened, samples[0])
    layers = openvino.layers(opened, 1)
    openvino.release(opened)
    computing = [layer for layer in layers if layer.op_type not in ("Reorder", "Reshape")]
    # The first quantizes the input; nothing else converts or requantizes.
    assert [layer.op_type for layer in computing].count("Subgraph") == 1, computing
    assert {layer.precision for layer in computing[1:]} == {"uint8"}, computing


@pytest.mark.parametrize("op_type", MOVES)
def test_the_pair_stands_before_and_not_behind(op_type: str, tmp_path: Path) -> None:
    base = prepared(op_type, tmp_path)
    planner = QuantizationPlanner(base.index, OPENVINO)
    quantized = planner.placement(list(planner.units)).tensors
    assert "d" in quantized
    assert "h" not in quantized
    without = planner.placement(list(planner.compute))
    assert "h" in without.tensors
    assert "d" not in without.tensors or op_type == "Concat"


def test_operands_of_a_concat_share_one_encoding(reference: Worker, tmp_path: Path) -> None:
    base = prepared("Concat", tmp_path)
    samples = list(random_inputs(base.index, 2))
    ranges = collect_ranges(base, reference, samples, CalibrationSource.RANDOM)
    planner = QuantizationPlanner(base.index, OPENVINO)
    inserter = Inserter(base, OPENVINO, "int8", ranges)
    (low, high) = np.array([ranges.by_tensor["d"], ranges.by_tensor["r"]]).T
    step = (high.max() - low.min()) / 255
    pairs = {
        pair.tensor: pair.encoding
        for pair in inserter.encoder.pairs(
            base.index.effective(planner.placement(list(planner.units)))
        )
    }
    assert pairs["d"].key == pairs["r"].key
    assert float(pairs["r"].scale) == pytest.approx(step, rel=1e-6)


@pytest.mark.parametrize("other", [0.01, 0.04])
def test_scales_that_came_with_a_model_are_spanned(other: float, tmp_path: Path) -> None:
    base = prepared("Concat", tmp_path)
    given = {
        name: ReadEncoding(ir.DataType.UINT8, np.float32([scale]), np.uint8([0]), 0)
        for name, scale in (("x", 0.02), ("d", 0.01), ("r", other))
    }
    planner = QuantizationPlanner(base.index, OPENVINO)
    placement = planner.placement(list(planner.units))
    nothing = Ranges({}, CalibrationSource.RANDOM)
    encoder = Inserter(base, OPENVINO, "int8", nothing, given).encoder
    pairs = {pair.tensor: pair.encoding for pair in encoder.pairs(base.index.effective(placement))}
    assert float(pairs["x"].scale) == np.float32(0.02)
    assert pairs["d"].key == pairs["r"].key
    assert float(pairs["d"].scale) == pytest.approx(max(0.01, other), rel=1e-6)


def test_a_product_of_activations_has_no_zero_point_in_its_second_operand(
    reference: Worker, tmp_path: Path
) -> None:
    text = (
        "g (float[2,8,32] x, float[2,8,32] z) => (float[2,8,8] y) {"
        " t = Transpose<perm=[0,2,1]>(z) y = MatMul(x, t) }"
    )
    model = ir.from_proto(model_from_text(text))
    fold(model)
    base = PreparedModel(model, tmp_path)
    ranges = collect_ranges(
        base, reference, list(random_inputs(base.index, 2)), CalibrationSource.RANDOM
    )
    for dialect, kinds in ((OPENVINO, "INT8"), (ONNXRUNTIME, "UINT8")):
        planner = QuantizationPlanner(base.index, dialect)
        inserter = Inserter(base, dialect, "int8", ranges)
        placement = planner.placement(list(planner.units))
        pairs = inserter.encoder.pairs(base.index.effective(placement))
        second = [pair.encoding for pair in pairs if pair.tensor in ("z", "t")]
        assert {encoding.dtype.name for encoding in second} == {kinds}
        assert all(not encoding.zero_point.any() for encoding in second) == (kinds == "INT8")


@given(st.data(), small_models(), st.sampled_from(sorted(DIALECTS)))
def test_a_choice_is_what_is_written(
    data: st.DataObject, proto: onnx.ModelProto, name: str
) -> None:
    index = GraphIndex(ir.from_proto(proto))
    dialect = DIALECTS[name]
    planner = QuantizationPlanner(index, dialect)
    names = {name for name in planner.units if data.draw(st.booleans())}
    placement = planner.placement(names)
    assert placement.tensors <= planner.candidate_edges.tensors
    assert planner.quantized(placement).issuperset(planner.compute.keys() & names)
    # What is moved is quantized before or behind, never in both places.
    if dialect.propagates_dq:
        for name in planner.passthrough.keys() & names:
            places = planner.passthrough[name]
            behind = placement.tensors & places.outputs
            assert not (places.edges <= placement.edges and behind)


def model_of(text: str, **weights: np.ndarray) -> GraphIndex:
    model = ir.from_proto(model_from_text(text, **weights))
    fold(model)
    return GraphIndex(model)


@pytest.mark.parametrize(("mode", "is_moved"), [("nearest", True), ("linear", False)])
def test_a_resize_that_computes_moves_nothing(mode: str, is_moved: bool) -> None:
    index = model_of(
        "g (float[1,16,6,6] x) => (float[1,16,12,12] y) {"
        f' h = Resize<mode="{mode}">(x, , s) y = Conv<pads=[1,1,1,1]>(h, w) }}',
        w=normal(16, 16, 3, 3),
        s=np.array([1, 1, 2, 2], np.float32),
    )
    resize, conv = index.nodes
    before = Placement.of([Edge("x", resize.name, 0), Edge("w", conv.name, 1)])
    assert (conv.name in QuantizationPlanner(index, OPENVINO).quantized(before)) is is_moved


def test_only_a_product_that_is_quantized_asks_for_signs() -> None:
    index = model_of(
        "g (float[1,4,8,8] x) => (float[1,4,8,8] y, float[1,4,8,8] z) {"
        " r = Relu(x) y = Conv(r, w) t = Transpose<perm=[0,1,3,2]>(r) z = MatMul(x, t) }",
        w=normal(4, 4, 1, 1),
    )
    planner = QuantizationPlanner(index, OPENVINO)
    seen = Ranges(dict.fromkeys(index.value, (0.0, 1.0)), CalibrationSource.RANDOM)
    encoder = Encoder(index, OPENVINO, "int8", seen)

    def type_of_r(*op_types: str) -> str:
        chosen = [name for name in planner.units if index.node[name].op_type in op_types]
        pairs = encoder.pairs(index.effective(planner.placement(chosen)))
        (found,) = {pair.encoding.dtype.name for pair in pairs if pair.tensor == "r"}
        return str(found)

    assert type_of_r("Conv") == "UINT8"
    assert type_of_r("Conv", "Transpose", "MatMul") == "INT8"


def test_what_is_behind_a_concat_is_quantized_in_other_dialects_too(tmp_path: Path) -> None:
    index = prepared("Concat", tmp_path).index
    planner = QuantizationPlanner(index, OPENVINO)
    placement = planner.placement(list(planner.units))
    for name in ("onnxruntime", "openvino"):
        found = translate(index, DIALECTS[name], "int8", placement)
        assert {index.node[each].op_type for each in found.quantized} == {"Conv", "Concat"}
        assert len(found.quantized) == 4


def test_a_constant_that_is_moved_and_quantized_again_is_read_back(tmp_path: Path) -> None:
    """Folding leaves large constants behind ops alone: such an op is a kernel like any other."""
    text = "g (float[8,32] x) => (float[8,32] y) { t = Transpose<perm=[1,0]>(w) y = MatMul(x, t) }"
    model = ir.from_proto(model_from_text(text, w=normal(32, 32)))
    name_nodes(model)
    infer_shapes(model)
    base = PreparedModel(model, tmp_path)
    planner = QuantizationPlanner(base.index, ONNXRUNTIME)
    placement = planner.placement(list(planner.units))
    assert {"w", "t"} <= placement.tensors
    ranges = Ranges(dict.fromkeys("xty", (-1.0, 1.0)), CalibrationSource.RANDOM, 1)
    written = Inserter(base, ONNXRUNTIME, "int8", ranges).model(placement)
    assert canonical(base.index, read(written).placement) == placement
