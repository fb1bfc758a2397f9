"""The search and the workflows don't know one engine from another; a lint rule holds it."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
LINT: dict[str, Any] = runpy.run_path(str(ROOT / "tools" / "lint_engine_names.py"))
find_names: Callable[[Path], list[tuple[Path, int, str]]] = LINT["find_names"]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Two layers in which every name is used that is allowed."""
    for layer in LINT["LAYERS"]:
        (tmp_path / layer / "inner").mkdir(parents=True)
    (tmp_path / "workflows" / "guides.py").write_text("\n".join(LINT["ALLOWED"]) + "\n")
    return tmp_path


def test_no_room_names_an_engine() -> None:
    assert find_names(ROOT / "src" / "qdqtune") == []


def test_it_is_a_part_of_linting() -> None:
    assert "tools/lint_engine_names.py" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("layer", LINT["LAYERS"])
@pytest.mark.parametrize(
    ("line", "word"),
    [
        ('name = "onnxruntime"', "onnxruntime"),
        ("import openvino", "openvino"),
        ("from qdqtune.engines.tensorrt.rtx_builds import accepts", "tensorrt"),
        ("from qdqtune.qdq.dialects import OPENVINO_NO_VNNI", "OPENVINO_NO_VNNI"),
        ("is_tensorrt = True", "is_tensorrt"),
        ("# ONNX Runtime has no such kernel", "ONNX Runtime"),
        ("# a kernel that is not there in ONNX\n# Runtime", "ONNX # Runtime"),
        ('"""Speaks to ONNX\n   Runtime."""', "ONNX Runtime"),
        ('name = f"{1}trtexec"', "trtexec"),
        ('name = "open" "vino"', "openvino"),
        ("trtexec_arguments = ()", "trtexec_arguments"),
        ("simulated = False", "simulated"),
    ],
)
def test_whatever_names_one_is_found(package: Path, layer: str, line: str, word: str) -> None:
    planted = package / layer / "inner" / "planted.py"
    planted.write_text(f"a = 1\n{line}\n")
    assert find_names(package) == [(planted, 2, word)]


def test_a_file_named_after_one_is_found(package: Path) -> None:
    planted = package / "autotune" / "openvino_rules.py"
    planted.write_text("")
    assert find_names(package) == [(planted, 0, "openvino_rules.py")]


def test_other_rooms_and_names_that_must_exist_are_left_alone(package: Path) -> None:
    (package / "engines").mkdir()
    (package / "engines" / "openvino.py").write_text("import openvino\n")
    assert find_names(package) == []


def test_a_name_that_is_allowed_for_nothing_is_found(package: Path) -> None:
    shutil.rmtree(package / "workflows")
    assert {word.split()[0] for _, _, word in find_names(package)} == set(LINT["ALLOWED"])
