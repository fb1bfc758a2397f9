"""Layers from a file, with the times that an engine told of them."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from qdqtune.engines.layers._files import read_layer_info
from qdqtune.graph._index import GraphIndex, name_nodes
from qdqtune.graph._shapes import infer_shapes
from qdqtune.records._measurement import LayerTime
from qdqtune.workflows.tuning._layer_groups import layers_in_file

SAMPLES = Path(__file__).parents[1] / "data" / "tensorrt" / "trt860_h200"


@pytest.mark.parametrize("name", ["encoder", "resnet18", "unet"])
def test_no_time_is_lost_where_a_layer_is_cut_into_sublayers(name: str) -> None:
    model = ir.from_proto(onnx.load(SAMPLES / f"{name}.onnx", load_external_data=False))
    name_nodes(model)
    infer_shapes(model)
    file = SAMPLES / f"{name}.fp16.graph.json"
    told = read_layer_info(file)
    times = [LayerTime(layer.name, layer.kind, 1.0 + place) for place, layer in enumerate(told)]
    layers = layers_in_file(GraphIndex(model), file, times)
    assert layers is not None
    assert sum(layer.ms for layer in layers) == pytest.approx(sum(each.ms for each in times))
    heavy = [layer for layer in layers if {"MatMul", "Conv"}.intersection(layer.node_types)]
    assert all(layer.ms > 0 for layer in heavy)
    if name == "encoder":
        assert len(layers) > len(told)
