"""The benchmarks build the models that are named, and quantize them as they say."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from benchmarks.blankets import (
    ALL_BLANKETS,
    model_file,
    split_models,
    write_blanket,
    write_blankets,
    write_folded,
)

from qdqtune import zoo
from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.graph._files import load_model
from qdqtune.graph._index import GraphIndex

SETTINGS = {"layers": 1, "width": 32, "head_width": 16, "sequence": 8, "vocabulary": 50}


@pytest.mark.parametrize(
    ("text", "models"),
    [
        ("vit", ["vit"]),
        ("vit,folder/model.onnx,bert", ["vit", "folder/model.onnx", "bert"]),
        ("bert:layers=12,width=256,vit", ["bert:layers=12,width=256", "vit"]),
        ("bert:layers=4,gpt:layers=2,width=64", ["bert:layers=4", "gpt:layers=2,width=64"]),
        ("resnet18:blocks=1,2,width=8,vit", ["resnet18:blocks=1,2,width=8", "vit"]),
    ],
)
def test_commas_separate_models_and_their_settings(text: str, models: list[str]) -> None:
    assert split_models(text) == models


def test_a_zoo_model_has_the_settings_that_follow_its_name(tmp_path: Path) -> None:
    path = model_file("resnet18:blocks=1,2,width=8,image=32,folded=true", tmp_path)

    expected = zoo.build("resnet18", blocks=(1, 2), width=8, image=32, folded=True)
    assert onnx.load(path) == expected


@pytest.mark.parametrize(
    ("label", "dtype", "is_per_channel"),
    [
        ("dynamic s8 per channel", onnx.TensorProto.INT8, True),
        ("dynamic s8", onnx.TensorProto.INT8, False),
        ("dynamic u8", onnx.TensorProto.UINT8, False),
    ],
)
def test_dynamic_blankets_quantize_to_what_they_are_called(
    label: str, dtype: int, is_per_channel: bool, tmp_path: Path
) -> None:
    onnx.save(zoo.build("gpt", **SETTINGS), tmp_path / "model.onnx")

    path = write_blanket(
        tmp_path / "model.onnx", tmp_path / "quantized.onnx", ALL_BLANKETS[label], iter(())
    )

    graph = onnx.load(path).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMulInteger"]
    assert len(products) == 5
    for node in products:
        weight, zero_point = (constants[node.input[place]] for place in (1, 3))
        assert weight.data_type == dtype
        assert bool(zero_point.dims and zero_point.dims[0] > 1) == is_per_channel


def test_every_blanket_takes_a_folded_model_with_a_gemm(tmp_path: Path) -> None:
    path = model_file("vit:layers=1,width=32,head_width=16,image=32,classes=10", tmp_path)
    folded = write_folded(path, tmp_path / "folded.onnx")
    index = GraphIndex(load_model(folded))

    written = write_blankets(folded, lambda: random_inputs(index, 1), tmp_path, ALL_BLANKETS)

    assert set(written) == set(ALL_BLANKETS)
