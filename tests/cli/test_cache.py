"""`qdqtune cache`: files and folders, shown, merged and pruned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qdqtune.cli.main import main
from qdqtune.search.patterns._pattern_cache import PatternCache
from tests.workflows.test_cache_folder import add, known, outcome, subgraph


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    assert main(["cache", *map(str, arguments), "--format", "json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A pattern cache, as a run leaves it in its folder."""
    cache = PatternCache()
    cache.add_outcome(outcome("Conv(e0)", chosen=False))
    other = replace(outcome("Gemm(e0)").conditions, engine="other")
    cache.add_outcome(replace(outcome("Gemm(e0)"), conditions=other, is_settled=False))
    path = tmp_path / "run" / "autotuner_state_pattern_cache.yaml"
    path.parent.mkdir()
    cache.save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    add(tmp_path / "shared", outcome("Conv(e0)"), outcome("Relu(e0)"), subgraph("a"))
    return tmp_path / "shared"


def test_show(file: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (file, file.parent):
        rows = shown(capsys, "show", path)["rows"]
        assert isinstance(rows, list)
        assert [(r["engine"], r["patterns"], r["settled"], r["kept_float"]) for r in rows] == [
            ("other", 1, 0, 0), ("simulated", 1, 1, 1),
        ]  # fmt: skip
    rows = shown(capsys, "show", folder)["rows"]
    assert isinstance(rows, list)
    assert sum(row["patterns"] for row in rows) == 2
    assert sum(row["subgraphs"] for row in rows) == 1
    assert main(["cache", "show", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "onnxruntime" in text
    assert "1 of 1" in text
    assert "Relu(e0)" in text


def test_patterns_of_the_same_ops_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attributes = "kernel_shape=3x3,pads=1x1x1x1,strides=2x2,auto_pad='it\\'s ]'"
    shapes = {
        size: f"Conv[{attributes}](e0:float[1x8x{size}x{size}],c:float[8x8x3x3])=float[1x8x4x4]"
        for size in (7, 8)
    }
    add(tmp_path, *(outcome(f"{text}->Relu(%0)=float[1x8x4x4]=>%1") for text in shapes.values()))
    assert main(["cache", "show", str(tmp_path)]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "Conv" in line]
    assert [row.split()[-4:] for row in sorted(rows)] == [
        ["Conv(e0,c)->Relu(%0)=>%1", f"1x8x{size}x{size}", "8x8x3x3", "1x8x4x4"] for size in shapes
    ]


def test_merge_into_a_folder(file: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = file.parent.parent / "all"
    shown(capsys, "merge", file, folder, "-o", target)
    assert sorted(known(target)[0]) == ["Conv(e0)", "Gemm(e0)", "Relu(e0)"]
    assert known(target)[1] == ["a"]
    shown(capsys, "merge", file, "-o", target)  # nothing new
    assert len(known(target)[0]) == 3


def test_merge_into_a_file(file: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = file.parent / "all.yaml"
    shown(capsys, "merge", file, folder, "-o", target)
    merged = {each.signature: each for each in PatternCache.load(target).outcomes}
    assert sorted(merged) == ["Conv(e0)", "Gemm(e0)", "Relu(e0)"]
    assert not merged["Conv(e0)"].choices[0].is_chosen  # the first one's
    assert main(["cache", "merge", str(file), "-o", str(target)]) == 1
    assert "--force" in capsys.readouterr().err
    shown(capsys, "merge", file, "-o", target, "--force")
    assert len(PatternCache.load(target).outcomes) == 2


def test_prune(file: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "prune", file, "--engine", "other")["removed"] == 1
    assert [each.signature for each in PatternCache.load(file).outcomes] == ["Conv(e0)"]
    cache = folder / "cache.jsonl"
    cache.write_text("{\n" + cache.read_text())
    assert shown(capsys, "prune", folder, "--most", 1)["removed"] == 2
    assert known(folder) == (["Relu(e0)"], ["a"])
    assert shown(capsys, "prune", folder, "--engine", "simulated")["removed"] == 2
    assert main(["cache", "show", str(folder)]) == 0
    assert "nothing is known" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("show missing", "There is no cache missing"),
        ("merge {file}", "No output was given"),
        ("show {file} {file}", "show takes one cache"),
        ("prune {file} -o x", "prune takes one cache"),
    ],
)
def test_errors(
    arguments: str, message: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", *arguments.format(file=file).split()]) == 2
    assert message in capsys.readouterr().err
