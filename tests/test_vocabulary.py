"""The words are the field's: none of those that were given up is left, and a lint rule holds it."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
LINT: dict[str, Any] = runpy.run_path(str(ROOT / "tools" / "lint_vocabulary.py"))
find_words: Callable[[Path], list[tuple[Path, int, str]]] = LINT["find_words"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A package in which everything is used that is allowed."""
    package = tmp_path / "src" / "qdqtune"
    package.mkdir(parents=True)
    allowed = (text for texts in LINT["ALLOWED"].values() for text in texts)
    (package / "allowed.py").write_text("\n".join(allowed) + "\n")
    for page in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        (tmp_path / page).write_text("# A page\n")
    return tmp_path


def test_no_old_word_is_left() -> None:
    assert find_words(ROOT) == []


def test_it_is_a_part_of_linting() -> None:
    assert "tools/lint_vocabulary.py" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("piece = 1", "piece"),
        ("class PieceProfiler: ...", "Piece"),
        ("class DistinctPieces: ...", "Pieces"),
        ("_MOST_PIECES = 3", "PIECES"),
        ("count_of_pieces = 3", "pieces"),
        ('"""Pieces of a model."""', "Pieces"),
        ("# what a contestant took", "contestant"),
        ('raise ValueError("made up")', "made up"),
        ('text = f"a run in it is gone "\nmore = "on with"', None),
        ('text = ("a run in it is gone "\n        "on with")', 'gone " "on with'),
        ("# it is gone on\n# with", "gone on # with"),
        ("class Made: ...", "Made"),
        ("from module import Made", "Made"),
        ("# Made of nothing, masterpieces and braces, rooming, judgemental", None),
    ],
)
def test_whatever_has_one_is_found(checkout: Path, line: str, word: str | None) -> None:
    planted = checkout / "src" / "qdqtune" / "planted.py"
    planted.write_text(f"a = 1\n{line}\n")
    found = find_words(checkout)
    if word is None:
        assert not found
    else:
        assert [(path, line) for path, line, _ in found] == [(planted.relative_to(checkout), 2)]
        assert found[0][2].startswith(f"{word} (use: ")


@pytest.mark.parametrize("name", ["pieces.py", "split_pieces.py", "kinship.py"])
def test_modules_are_found_by_their_names(checkout: Path, name: str) -> None:
    (checkout / "src" / "qdqtune" / name).write_text("")
    [(path, line, word)] = find_words(checkout)
    assert (path.name, line) == (name, 0)
    assert word.startswith(name)


@pytest.mark.parametrize("page", ["README.md", "docs/deep/page.md"])
def test_pages_are_searched(checkout: Path, page: str) -> None:
    (checkout / page).parent.mkdir(parents=True, exist_ok=True)
    (checkout / page).write_text("# A page\n\nIt is not faster for certain.\n")
    assert [(path.as_posix(), line) for path, line, _ in find_words(checkout)] == [(page, 3)]


def test_what_is_allowed_for_nothing_is_found(checkout: Path) -> None:
    (checkout / "src" / "qdqtune" / "allowed.py").unlink()
    allowed = {text for texts in LINT["ALLOWED"].values() for text in texts}
    assert len(find_words(checkout)) == len(allowed)
