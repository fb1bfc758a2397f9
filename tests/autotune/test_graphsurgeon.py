"""Models that come as graphs of onnx_graphsurgeon: the package's own, or a stand-in's."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType

import onnx
import pytest

from qdqtune import zoo
from qdqtune.autotune import QDQAutotuner
from qdqtune.autotune.workflows import (
    extract_subgraph,
    init_benchmark_instance,
    region_pattern_autotuning_workflow,
)
from qdqtune.qdq_utils import get_quantized_tensors

Import = Callable[[onnx.ModelProto], object]


class StandInGraph:
    """Has what a graph of onnx_graphsurgeon has for us: a module's name, and an exporter there."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model


@pytest.fixture(params=["onnx_graphsurgeon", "stand-in"])
def import_graph(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Import:
    if request.param == "onnx_graphsurgeon":
        package = pytest.importorskip("onnx_graphsurgeon")
        return package.import_onnx  # type: ignore[no-any-return]
    if importlib.util.find_spec("onnx_graphsurgeon") is not None:
        pytest.skip("the package itself is here")
    stand_in = ModuleType("onnx_graphsurgeon")
    stand_in.export_onnx = lambda graph: graph.model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "onnx_graphsurgeon", stand_in)
    monkeypatch.setattr(StandInGraph, "__module__", "onnx_graphsurgeon.ir.graph")
    return StandInGraph


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return zoo.build("resnet18", width=8, image=32, blocks=(1, 1, 1, 1))


def test_an_autotuner_takes_a_graph(model: onnx.ModelProto, import_graph: Import) -> None:
    tuner = QDQAutotuner(import_graph(model))
    assert [node.op_type for node in tuner.graph.nodes] == [
        node.op_type for node in QDQAutotuner(model).graph.nodes
    ]
    tuner.initialize()
    assert isinstance(tuner.onnx_model, onnx.ModelProto)


def test_functions_take_a_graph(model: onnx.ModelProto, import_graph: Import) -> None:
    init_benchmark_instance(engine="simulated")
    graph = import_graph(model)
    tuner = region_pattern_autotuning_workflow(graph, num_schemes_per_region=4)
    quantized = onnx.load_from_string(tuner.export_onnx())
    tensors = get_quantized_tensors(import_graph(quantized))
    assert tensors
    assert tensors == get_quantized_tensors(quantized)
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    part = extract_subgraph(graph, [conv.input[0]], [conv.output[0]])
    assert [node.op_type for node in part.graph.node] == ["Conv"]
