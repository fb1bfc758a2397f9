"""Layers to nodes on the engines themselves, float and quantized."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from tests.zoo.runs import random_inputs

from qdqtune import zoo
from qdqtune.engines import _registry as registry
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._worker import Worker
from qdqtune.engines.layers._mapper import nodes_of_layers
from qdqtune.engines.layers._naming import LEADS, fits, kind_of, takes_anything
from qdqtune.graph._files import load_model
from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import infer_shapes
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._layers import MappedLayer
from qdqtune.records._ranges import Ranges

MODELS = {
    "resnet18": {"blocks": (1, 1), "width": 8, "image": 32},
    "convnext": {"depths": (1, 1), "dims": (16, 32), "image": 32},
    "bert": {"layers": 2, "width": 32, "head_width": 16, "sequence": 16, "vocabulary": 100},
}
ENGINES = ("onnxruntime", "openvino", "simulated")


@pytest.fixture(scope="module", params=ENGINES)
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    if not registry.available(request.param).usable:
        pytest.skip(f"{request.param} is not installed")
    with Worker(request.param, SessionOptions(threads=1), timeout_s=120) as shared:
        shared.name = request.param
        yield shared


def quantized(proto: onnx.ModelProto, engine: str, folder: Path) -> Path:
    """Every weighted op in the engine's own dialect, with ranges out of the blue."""
    model = ir.from_proto(proto)
    fold(model)
    infer_shapes(model)
    base = PreparedModel(model, folder)
    dialect = native_dialect(engine)
    planner = QuantizationPlanner(base.index, dialect, "int8")
    chosen = [name for name in planner.units if kind_of(base.index.node[name].op_type) in LEADS]
    ranges = Ranges(dict.fromkeys(base.index.value, (-2.0, 2.0)))
    inserter = Inserter(base, dialect, "int8", ranges)
    return inserter.write(planner.placement(chosen), "candidate")


def check(index: GraphIndex, layers: list[MappedLayer]) -> None:
    """What holds for every mapping, whatever the engine."""
    owner = {node: n for n, each in enumerate(layers) if each.executes for node in each.nodes}
    assert len(owner) == sum(len(each.nodes) for each in layers if each.executes)
    total_ms = sum(each.ms for each in layers)
    assert sum(each.ms for each in layers if each.nodes) >= 0.95 * total_ms > 0
    for node in index.nodes:
        if kind_of(node.op_type) in LEADS:
            kind = layers[owner[node.name]].op_type
            assert fits(kind, node.op_type) or takes_anything(kind), (node.name, kind)
        producers = [value.producer() for value in node.inputs if value is not None]
        for producer in producers:
            # Engines move a DQ behind what moves values only.
            if producer is not None and producer.op_type != "DequantizeLinear":
                assert owner.get(producer.name, 0) <= owner.get(node.name, len(layers))
    for each in layers:
        if each.executes and kind_of(each.op_type) in LEADS:
            kinds = [kind_of(op_type) for op_type in each.node_types]
            assert kinds.count(kind_of(each.op_type)) == 1, each


@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize("form", ["float", "int8"])
def test_layers_are_found_in_the_model(
    worker: Worker, architecture: str, form: str, tmp_path: Path
) -> None:
    proto = zoo.build(architecture, **MODELS[architecture])
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    if form == "int8":
        path = quantized(proto, worker.name, tmp_path)
    opened = worker.open(path)
    worker.feed(opened, random_inputs(proto))
    layers = worker.layers(opened, 3)
    worker.release(opened)
    assert all(layer.precision for layer in layers)
    index = GraphIndex(load_model(path))
    mapped = nodes_of_layers(index, layers)
    check(index, mapped)
    low = {layer.precision for layer in mapped if kind_of(layer.op_type) in LEADS} & {
        "int8",
        "uint8",
    }
    assert bool(low) == (form == "int8")
