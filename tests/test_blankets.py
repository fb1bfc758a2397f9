"""The benchmarks build the models that are named."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from benchmarks.blankets import model_file, split_models

from qdqtune import zoo


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
