"""What a subgraph spends at its borders is told apart from its work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tests.conftest import model_from_text
from tests.cutting import Cut, cut, cut_zoo, layers_of

from qdqtune.engines import _registry as registry
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._worker import Worker
from qdqtune.engines.layers._latency import Borders, split_at_borders
from qdqtune.engines.tensorrt._layer_info import read_layer_info
from qdqtune.engines.tensorrt._layer_naming import layer_times_of
from qdqtune.graph._index import GraphIndex
from qdqtune.records._measurement import LayerTime
from qdqtune.search.subgraphs._quantizable_groups import placement_inside

TEXT = """g (float[1,32,32,32] x) => (float[1,32,32,32] y) {
    a = Conv<pads=[1,1,1,1]>(x, w)
    y = Relu(a)
}"""


def conv(folder: Path, dialect: str = "onnxruntime") -> Cut:
    weights = np.random.default_rng(0).normal(size=(32, 32, 3, 3)).astype(np.float32) / 17
    made = cut(model_from_text(TEXT, w=weights), folder, dialect)
    made.inserter.encoder.ranges.by_tensor["y"] = (0.0, 1.0)  # type: ignore[index]
    return made


def quantized(made: Cut) -> GraphIndex:
    return GraphIndex(made.inserter.model(made.planner.placement(made.planner.units)))


def layer(name: str, op_type: str, ms: float, reads: str, makes: str, **more: Any) -> LayerTime:
    return LayerTime(
        name, op_type, ms, origins=(name,), inputs=(reads,), outputs=(makes,), **more,
    )  # fmt: skip


Q = layer("x_QuantizeLinear", "QuantizeLinear", 1.0, "x", "x_quantized")
DQ = layer("y_DequantizeLinear", "DequantizeLinear", 2.0, "y_quantized", "y")
IN = layer("Transpose", "Transpose", 4.0, "x_quantized", "t")
KERNEL = layer("n0", "QLinearConv", 8.0, "t", "k", precision="uint8")
OUT = layer("Transpose_1", "Transpose", 16.0, "k", "y_quantized")


@pytest.mark.parametrize("fewer", [(), ("Transpose_1",), ("Transpose", "Transpose_1")])
def test_layouts_count_on_either_side_of_the_conversions(
    tmp_path: Path, fewer: tuple[str, ...]
) -> None:
    layers = [each for each in (Q, IN, KERNEL, OUT, DQ) if each.name not in fewer]
    found = split_at_borders(quantized(conv(tmp_path)), layers, ["x"], ["y"])
    assert found.conversion_ms == {"x": 1.0, "y": 2.0}
    assert found.layout_ms == {
        tensor: each.ms for tensor, each in (("x", IN), ("y", OUT)) if each in layers
    }
    assert found.inside_ms == 8.0
    assert found.total_ms == sum(each.ms for each in layers)


def test_layouts_between_kernels_are_work(tmp_path: Path) -> None:
    text = TEXT.replace("y = Relu(a)", "b = Conv<pads=[1,1,1,1]>(a, w) y = Relu(b)")
    weights = np.ones((32, 32, 3, 3), np.float32)
    index = GraphIndex(cut(model_from_text(text, w=weights), tmp_path).index.model)
    layers = [
        layer("ReorderInput", "ReorderInput", 1.0, "x", "r0"),
        layer("n0", "Conv", 2.0, "r0", "r1"),
        layer("ReorderOutput", "ReorderOutput", 4.0, "r1", "r2"),
        layer("ReorderInput_1", "ReorderInput", 8.0, "r2", "r3"),
        layer("n1", "Conv", 16.0, "r3", "r4"),
        layer("ReorderOutput_1", "ReorderOutput", 32.0, "r4", "y"),
    ]
    found = split_at_borders(index, layers, ["x"], ["y"])
    assert found == Borders(2.0 + 4.0 + 8.0 + 16.0, {}, {"x": 1.0, "y": 32.0})


def test_several_changes_in_a_row_belong_to_the_same_border(tmp_path: Path) -> None:
    index = conv(tmp_path).index
    layers = [
        layer("first", "Reorder", 1.0, "x output 0", "first output 0"),
        layer("second", "Reorder", 2.0, "first output 0", "second output 0"),
        layer("n0", "Convolution", 4.0, "second output 0", "n0 output 0"),
        layer("third", "Reorder", 8.0, "n0 output 0", "third output 0"),
        layer("n0_y/sink_port_0", "Reorder", 16.0, "third output 0", "n0_y/sink_port_0 output 0"),
    ]
    found = split_at_borders(index, layers, ["x"], ["y"])
    assert found == Borders(4.0, {}, {"x": 3.0, "y": 24.0})


def test_a_change_of_float_types_is_none_of_q_and_dq(tmp_path: Path) -> None:
    """OpenVINO computes in bfloat16 on some CPUs: what comes in is float32 all the same."""
    index = conv(tmp_path).index
    layers = [
        layer("r0", "Reorder", 1.0, "x output 0", "r0 output 0", precision="float32"),
        layer("n0", "Convolution", 4.0, "r0 output 0", "n0 output 0", precision="bfloat16"),
        layer("n0_y/sink_port_0", "Reorder", 8.0, "n0 output 0", "y", precision="float32"),
    ]
    found = split_at_borders(index, layers, ["x"], ["y"])
    assert found == Borders(4.0, {}, {"x": 1.0, "y": 8.0})


def test_of_several_outputs_the_one_is_taken_that_the_name_tells(tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[4] y, float[4] y2) { y = Relu(x) y2 = Neg(y) }"
    proto = onnx.shape_inference.infer_shapes(model_from_text(text))
    index = cut(proto, tmp_path).index
    layers = [
        layer("n0", "Relu", 1.0, "x", "a"),
        layer("n1", "Neg", 2.0, "a", "b"),
        layer("b_y2/sink", "Reorder", 4.0, "b", "b_y2/sink"),
    ]
    assert split_at_borders(index, layers, ["x"], ["y", "y2"]).layout_ms == {"y2": 4.0}


def test_weights_that_are_dequantized_in_every_run_are_work(tmp_path: Path) -> None:
    weight = layer("w_DequantizeLinear", "DequantizeLinear", 4.0, "w_quantized", "w_dequantized")
    layers = [Q, weight, KERNEL, DQ]
    found = split_at_borders(quantized(conv(tmp_path)), layers, ["x"], ["y"])
    assert found == Borders(12.0, {"x": 1.0, "y": 2.0}, {})


def test_no_layers_are_no_time(tmp_path: Path) -> None:
    assert split_at_borders(conv(tmp_path).index, [], ["x"], ["y"]) == Borders()


@pytest.mark.parametrize("name", ["resnet18", "bert"])
def test_all_the_time_of_a_subgraph_is_somewhere_and_only_at_its_borders(
    name: str, tmp_path: Path
) -> None:
    made = cut_zoo(name, tmp_path)
    converted = 0
    for subgraph in made.subgraphs:
        content = subgraph.content
        inserter = made.inserter.of_part(made.extracted(content))
        full = placement_inside(
            subgraph.schemes[0].placement(content, made.planner), content, made.planner
        )
        layers = layers_of(inserter.proto(full), made.profile)
        found = split_at_borders(
            GraphIndex(inserter.model(full)), layers, content.inputs, content.outputs
        )
        assert found.total_ms == pytest.approx(sum(each.ms for each in layers))
        assert {*found.conversion_ms, *found.layout_ms} <= {*content.inputs, *content.outputs}
        told = [each for each in layers if each.op_type in ("QuantizeLinear", "DequantizeLinear")]
        at_border = {e.tensor for e in full.edges} & {*content.inputs, *content.outputs}
        assert found.conversion_ms.keys() <= at_border
        converted += len(told)
        plain = layers_of(inserter.proto(type(full)()), made.profile)
        as_float = split_at_borders(inserter.index, plain, content.inputs, content.outputs)
        assert not as_float.conversion_ms
    assert converted > 3


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("onnxruntime", {}),
        ("openvino", {}),
        ("openvino", {"inference_precision": "f32"}),
        ("openvino", {"max_cpu_isa": "AVX2"}),
    ],
)
def test_a_real_engine_shows_where_it_converts(
    engine: str, options: dict[str, str], tmp_path: Path
) -> None:
    if not registry.available(engine).usable:
        pytest.skip(f"{engine} is not installed")
    made = conv(tmp_path, engine)
    content = made.content("n0", "n1")
    inserter = made.inserter.of_part(made.extracted(content))
    feeds = {"x": np.random.default_rng(0).uniform(-1, 1, (1, 32, 32, 32)).astype(np.float32)}
    found = {}
    with Worker(engine, SessionOptions(threads=1, engine_options=options)) as worker:
        for names in ((), tuple(made.planner.units)):
            whole = made.planner.placement(names)
            places = placement_inside(whole, content, made.planner)
            model = worker.open(inserter.write(places, "subgraph"))
            worker.feed(model, feeds)
            layers = worker.layers(model, 4)
            index = GraphIndex(inserter.model(places))
            found[bool(names)] = split_at_borders(index, layers, ["x"], ["y"])
            assert found[bool(names)].total_ms == pytest.approx(sum(each.ms for each in layers))
    assert not found[False].conversion_ms
    assert found[False].layout_ms.keys() <= {"x", "y"}
    assert "x" in found[True].conversion_ms
    # Whatever it takes, the Conv is not among what borders cost.
    assert all(each.inside_ms > 0.0 for each in found.values())


@pytest.mark.parametrize(("model", "layers", "inside"), [("encoder", 3, 1), ("resnet18", 59, 57)])
def test_reformats_of_real_inputs_and_outputs_are_no_work(
    model: str, layers: int, inside: int
) -> None:
    """TensorRT 8.6 reads and writes float32, and computes in float16: each layer takes 1 ms."""
    folder = Path(__file__).parents[1] / "data" / "tensorrt" / "trt860_h200"
    listed = read_layer_info(folder / f"{model}.fp16.graph.json")
    file = folder / f"{model}.onnx"
    times = layer_times_of(str(file), listed, [(each.name, 1.0) for each in listed])
    index = GraphIndex(ir.from_proto(onnx.load(file, load_external_data=False)))
    found = split_at_borders(index, times, ["x"], ["y"])
    assert len(times) == layers
    assert found == Borders(float(inside), {}, {"x": 1.0, "y": 1.0})
