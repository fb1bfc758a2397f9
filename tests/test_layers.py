"""Search and workflows name no engine, and classes stay small."""

from __future__ import annotations

import ast
import re
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


def test_no_layer_names_an_engine() -> None:
    assert find_names(ROOT / "src" / "qdqtune") == []


def test_it_is_a_part_of_linting() -> None:
    assert "tools/lint_engine_names.py" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("layer", LINT["LAYERS"])
@pytest.mark.parametrize(
    ("line", "word"),
    [
        ('name = "onnxruntime"', "onnxruntime"),
        ("import openvino", "openvino"),
        ("from qdqtune.engines.tensorrt._engine import accepts", "tensorrt"),
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


def test_other_layers_and_names_that_must_exist_are_left_alone(package: Path) -> None:
    (package / "engines").mkdir()
    (package / "engines" / "openvino.py").write_text("import openvino\n")
    assert find_names(package) == []


def test_a_name_that_is_allowed_for_nothing_is_found(package: Path) -> None:
    shutil.rmtree(package / "workflows")
    assert {word.split()[0] for _, _, word in find_names(package)} == set(LINT["ALLOWED"])


MOST_ARGUMENTS, MOST_ATTRIBUTES = 8, 12
LARGE_CLASSES = {"search/_config.py:Config"}  # the guides' own list of settings


def large_classes(package: Path) -> set[str]:
    """Classes with many constructor arguments or attributes that are not frozen records."""
    return {
        f"{file.relative_to(package)}:{node.name}"
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and is_large(node)
    }


def is_large(node: ast.ClassDef) -> bool:
    decorators = [
        ast.unparse(each) for each in node.decorator_list if "dataclass" in ast.unparse(each)
    ]
    if any("frozen=True" in each for each in decorators):
        return False
    fields = [
        each
        for each in node.body
        if isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.unparse(each.annotation)
    ]
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    attributes = {
        each.attr
        for method in methods
        for each in ast.walk(method)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and ast.unparse(each.value) == "self"
    }
    arguments = [
        argument
        for method in methods
        if method.name == "__init__"
        for argument in (*method.args.posonlyargs, *method.args.args[1:], *method.args.kwonlyargs)
    ]
    if decorators:
        attributes |= {ast.unparse(each.target) for each in fields}
        made = [each for each in fields if "init=False" not in ast.unparse(each)]
        return len(made) > MOST_ARGUMENTS or len(attributes) > MOST_ATTRIBUTES
    return len(arguments) > MOST_ARGUMENTS or len(attributes) > MOST_ATTRIBUTES


def test_only_frozen_records_have_many_attributes() -> None:
    assert large_classes(ROOT / "src" / "qdqtune") == LARGE_CLASSES


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("class A:\n def __init__(self, {arguments}): pass", True),
        ("class A:\n def __init__(self, *, {arguments}): pass", True),
        ("class A:\n def f(self):\n  {attributes}", True),
        ("@dataclass\nclass A:\n {fields}", True),
        ("@dataclass(frozen=True)\nclass A:\n {fields}", False),
        ("class A(Protocol):\n {fields}", False),
    ],
)
def test_a_class_that_grows_is_found(tmp_path: Path, text: str, is_found: bool) -> None:
    def planted(arguments: int, attributes: int) -> set[str]:
        names = [f"a{number}" for number in range(max(arguments, attributes))]
        source = text.format(
            arguments=", ".join(names[:arguments]),
            attributes="\n  ".join(f"self.{name} = 0" for name in names[:attributes]),
            fields="\n ".join(f"{name}: int" for name in names[:arguments]),
        )
        (tmp_path / "planted.py").write_text(source)
        return large_classes(tmp_path)

    assert planted(MOST_ARGUMENTS, MOST_ATTRIBUTES) == set()
    found = planted(MOST_ARGUMENTS + 1, MOST_ATTRIBUTES + 1)
    assert found == ({"planted.py:A"} if is_found else set())


def test_every_path_and_name_in_the_guide_to_the_code_exists() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where is it done?")[2]
    lines = guide.partition("\n## ")[0].splitlines()
    rows = [line for line in lines if line.startswith("| ") and "what you are" not in line]
    assert len(rows) >= 15
    package = ROOT / "src" / "qdqtune"
    for row in rows:
        words = re.findall(r"`([\w/.]+)`", row.split("|")[2])
        paths = [word for word in words if "/" in word or word.endswith((".py", ".md"))]
        folder = (package / paths[0]).parent
        places = {path: [each / path for each in (package, folder, ROOT)] for path in paths}
        found = {path: [each for each in places[path] if each.exists()] for path in paths}
        assert [path for path in paths if not found[path]] == []
        files = [each for paths in found.values() for each in paths if each.is_file()]
        code = "\n".join(file.read_text() for file in files)
        names = [word for word in words if word not in paths]
        assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []
