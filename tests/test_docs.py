"""Every command and every block of Python in the README and the docs is run.

The README's run in `make test`, those of the other pages in `make test_docs`.

There, `trtexec` is a stand-in for NVIDIA's (tests/stand_ins/trtexec.py): its times are simulated.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shlex
import subprocess
import sys
from argparse import SUPPRESS
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from benchmarks.readme import examples, repository, shortened
from tools.docs_hooks import command_parsers

from qdqtune.autotune.__main__ import get_parser as autotune_parser
from qdqtune.cli.main import get_parser, main
from qdqtune.config import TuneConfig
from qdqtune.records._placement import Placement
from qdqtune.records._tuning import Summary
from qdqtune.zoo.__main__ import main as make_model
from tests.stand_ins.fixtures import stand_in_environment, write_stand_in_trtexec

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


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


def run_here(words: list[str], capsys: pytest.CaptureFixture[str]) -> bool:
    """Runs our own commands in this process, which saves a second each; False for others.

    Those that import a module of the user's get a process of their own.
    """
    if any(re.fullmatch(r"[a-z_]+:[a-z_]+", word) for word in words):
        return False
    if words[:2] == ["qdqtune", "verify"]:  # whether times of a few blocks agree is up to luck
        assert main(words[1:]) in (0, 1)
        assert "speed" in capsys.readouterr().out, shlex.join(words)
    elif words[0] == "qdqtune":
        assert main(words[1:]) == 0, shlex.join(words)
    elif words[:3] == ["python", "-m", "qdqtune.zoo"]:
        assert not make_model(words[3:]), shlex.join(words)
    else:
        return False
    return True


def with_code(language: str) -> list[Any]:
    """The pages that have blocks in a language."""
    return [
        pytest.param(page, id=name_of(page), marks=() if page == README else pytest.mark.docs)
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
        elif not run_here(words, capsys):
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


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        own = re.fullmatch(rf"{re.escape(repository())}/(?:blob|raw|tree)/main/(.+)", target)
        if own is not None:
            assert (ROOT / own[1]).exists(), target
        elif not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def flags_of(parsers: Iterable[argparse.ArgumentParser]) -> set[str]:
    return {flag for parser in parsers for flag in parser._option_string_actions}


# In the text: those of trtexec, the benchmarks and TensorRT-RTX.
FLAGS_OF_OTHERS = {"--fp16", "--models", "--openings", "--repeat", "--safe", "--workspace"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_name_flags_that_exist(page: Path) -> None:
    known = flags_of([get_parser(), *command_parsers().values(), autotune_parser()])
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = {flag.replace("-", "_") for flag in re.findall(r"`[^`\n]*?--([a-z][\w-]*)", text)}
    flags = {f"--{name}" for name in named if name == name.lower()}  # trtexec's are in camel case
    assert flags - known - FLAGS_OF_OTHERS == set()


@pytest.mark.docs
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for package in ("material", "mkdocstrings"):
        pytest.importorskip(package, reason="needs pip install 'qdqtune[docs]'")
    run([sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)], ROOT)
    page = (tmp_path / "reference" / "cli.html").read_text()
    actions = [action for parser in command_parsers().values() for action in parser._actions]
    shown = {flag for each in actions if each.help != SUPPRESS for flag in each.option_strings}
    assert {flag for flag in shown if f"<code>{flag}" not in page} == {"-h", "--help"}
    names = {each.name for each in (*fields(TuneConfig), *fields(Summary))}
    pages = [(tmp_path / "reference" / name).read_text() for name in ("config.html", "files.html")]
    assert {name for name in names if f"<code>{name}</code>" not in "".join(pages)} == set()
    links = re.compile(r'(?:src|href)="https?://[^"]+\.(?:js|css|woff2?)"|src="https?://')
    assert [page.name for page in tmp_path.rglob("*.html") if links.search(page.read_text())] == []


def test_the_placement_shown_is_one() -> None:
    (shown,) = blocks(DOCS / "reference" / "files.md", "json")
    assert len(Placement.from_json(shown).edges) == 2
