"""Every command and every block of Python in the README and the docs is run.

The README's run in `make test`, those of the other pages in `make test_docs`.

There, `trtexec` is a stand-in for NVIDIA's (tests/stand_ins/trtexec.py): its times are simulated.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.readme import examples, repository, shortened

from qdqtune.cli.main import main
from qdqtune.records._placement import Placement
from qdqtune.zoo.__main__ import main as make_model
from tests.stand_ins.fixtures import stand_in_environment, write_stand_in_trtexec

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    lines = "\n".join(blocks(page, "sh")).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.fixture(autouse=True)
def stand_in_trtexec(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_stand_in_trtexec(tmp_path_factory.mktemp("stand-in"))
    for name, value in stand_in_environment(folder, "10.16.1").items():
        monkeypatch.setenv(name, value)


def run(words: list[str], folder: Path) -> None:
    here = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": here + os.pathsep + os.environ["PATH"]}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"


def run_here(words: list[str]) -> bool:
    """Runs our own commands in this process, which saves a second each; False for others.

    Those that import a module of the user's get a process of their own.
    """
    if any(re.fullmatch(r"[a-z_]+:[a-z_]+", word) for word in words):
        return False
    if words[0] == "qdqtune":
        assert main(words[1:]) == 0, shlex.join(words)
    elif words[:3] == ["python", "-m", "qdqtune.zoo"]:
        assert not make_model(words[3:]), shlex.join(words)
    else:
        return False
    return True


def with_code(language: str) -> list[Any]:
    """The pages that have blocks in a language."""
    return [
        pytest.param(page, id=page.name, marks=() if page == README else pytest.mark.docs)
        for page in PAGES
        if blocks(page, language)
    ]


@pytest.mark.usefixtures("brief_timing")
@pytest.mark.parametrize("page", with_code("sh"))
def test_commands_run(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in commands(page):
        if words[0] == "make":  # would call this test again: the target must exist
            run([*words, "--dry-run"], ROOT)
        elif words[:2] == ["pip", "install"]:  # would reach for a registry: the extra must exist
            extras = re.fullmatch(r"qdqtune\[(.+)\]", words[2])
            assert extras is not None
            for extra in extras.group(1).split(","):
                assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()
        elif not run_here(words):
            run(words, tmp_path)
    printed = capsys.readouterr().out
    for _, shown in examples(page.read_text("utf-8")):
        assert shortened(printed, shown)  # each line is one that the commands print


@pytest.mark.usefixtures("brief_timing")
@pytest.mark.parametrize("page", with_code("python"))
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text("\n".join(blocks(page, "python")))
    if page == README:  # here, which saves the start of a process and most of the timing
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(script))
    else:
        run([sys.executable, str(script)], tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
        own = re.fullmatch(rf"{re.escape(repository())}/(?:blob|raw|tree)/main/(.+)", target)
        if own is not None:
            assert (ROOT / own[1]).exists(), target
        elif not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def test_the_placement_shown_is_one() -> None:
    (shown,) = blocks(ROOT / "docs" / "commands.md", "json")
    assert len(Placement.from_json(shown).edges) == 2
