from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from qdqtune.records._errors import UsageError
from qdqtune.zoo import ARCHITECTURES, build
from qdqtune.zoo.__main__ import main


def test_unknown_model_names_the_choices() -> None:
    with pytest.raises(UsageError, match=r"resnet19(.|\n)*resnet18, resnet34"):
        build("resnet19")


def test_unknown_setting_names_the_choices() -> None:
    with pytest.raises(UsageError, match=r"depth(.|\n)*blocks, width, image"):
        build("resnet18", depth=3)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("resnet18", {"width": 0}),
        ("resnet18", {"width": "64"}),
        ("resnet18", {"width": True}),
        ("resnet18", {"blocks": 2}),
        ("resnet18", {"blocks": (2, 0)}),
        ("resnet18", {"folded": 1}),
        ("resnet18", {"seed": -1}),
        ("mobilenet_v2", {"width": -0.5}),
        ("shufflenet_v2", {"width": 0.7}),
        ("vit", {"width": 100}),
        ("vit", {"image": 100}),
        ("bert", {"sequence": 513}),
        ("gpt", {"sequence": 1025}),
        ("convnext", {"depths": (2, 2)}),
        ("convnext", {"image": 8}),
        ("unet", {"image": 100}),
        ("yolo", {"image": 100}),
    ],
)
def test_senseless_settings_are_refused(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        build(name, **settings)


def test_command_writes_the_model_that_build_returns(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    sets = ["blocks=1,1", "width=8", "image=32", "folded=true"]

    code = main(["resnet18", "-o", str(path), "--seed", "5", *(f"--set={text}" for text in sets)])

    assert code == 0
    expected = build("resnet18", seed=5, blocks=(1, 1), width=8, image=32, folded=True)
    assert onnx.load(path) == expected


def test_command_refuses_to_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("mine")

    assert main(["chain", "-o", str(path)]) == 1
    assert "--force" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert main(["chain", "-o", str(path), "--force"]) == 0
    onnx.checker.check_model(onnx.load(path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "resnet18"),
        (["resnet19"], "resnet18"),
        (["resnet18", "--set", "depth=2"], "blocks"),
        (["resnet18", "--set", "width"], "key=value"),
        (["resnet18", "--set", "width=wide"], "whole number"),
        (["resnet18", "--set", "folded=perhaps"], "true or false"),
    ],
)
def test_command_says_what_is_wrong(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_command_reports_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert main(["chain", "-o", str(tmp_path / "nowhere" / "model.onnx")]) == 1


def test_module_lists_a_line_per_model() -> None:
    command = [sys.executable, "-m", "qdqtune.zoo", "--list"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    assert [line.split()[0] for line in lines] == list(ARCHITECTURES)
    assert all(len(line.split()) > 3 for line in lines)
