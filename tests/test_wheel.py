"""What `pip install qdqtune` brings: the package, all of it, and nothing else."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "qdqtune"
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built beside the tests, as in a checkout, but where nothing of an earlier build lies."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("tests", "benchmarks"):
        os.symlink(ROOT / name, folder / name)
    subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)], cwd=folder, check=True, capture_output=True
    )
    (file,) = folder.glob("qdqtune-*-py3-none-any.whl")
    return zipfile.ZipFile(file)


def test_it_contains_the_whole_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to(ROOT / "src").as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }

    assert names == expected
    assert "qdqtune/py.typed" in names
    assert {Path(name).suffix for name in names} >= {".py", ".html", ".css", ".js"}


def test_its_page_on_an_index_is_the_readme(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))

    assert metadata["Description-Content-Type"].startswith("text/markdown")
    page = metadata.get_payload(decode=True)
    assert isinstance(page, bytes)
    assert page.decode().strip() == (ROOT / "README.md").read_text("utf-8").strip()
    assert any(url.startswith("Repository, https://") for url in metadata.get_all("Project-URL"))
    assert "Typing :: Typed" in metadata.get_all("Classifier")
