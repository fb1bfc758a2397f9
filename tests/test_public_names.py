"""What users import: declared once, listed in the docs, and enough for every example."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import qdqtune

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGES = [
    "qdqtune",
    *(
        module.name
        for module in pkgutil.walk_packages(qdqtune.__path__, "qdqtune.")
        if module.ispkg
    ),
]
MOST_MODULES = 12


def listed() -> dict[str, set[str]]:
    """The table of docs/reference/python.md: a module's name to what it offers."""
    text = (ROOT / "docs" / "reference" / "python.md").read_text()
    rows = re.findall(r"^\| `(qdqtune[a-z_.]*)` \| (.+) \|$", text, re.MULTILINE)
    return {module: set(re.findall(r"`(\w+)`", names)) for module, names in rows}


PUBLIC = listed()


def test_few_modules_are_public() -> None:
    assert {"qdqtune", "qdqtune.autotune", "qdqtune.engines", "qdqtune.testing"} <= PUBLIC.keys()
    assert len(PUBLIC) <= MOST_MODULES


@pytest.mark.parametrize("module", PUBLIC)
def test_the_docs_list_what_there_is(module: str) -> None:
    declared = importlib.import_module(module).__all__
    assert {name for name in declared if not name.startswith("__")} == PUBLIC[module]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_declares_its_names(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        assert hasattr(module, name), name
    assert set(module.__all__) <= set(dir(module))
    assert package in PUBLIC or not module.__all__ or package == "qdqtune.qdq.dialects"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_imports_from_deeper_modules(page: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    for node in (node for block in blocks for node in ast.walk(ast.parse(block))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "qdqtune":
            offered = PUBLIC.get(node.module or "", set())
            modules = {name.rpartition(".")[2] for name in PUBLIC if name.count(".") == 1}
            names = {alias.name for alias in node.names}
            assert names <= offered | (modules if node.module == "qdqtune" else set()), names
        elif isinstance(node, ast.Import):
            ours = {alias.name for alias in node.names if alias.name.split(".")[0] == "qdqtune"}
            assert ours <= PUBLIC.keys()


@pytest.mark.parametrize("name", sorted(PUBLIC["qdqtune"]))
def test_the_docs_explain_every_function(name: str) -> None:
    if not name[0].islower():
        return
    text = (ROOT / "docs" / "reference" / "python.md").read_text()
    assert f"**`{name}`**" in text
    assert f"qdqtune.{name}(" in text


def test_importing_the_package_imports_next_to_nothing() -> None:
    code = (
        "import sys; before = set(sys.modules); import qdqtune; print(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {name for name in done.stdout.split() if name.split(".")[0] == "qdqtune"}
    assert ours == {"qdqtune", "qdqtune._lazy", "qdqtune._version"}
    assert not {"numpy", "onnx", "onnx_ir"} & set(done.stdout.split())


def test_what_is_not_there_is_told() -> None:
    with pytest.raises(AttributeError, match=r"module 'qdqtune' has no attribute 'tuen'"):
        qdqtune.tuen  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute"):
        importlib.import_module("qdqtune.engines").nothing  # noqa: B018
