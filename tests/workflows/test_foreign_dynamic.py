"""Files of ONNX Runtime's `quantize_dynamic`: stripped, written again, and searched from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

from qdqtune import zoo
from qdqtune.config import TuneConfig
from qdqtune.engines.layers._latency import estimated_shares
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq.dialects import ONNXRUNTIME
from qdqtune.records._inputs import InputRequest
from qdqtune.records._placement import Placement
from qdqtune.search._space import Space
from qdqtune.workflows._compare import compare
from qdqtune.workflows._imported_placement import import_placement
from qdqtune.workflows._insert import insert
from qdqtune.workflows._sample_provider import sample_provider
from qdqtune.workflows._source_model import open_source
from qdqtune.workflows._strip import strip
from qdqtune.workflows.tuning._preflight import AS_GIVEN, find_choices, seeds_of
from tests.conftest import SEVEN_BITS

PRODUCTS = 7  # all but the two of attention
FORMS = {
    "int8": {},
    "int8 per channel": {"per_channel": True},
    "uint8": {"weight_type": QuantType.QUInt8},
    "uint8 per channel": {"weight_type": QuantType.QUInt8, "per_channel": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT whose pooler is a Gemm with a transposed, square weight, and its dynamic forms."""
    folder = tmp_path_factory.mktemp("bert")
    model = zoo.build("bert", layers=1, width=32, head_width=16, vocabulary=100, sequence=16)
    onnx.save(model, folder / "float.onnx")
    for name, settings in FORMS.items():
        quantize_dynamic(
            folder / "float.onnx", folder / f"{name}.onnx", reduce_range=SEVEN_BITS, **settings
        )
    return folder


def weights(path: Path) -> dict[str, np.ndarray]:
    initializers = onnx.load(path).graph.initializer
    return {each.name: onnx.numpy_helper.to_array(each) for each in initializers}


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_left_of_the_quantization(form: str, folder: Path, tmp_path: Path) -> None:
    report = strip(folder / f"{form}.onnx", tmp_path / "float.onnx")
    assert (report.left, report.pairs, len(report.placement.dynamic)) == (0, 3, PRODUCTS)
    assert report.rounded == PRODUCTS + 3
    assert min(report.sqnr_db.values()) > 30.0
    ops = {node.op_type for node in onnx.load(tmp_path / "float.onnx").graph.node}
    assert ops.isdisjoint({"DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"})
    assert not any("_quantized" in name for name in weights(tmp_path / "float.onnx"))
    assert f"made {PRODUCTS} dynamic ops float" in report.headline


@pytest.mark.parametrize("form", FORMS)
def test_the_original_weights_are_put_back(form: str, folder: Path, tmp_path: Path) -> None:
    """Also those that the quantizer transposed, and kept the names of."""
    target = tmp_path / "float.onnx"
    report = strip(folder / f"{form}.onnx", target, weights_from=folder / "float.onnx")
    assert report.rounded == 0
    original, found = weights(folder / "float.onnx"), weights(target)
    turned = "pooler.dense.weight"
    for name, values in found.items():
        expected = original[name].T if name == turned else original[name]
        np.testing.assert_array_equal(values, expected)


def test_written_again_it_computes_the_same(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "again.onnx"
    report = insert(folder / "int8 per channel.onnx", target, dialect="onnxruntime")
    assert len(report.placement.dynamic) == PRODUCTS
    assert min(report.sqnr_given_db.values()) > 60.0


def test_ops_are_found_by_name_or_by_what_they_write(folder: Path) -> None:
    model = open_source(folder / "float.onnx")
    found = import_placement(model.model, folder / "int8.onnx").placement.dynamic
    products = [node for node in model.model.graph if node.op_type in ("Gemm", "MatMul")]
    expected = {node.name for node in products if "weight" in (node.inputs[1].name or "")}
    assert found == expected
    assert "pooler.dense" in found


def test_layers_are_compared_by_the_names_of_the_float_model(folder: Path, tmp_path: Path) -> None:
    """In a file of ours and in that of another tool; a Gemm is the Add behind its product there."""
    ours = tmp_path / "ours.onnx"
    insert(folder / "float.onnx", ours, dynamic=["MatMul", "Gemm"], engine="onnxruntime")
    products = {node.name for node in onnx.load(folder / "float.onnx").graph.node
                if node.op_type in ("Gemm", "MatMul") and "weight" in node.input[1]}  # fmt: skip
    report = compare(folder / "float.onnx", ours)
    assert {layer.own.node for layer in report.layers} == products
    assert {layer.own.op_type for layer in report.layers} == {"Gemm", "MatMul"}
    assert min(layer.own.sqnr_db for layer in report.layers) > 30.0
    report = compare(folder / "float.onnx", folder / "int8.onnx")
    found = {layer.own.node for layer in report.layers}
    assert products - found == {"pooler.dense"}
    assert "pooler.dense_Add" in found


@pytest.mark.parametrize("file", ["float.onnx", "int8.onnx"], ids=["baseline", "as given"])
def test_the_search_begins_with_the_same_ops(file: str, folder: Path, tmp_path: Path) -> None:
    source = open_source(folder / file)
    found = import_placement(source.model, folder / "int8.onnx")
    given = Placement(dynamic=found.placement.dynamic)
    base = PreparedModel(source.model, tmp_path)
    provider = sample_provider(source, InputRequest(), None, None)
    planner, grouping = find_choices(base, ONNXRUNTIME, TuneConfig(), provider)
    space = Space(planner, grouping.groups, estimated_shares(planner.index))
    seeds = seeds_of(space, {AS_GIVEN: given}, grouping)
    assert space.placement(seeds[AS_GIVEN]) == given
