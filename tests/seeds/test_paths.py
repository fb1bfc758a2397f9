"""Every module that the seeds name, with the names in it, can be imported here."""

from __future__ import annotations

import importlib
import inspect
import json
import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from qdqtune import zoo
from qdqtune.autotune.workflows import (
    TrtExecBenchmark,
    benchmark_onnx_model,
    extract_subgraph,
    init_benchmark_instance,
    subgraph_autotuning_workflow,
)
from qdqtune.engines.tensorrt._layer_info import parse_profile
from qdqtune.records._errors import UsageError
from tests.conftest import model_from_text

#: By seed: modules below `modelopt.onnx.quantization`, and what is named in them.
NAMED = {
    "000": {"autotune": ["QDQAutotuner"], "autotune.autotuner": ["QDQAutotuner"]},
    "001": {
        "autotune.__main__": ["main"],
        "autotune.subgraph_workflow": ["subgraph_autotuning_workflow"],
        "autotune.fusion_grouping": ["generate_graph_json", "FusionGroup"],
        "autotune.subgraph_extractor": ["extract_subgraph"],
        "autotune.tensorrt_utils": ["TrtExecBenchmark", "TensorRTPyBenchmark"],
        "autotune.workflows": ["benchmark_onnx_model"],
        "autotune.autotuner": ["QDQAutotuner"],
        "autotune.region_pattern": ["RegionPattern"],
        "autotune.region_search": ["CombinedRegionSearch"],
        "autotune.torch_region_builder": ["TorchRegionBuilder"],
        "autotune.qdq_utils": ["get_quantized_tensors"],
        "autotune.common": ["Region", "InsertionScheme", "PatternSchemes", "PatternCache"],
        "autotune.insertion_points": [
            "NodeInputInsertionPoint", "ChildRegionInputInsertionPoint",
            "RegionOutputInsertionPoint", "ResolvedInsertionPoint",
        ],
    },
    "002": {
        "autotune": ["Config", "PatternCache", "QDQAutotuner", "QDQAutotunerBase", "Region"],
        "autotune.workflows": [
            "benchmark_onnx_model", "init_benchmark_instance",
            "region_pattern_autotuning_workflow",
        ],
        "autotune.region_inspect": ["main"],
        "qdq_utils": ["get_quantized_tensors"],
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "module"), [(seed, module) for seed, each in NAMED.items() for module in each]
)
def test_named_modules(seed: str, module: str) -> None:
    found = importlib.import_module(f"qdqtune.{module}")
    for name in NAMED[seed][module]:
        assert callable(getattr(found, name)), name


def test_named_parameters() -> None:
    assert "export_profile_path" in inspect.signature(benchmark_onnx_model).parameters
    assert "export_profile_path" in inspect.signature(TrtExecBenchmark.run).parameters


def test_a_subgraph_by_its_boundaries() -> None:
    model = zoo.build("resnet18", width=8, image=32, blocks=(1, 1, 1, 1))
    nodes = {node.name: node for node in model.graph.node}
    add = next(node for node in model.graph.node if node.op_type == "Add")
    pool = next(node for node in model.graph.node if node.op_type == "MaxPool")
    before = model.SerializeToString()
    subgraph = extract_subgraph(model, [pool.output[0]], [add.output[0]])
    assert model.SerializeToString() == before
    onnx.checker.check_model(subgraph, full_check=True)
    assert {node.name for node in subgraph.graph.node} < set(nodes)
    assert [node.op_type for node in subgraph.graph.node].count("Conv") == 2

    whole = onnx.ModelProto.FromString(before)
    for name in (pool.output[0], add.output[0]):
        whole.graph.output.add().name = name
    image = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype(np.float32)
    session = onnxruntime.InferenceSession(whole.SerializeToString())
    pooled, added = session.run(
        [pool.output[0], add.output[0]], {session.get_inputs()[0].name: image}
    )
    alone = onnxruntime.InferenceSession(subgraph.SerializeToString())
    (found,) = alone.run(None, {pool.output[0]: pooled})
    np.testing.assert_allclose(found, added, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [(["none"], ["logits"], "no tensor 'none'"), ([], ["logits"], "also needs 'image'")],
)
def test_a_subgraph_that_there_is_not(inputs: list[str], outputs: list[str], message: str) -> None:
    model = zoo.build("resnet18", width=8, image=32, blocks=(1, 1, 1, 1))
    with pytest.raises(UsageError, match=message):
        extract_subgraph(model, inputs, outputs)


TINY = "g (float[1,16,8,8] x) => (float[1,16,8,8] y) { y = Conv<pads=[1,1,1,1]>(x, w) }"


def test_subgraph_workflow_and_profile(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(model_from_text(TINY, w=np.ones((16, 16, 3, 3), np.float32)), model)
    init_benchmark_instance(engine="simulated")
    final = subgraph_autotuning_workflow(model, tmp_path / "run", incremental_validation=False)
    assert Path(final) == tmp_path / "run" / "optimized_final.onnx"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["mode"] == "subgraph"

    profile = tmp_path / "new" / "profile.json"
    total = benchmark_onnx_model(final, export_profile_path=profile)
    assert math.isfinite(total)
    layers = parse_profile(profile.read_text())
    assert sum(ms for _, ms in layers) == pytest.approx(total, rel=0.5)
