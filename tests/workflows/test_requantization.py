"""Models that are quantized already: understood, kept, written again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from qdqtune import zoo
from qdqtune.graph._files import load_model
from qdqtune.qdq._read_back import read
from qdqtune.records._errors import ModelError
from qdqtune.records._ranges import CalibrationSource
from qdqtune.workflows._insert import insert
from qdqtune.workflows._strip import strip


class Samples(CalibrationDataReader):
    def __init__(self, count: int = 4) -> None:
        rng = np.random.default_rng(0)
        self.left = [rng.normal(size=(1, 3, 32, 32)).astype(np.float32) for _ in range(count)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return {"image": self.left.pop()} if self.left else None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float model, and what ONNX Runtime's own tools make of it."""
    folder = tmp_path_factory.mktemp("models")
    source = folder / "float.onnx"
    onnx.save(zoo.build("resnet18", width=16, image=32), source)
    for form in QuantFormat:
        quantize_static(
            str(source), str(folder / f"{form.name}.onnx"), Samples(), quant_format=form,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, per_channel=True,
        )  # fmt: skip
    quantize_dynamic(str(source), str(folder / "dynamic.onnx"))
    return folder


def scales(path: Path) -> dict[str, np.ndarray]:
    return {name: encoding.scale for name, encoding in read(load_model(path)).encodings.items()}


@pytest.mark.parametrize("dialect", ["onnxruntime", "tensorrt", "tensorrt-8"])
def test_our_own_file_comes_out_the_same(dialect: str, folder: Path, tmp_path: Path) -> None:
    first, again = tmp_path / "first.onnx", tmp_path / "again.onnx"
    made = insert(folder / "float.onnx", first, ops=["Conv"], dialect=dialect)
    report = insert(first, again, dialect=dialect)
    assert report.placement.edges >= made.placement.edges
    assert min(report.sqnr_given_db.values()) > 60.0
    assert report.calibration is CalibrationSource.RANDOM  # as the file says
    before, after = scales(first), scales(again)
    assert before.keys() == after.keys()
    for name, scale in before.items():
        np.testing.assert_array_equal(scale, after[name])


@pytest.mark.parametrize("dialect", ["onnxruntime", "onnxruntime-novnni", "tensorrt", "tensorrt-8"])
def test_a_foreign_file_in_every_dialect(dialect: str, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "again.onnx"
    report = insert(folder / "QDQ.onnx", target, dialect=dialect)
    onnx.checker.check_model(str(target), full_check=True)
    convs = sum(node.op_type == "Conv" for node in onnx.load(folder / "float.onnx").graph.node)
    written = {node.name: node.op_type for node in onnx.load(target).graph.node}
    assert sum(written[name] == "Conv" for name in report.quantized) == convs
    assert report.scales_kept + report.ranges_kept >= convs
    assert min(report.sqnr_given_db.values()) > 10.0
    assert min(report.sqnr_db.values()) > 10.0


def test_foreign_scales_are_kept_exactly_where_the_dialect_is_the_same(
    folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "again.onnx"
    insert(folder / "QDQ.onnx", target, dialect="onnxruntime")
    before, after = scales(folder / "QDQ.onnx"), scales(target)
    shared = [name for name in after if name in before and before[name].dtype == np.float32]
    same = [np.array_equal(before[name], after[name]) for name in shared]
    assert len(shared) > 50
    assert sum(same) >= 0.95 * len(shared)  # copies take the scale of what they copy


def test_a_choice_takes_what_it_names_with_the_scales_of_the_file(
    folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "some.onnx"
    first = next(node.name for node in onnx.load(folder / "QDQ.onnx").graph.node
                 if node.op_type == "Conv")  # fmt: skip
    report = insert(folder / "QDQ.onnx", target, nodes=[first], dialect="tensorrt")
    assert report.quantized == (first,)
    assert (report.scales_kept, report.ranges_kept) == (0, 1)  # uint8 with a zero point
    assert report.calibration is CalibrationSource.GIVEN


@pytest.mark.parametrize(
    ("file", "said"), [("QOperator.onnx", "QOperator format"), ("dynamic.onnx", "dynamically")]
)
def test_other_ways_to_quantize_get_a_clear_message(
    file: str, said: str, folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "no.onnx"
    for attempt in (
        lambda: insert(folder / file, target, ops=["Conv"]),
        lambda: strip(folder / file, target),
    ):
        with pytest.raises(ModelError) as caught:
            attempt()
        assert said in caught.value.what
        assert "float model" in caught.value.hint
    assert not target.exists()


@pytest.mark.parametrize("dialect", ["onnxruntime", "tensorrt", "tensorrt-8"])
def test_stripping_gives_the_model_back(dialect: str, folder: Path, tmp_path: Path) -> None:
    source, quantized = folder / "float.onnx", tmp_path / "q.onnx"
    insert(source, quantized, ops=["Conv", "Gemm"], dialect=dialect)
    plain, exact = tmp_path / "plain.onnx", tmp_path / "exact.onnx"
    rounded = strip(quantized, plain).rounded
    assert bool(rounded) == (dialect != "tensorrt-8")
    report = strip(
        quantized, exact, weights_from=source, save_placement=tmp_path / "placement.json"
    )
    assert report.rounded == 0
    again = insert(
        exact, tmp_path / "q2.onnx", placement=tmp_path / "placement.json", dialect=dialect
    )
    assert again.placement == report.placement
