"""`insert --dynamic`: ops whose input is quantized at run time, without calibration."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from qdqtune import zoo
from qdqtune.cli.main import main
from qdqtune.graph._files import load_model
from qdqtune.qdq._read_back import read
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import CalibrationSource
from qdqtune.records._tuning import TuneEvent
from qdqtune.workflows._export import float_nodes
from qdqtune.workflows._insert import insert
from qdqtune.workflows._inspect import inspect
from qdqtune.workflows._source_model import open_source
from qdqtune.workflows._strip import strip

FC1, FC2 = "encoder.0.ffn.fc1.matmul", "encoder.0.ffn.fc2.matmul"
SCORES = "encoder.0.attention.scores"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bert") / "float.onnx"
    onnx.save(
        zoo.build("bert", layers=1, width=32, head_width=16, vocabulary=99, sequence=16), path
    )
    return path


def metadata(path: Path) -> dict[str, str]:
    return {each.key: each.value for each in onnx.load(path).metadata_props}


def nodes(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    return {each.name: each for each in model.graph.node}


def weights(model: onnx.ModelProto) -> dict[str, bytes]:
    initializers = model.graph.initializer
    return {each.name: onnx.numpy_helper.to_array(each).tobytes() for each in initializers}


def test_op_types_become_dynamic_without_calibration(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "dynamic.onnx"
    command = ["insert", str(bert), "--dynamic", "MatMul,Gemm", "-o", str(target)]
    assert main([*command, "--dialect", "onnxruntime"]) == 0
    out = capsys.readouterr().out
    assert "7 ops (7 dynamic), 0 tensors" in out
    assert "left float: 2 ops, its second operand is not a constant" in out
    assert "Calibrated" not in out
    assert metadata(target)["qdqtune.calibration"] == "none"
    placement = read(load_model(target)).placement
    assert len(placement.dynamic) == 7
    assert not placement.tensors


def test_no_sample_is_run_for_ranges(bert: Path, tmp_path: Path) -> None:
    events: list[TuneEvent] = []
    report = insert(
        bert, tmp_path / "dynamic.onnx", dynamic=["MatMul"], dialect="onnxruntime",
        callbacks=[events.append],
    )  # fmt: skip
    assert report.calibration is CalibrationSource.NONE
    assert "calibration" not in {event.stage for event in events}


def test_stripped_with_its_weights_it_is_the_float_model(bert: Path, tmp_path: Path) -> None:
    target = tmp_path / "dynamic.onnx"
    report = insert(bert, target, dynamic=["MatMul", "Gemm"], dialect="onnxruntime")
    stripped = strip(target, tmp_path / "float.onnx", weights_from=bert)
    assert stripped.placement == Placement(dynamic=frozenset(report.quantized))
    assert (stripped.rounded, stripped.left) == (0, 0)
    original, found = ir.to_proto(open_source(bert).model), onnx.load(tmp_path / "float.onnx")
    assert nodes(found) == nodes(original)
    assert weights(found) == weights(original)


@pytest.mark.parametrize("named", [{"nodes": [FC1], "dynamic": ["MatMul"]},
                                   {"ops": ["MatMul"], "dynamic": [FC1]}])  # fmt: skip
def test_a_node_goes_before_its_op_type(
    named: dict[str, list[str]], bert: Path, tmp_path: Path
) -> None:
    report = insert(bert, tmp_path / "q.onnx", dialect="onnxruntime", **named)
    dynamic = report.placement.dynamic
    static = {edge.node for edge in report.placement.edges if edge.position == 1}
    assert (FC1 in dynamic, FC2 in dynamic) == ("nodes" not in named, "nodes" in named)
    assert (FC1 in static, FC2 in static) == ("nodes" in named, "nodes" not in named)
    assert report.calibration is CalibrationSource.RANDOM


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"ops": ["MatMul"], "dynamic": ["MatMul"]}, "'MatMul' is named by --dynamic and by --ops"),
        ({"nodes": [FC1], "dynamic": [FC1]}, f"'{FC1}' is named by --dynamic and by --nodes"),
        (
            {"tensors": ["encoder.0.ffn.gelu.half_output"], "dynamic": ["MatMul"]},
            f"{FC2!r} is named by --dynamic, and would be calibrated",
        ),
        ({"dynamic": [SCORES]}, "can't be quantized at run time: its second operand"),
        ({"dynamic": ["Conv"]}, "no op type or node 'Conv'"),
    ],
)
def test_what_can_t_be_is_said(
    named: dict[str, list[str]], said: str, bert: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        insert(bert, tmp_path / "q.onnx", dialect="onnxruntime", **named)
    assert said in caught.value.what
    assert not (tmp_path / "q.onnx").exists()


def test_where_the_engine_does_it_weights_are_enough(bert: Path, tmp_path: Path) -> None:
    target = tmp_path / "openvino.onnx"
    report = insert(bert, target, dynamic=["MatMul"], dialect="openvino")
    assert FC1 in report.quantized
    assert not report.placement.dynamic
    assert {edge.position for edge in report.placement.edges} == {1}
    assert metadata(target)["qdqtune.calibration"] == "none"
    ops = [node.op_type for node in onnx.load(target).graph.node]
    assert ops.count("DequantizeLinear") == len(report.quantized)
    assert "QuantizeLinear" not in ops


@pytest.mark.parametrize("dialect", ["tensorrt", "tensorrt-8", "openvino-novnni"])
def test_dialects_without_it_name_those_that_have_it(
    dialect: str, bert: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=f"{dialect} dialect quantizes no inputs") as caught:
        insert(bert, tmp_path / "q.onnx", dynamic=["MatMul"], dialect=dialect)
    assert "onnxruntime, onnxruntime-novnni, openvino." in caught.value.hint


def test_a_dynamic_file_is_written_for_the_other_engine(bert: Path, tmp_path: Path) -> None:
    insert(bert, tmp_path / "ort.onnx", dynamic=["MatMul"], dialect="onnxruntime")
    report = insert(tmp_path / "ort.onnx", tmp_path / "ov.onnx", dialect="openvino")
    assert FC1 in report.quantized
    assert {edge.position for edge in report.placement.edges} == {1}
    assert report.calibration is CalibrationSource.NONE


def test_inspect_says_what_can_be_dynamic_and_what_is(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["inspect", str(bert), "--dialect", "onnxruntime"]
    assert main(line) == 0
    assert "7 can be quantized at run time (--dynamic)" in capsys.readouterr().out
    assert main([*line, "--why", "encoder.0.attention.norm_output"]) == 0
    assert "can be quantized at run time" in capsys.readouterr().out
    assert main([*line, "--why", "encoder.0.attention.softmax_output"]) == 0
    assert "not at run time: its second operand is not a constant" in capsys.readouterr().out
    path = tmp_path / "placement.json"
    path.write_text(Placement.of(dynamic=[FC1, FC2], unfused=["encoder.0.ffn.add"]).to_json())
    insert(bert, tmp_path / "q.onnx", placement=path, dialect="onnxruntime")
    report = inspect(tmp_path / "q.onnx", dialect="onnxruntime")
    assert (report.dynamic, report.unfused, report.pairs) == (2, 1, 0)


def test_dynamic_ops_are_not_listed_as_float(bert: Path, tmp_path: Path) -> None:
    insert(bert, tmp_path / "q.onnx", dynamic=[FC1], dialect="onnxruntime")
    listed = float_nodes(tmp_path / "q.onnx")
    assert FC1 not in listed
    assert FC2 in listed
    assert "encoder.0.ffn.fc1.add" in listed
