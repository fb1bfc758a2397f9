from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune import zoo
from qdqtune.graph._index import GraphIndex
from qdqtune.records._errors import EngineError, ModelError, QdqtuneError, UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._layers import NAMED, GroupRecord, GroupsRecord, MappedLayer
from qdqtune.records._measurement import EngineInfo, LayerTime
from qdqtune.report._inspection import groups_text
from qdqtune.search.subgraphs._fusion_groups import FusionGroup, fusion_groups
from qdqtune.workflows._inspect import groups_of
from qdqtune.workflows.tuning._layer_groups import layers_in_file, shared_layers, spent_by_group
from tests.conftest import model_from_text

DATA = Path(__file__).parents[1] / "data" / "tensorrt" / "rtx171"
ENGINE = EngineInfo("onnxruntime", "1", "a cpu", "avx2", threads=1)


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "resnet.onnx"
    onnx.save(zoo.build("resnet18", blocks=(1, 1), width=16, image=32), path)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Open in N; with a BatchNorm that is folded, and a Shape that is known once N is."""
    text = """
    g (float[N,4,8,8] x) => (float[N,4,8,8] y) {
        c = Conv(x, w)
        b = BatchNormalization(c, v, v, v, v)
        d = Relu(b)
        s = Shape(x)
        y = Reshape(d, s)
    }"""
    proto = model_from_text(text, w=np.ones((4, 4, 3, 3), np.float32), v=np.ones(4, np.float32))
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute("pads", [1, 1, 1, 1]))
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino", "simulated"])
def test_groups_of_a_model(resnet: Path, engine: str) -> None:
    if engine == "openvino":
        pytest.importorskip("openvino")
    record = groups_of(resnet, engine=engine, threads=1, runs=2)
    assert record.engine is not None
    assert record.engine.name == record.source == engine
    assert sum(len(group.nodes) for group in record.groups) == record.nodes
    assert record.structural == record.unmentioned == 0
    assert record.covered == 1.0
    assert sum(group.share or 0.0 for group in record.groups) == pytest.approx(1.0)
    ops = {group.op_types for group in record.groups}
    assert ops >= {("Conv", "Relu"), ("Conv", "Add", "Relu"), ("MaxPool",), ("Gemm",)}
    convolutions = [group for group in record.groups if "Conv" in group.op_types]
    assert all(group.quantizable and group.layers for group in convolutions)


def test_equal_groups_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(zoo.build("resnet18", blocks=(3,), width=16, image=32), path)
    record = groups_of(path, engine="simulated", runs=1)
    alike = {group.op_types: group.alike for group in record.groups if group.number > 1}
    assert alike["Conv", "Relu"] == 3
    assert record.distinct == len({group.key for group in record.groups})
    assert sum(1 / group.alike for group in record.groups) == pytest.approx(record.distinct)


def test_a_model_is_cleaned_up_first(model: Path) -> None:
    inputs = InputRequest(dims={"N": 2})
    record = groups_of(model, engine="simulated", inputs=inputs, runs=1)
    assert record.groups[0].op_types[:2] == ("Conv", "Relu")
    assert record.nodes < 5


def test_pairs_are_taken_out() -> None:
    record = groups_of(DATA / "int8pc.onnx", engine="onnxruntime", runs=1)
    ops = {op for group in record.groups for op in group.op_types}
    assert ops == {"Add", "Conv", "Relu"}


def layer_info(path: Path, *names: str) -> Path:
    path.write_text(json.dumps({"Layers": list(names), "Bindings": ["x", "y"]}))
    return path


def test_groups_by_a_file(model: Path, tmp_path: Path) -> None:
    file = layer_info(tmp_path / "layers.json", "n0 + n1 + n2", "n4")
    record = groups_of(model, graph_json=file, inputs=InputRequest(dims={"N": 2}))
    assert record.engine is None
    assert record.source == str(file)
    assert record.dialect == "tensorrt"
    assert [group.nodes for group in record.groups] == [("n0", "n1", "n2"), ("n3",), ("n4",)]
    assert [group.structural for group in record.groups] == [False, True, False]
    assert record.unmentioned == 1
    assert record.total_ms is None
    text = groups_text(record, by_time=False, max_items=0)
    assert "share" not in text
    assert "80.0 % of the nodes are in layers, 1 in none" in text


@pytest.mark.parametrize(
    ("names", "share"),
    [
        (["n0 + n1 + n2", "n4"], ""),
        (["n0", "n1"], ""),
        (["n0", "n3"], "1 of 4 ops that compute (25 %)"),
    ],
)
def test_a_file_that_mentions_little_is_doubted(
    names: list[str], share: str, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What only makes up a shape, as n3 does, is in no layer of an engine, and does not count."""
    file = layer_info(tmp_path / "layers.json", *names)
    with caplog.at_level(logging.WARNING, logger="qdqtune"):
        groups_of(model, graph_json=file, inputs=InputRequest(dims={"N": 2}))
    assert ("is it of this model?" in caplog.text) is bool(share)
    assert share in caplog.text


def test_a_file_of_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    file = layer_info(tmp_path / "layers.json", "conv_a + relu_a", "n3")
    with pytest.raises(UsageError, match=r"layers\.json mentions an op of the model: is it of"):
        groups_of(model, graph_json=file, inputs=InputRequest(dims={"N": 2}))


def test_quantized_models_and_their_files_fit(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="qdqtune"):
        for name in ("tfm_int8", "int8pc"):
            for file in DATA.glob(f"{name}.*.layers.txt"):
                groups_of(DATA / f"{name}.onnx", graph_json=file)
    assert caplog.text == ""


def test_the_time_of_a_layer_is_divided_by_nodes() -> None:
    groups = [FusionGroup(0, ("a", "b", "c"), (0, 1)), FusionGroup(1, ("d",), (0, 2, 3)),
              FusionGroup(2, ("e",), (3,))]  # fmt: skip
    nodes = [("a", "b", "d"), ("c",), ("d",), ()]
    layers = [
        MappedLayer(f"l{number}", "", ms, "", nodes[number])
        for number, ms in enumerate((6.0, 1.0, 2.0, 3.0))
    ]
    assert spent_by_group(groups, layers) == [5.0, 5.5, 1.5]


def test_groups_of_a_compiled_encoder() -> None:
    file = DATA / "tfm_int8.sm89.layers.txt"
    record = groups_of(DATA / "tfm_int8.onnx", graph_json=file)
    assert record.structural == 0
    computing = [
        [op for op in group.op_types if not op.endswith("Linear")] for group in record.groups
    ]
    moved = ["MatMul", "Add", "Reshape", "Transpose"]
    assert computing == [
        ["LayerNormalization"],
        moved * 3,
        ["MatMul", "Mul", "Softmax", "MatMul", "Transpose", "Reshape"],
        ["MatMul", "Add", "Add", "LayerNormalization"],
        ["MatMul", "Add", "Gelu"],
        ["MatMul", "Add", "Add"],
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"engine": "nope"}, UsageError, "Unknown engine"),
        ({"engine": "simulated", "runs": 0}, UsageError, "runs must be"),
        ({"engine": "simulated", "quant_type": "int3"}, UsageError, "int3"),
        ({"graph_json": "missing.json", "quant_type": "int3"}, UsageError, "int3"),
        (
            {"engine": "onnxruntime", "engine_options": {"depth": "3"}},
            UsageError,
            "unknown option 'depth'",
        ),
        ({"engine": "simulated", "inputs": InputRequest(dims={"M": 2})}, QdqtuneError, "M"),
        ({"graph_json": "missing.json"}, UsageError, "missing.json"),
    ],
)
def test_mistakes_are_told(
    model: Path, arguments: dict[str, object], error: type[QdqtuneError], text: str
) -> None:
    with pytest.raises(error, match=text):
        groups_of(model, **arguments)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"Layers": 3}', "null", "\x00\xff", '["a", 1'])
def test_a_broken_file_is_told(model: Path, content: str, tmp_path: Path) -> None:
    file = tmp_path / "layers.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=r"layers\.json"):
        groups_of(model, graph_json=file)


def test_the_users_own_file_is_named_when_the_engine_refuses(tmp_path: Path) -> None:
    proto = zoo.build("resnet18", blocks=(1,), width=8, image=32)
    proto.graph.node[0].domain = "nobodys"
    proto.opset_import.append(onnx.helper.make_opsetid("nobodys", 1))
    path = tmp_path / "odd.onnx"
    onnx.save(proto, path)
    with pytest.raises(EngineError, match=r"does not report the layers of .*odd\.onnx"):
        groups_of(path, engine="onnxruntime")
    with pytest.raises(ModelError, match="does not exist"):
        groups_of(tmp_path / "nothing.onnx", engine="onnxruntime")


def group(number: int, ms: float | None, *op_types: str, **values: object) -> GroupRecord:
    names = tuple(f"n{number}.{place}" for place in range(len(op_types)))
    share = None if ms is None else ms / 4
    record = GroupRecord(number, names, op_types, ("a", "b"), ms, share, False, 1, 1, f"k{number}")
    return replace(record, **values)


GROUPS = (
    group(0, 1.0, "Constant", "Conv", "Relu"),
    group(1, 3.0, *["Mul"] * 7, key="k0", layers=("x" * 80,)),
    group(2, 0.0, "QuantizeLinear", layers=(), structural=True, quantizable=0),
)
RECORD = GroupsRecord("m.onnx", ENGINE, "onnxruntime", "onnxruntime", 11, 1, GROUPS)


@pytest.mark.parametrize(
    ("by_time", "max_items", "expected"),
    [(False, 0, ["0", "1", "2"]), (True, 0, ["1", "0", "2"]), (True, 1, ["1"])],
)
def test_the_table(by_time: bool, max_items: int, expected: list[str]) -> None:
    lines = groups_text(RECORD, by_time=by_time, max_items=max_items).splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("-----"))
    rows = lines[head + 1 : head + 1 + len(expected)]
    assert [row.split()[0] for row in rows] == expected
    assert ("and 2 more groups: --max_items 0 shows all" in lines) == (max_items == 1)
    assert lines[1] == "m.onnx: 11 nodes in 3 groups, 4.000 ms per run"
    assert lines[-3:] == [
        "3 groups, 2 distinct; 1 by structure alone",
        "90.9 % of the nodes are in layers, 1 in none",
        "2 groups with ops that onnxruntime can quantize, 100.0 % of the time",
    ]


def test_cells_stay_short() -> None:
    text = groups_text(RECORD, by_time=False, max_items=0)
    assert "Conv + Relu  " in text
    assert "Mul + Mul + Mul + Mul + Mul + 2 more" in text
    assert "QuantizeLinear" in text
    assert "a and 1 more" in text
    assert "(none)" in text
    assert max(map(len, text.splitlines())) < 140


def test_the_json_form() -> None:
    value = json.loads(json.dumps(RECORD.to_dict()))
    assert (value["kind"], value["schema"]) == ("groups", 1)
    assert value["engine"]["name"] == "onnxruntime"
    assert value["distinct"] == 2
    assert value["total_ms"] == 4.0
    assert value["groups"][1]["op_types"] == ["Mul"] * 7
    assert replace(RECORD, engine=None).to_dict()["engine"] is None


def test_groups_of_one_compiled_part_share_its_time() -> None:
    layers = [
        MappedLayer(name, "", ms, "", (node,), how=NAMED)
        for name, ms, node in (("part#0", 3.0, "a"), ("part#1", 1.0, "b"), ("conv", 2.0, "c"),
                               ("idle#0", 0.0, "d"), ("idle#1", 0.0, "e"))
    ]  # fmt: skip
    groups = [FusionGroup(n, (layer.nodes[0],), (n,)) for n, layer in enumerate(layers)]
    groups.append(FusionGroup(5, ("f",)))
    assert shared_layers(groups, layers) == ["part", "part", "", "", "", ""]


def test_all_groups_of_a_real_encoder_share_the_time_of_the_whole() -> None:
    """TensorRT 8.6 compiles it as one layer."""
    folder = DATA.parent / "trt860_h200"
    proto = onnx.load(folder / "encoder.onnx", load_external_data=False)
    index = GraphIndex(ir.from_proto(proto))
    name = "{ForeignNode[layers.0.n1.weight...(Unnamed Layer* 460) [Normalization]]}"
    layers = layers_in_file(index, folder / "encoder.fp16.graph.json", [LayerTime(name, "", 0.8)])
    assert layers is not None
    groups = fusion_groups(index, layers)
    parts = shared_layers(groups, layers)
    assert parts.count(name) > 20
    assert set(parts) <= {name, ""}
    timed = [ms for ms, part in zip(spent_by_group(groups, layers), parts, strict=True) if part]
    assert sum(timed) == pytest.approx(0.8)
