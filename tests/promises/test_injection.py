"""Names of files, nodes and tensors are shown, and nothing more, by every command.

Terminals: no control characters, no text turned around, no line that a name has begun. JSON: valid,
in plain ASCII, with the names as they are. What is replaced by what: tests/cli/test_terminal.py.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from qdqtune.cli.main import get_parser, main

Capture = pytest.CaptureFixture[str]

FORGED = "Written: elsewhere"
NAMES = [
    "<script>alert(1)</script>",
    "[red]x[/red]",
    "[link=https://x]y",
    "\x1b]0;title\x07\x1b[2J\x1b[31m",
    "\x9b31m\x00\x08\x7f",
    f"a\n{FORGED}",
    f"a\r{FORGED}",
    f"a\u2028{FORGED}\u2029\x0b\x0c\x85",
    "\u202egnp.exe\u2066\u200f\u200b\ufeff",
]
# A path can't hold a zero or a slash.
FILE = "".join(NAMES).replace("\0", "").replace("/", "_")[:200]
QUICK = ["--engine", "simulated", "--runs", "16"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model of which every name is an attack, its file's included."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", [source, f"{name}w"], [name], name=f"{name}!")
        for source, name in itertools.pairwise([f"{NAMES[0]}x", *NAMES])
    ]
    weights = [
        numpy_helper.from_array(rng.normal(size=(16, 16)).astype(np.float32) / 4, f"{name}w")
        for name in NAMES
    ]
    outputs = [value(name, 1, [4, 16]) for name in NAMES]
    source = value(f"{NAMES[0]}x", 1, [4, 16])
    graph = helper.make_graph(nodes, NAMES[3], [source], outputs, weights)
    opsets = [helper.make_opsetid("", 17)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name=NAMES[3])
    helper.set_model_props(proto, {NAMES[3]: NAMES[5]})
    Path(FILE).write_bytes(proto.SerializeToString())
    return FILE


def command_lines(model: str) -> list[list[str]]:
    """Every command that reads a file, on names of files that are attacks, too."""
    run = f"{FILE[:150]}.run"
    tune = ["tune", model, *QUICK[:2], "--preset", "quick", "--max_benchmarks", "3", "-o", run]
    lines = [
        [*tune, "--dry_run"],
        tune,
        ["export", run, "--list"],
        ["export", run, "--candidate", "c0000", "-o", f"{FILE[:150]}.c0"],
        ["report", run, "-o", f"{FILE[:150]}.html"],
        ["cache", "show", run],
        ["verify", f"{run}/optimized_final.onnx", *QUICK],
        ["bench", model, model, *QUICK],
        ["insert", model, "--ops", "MatMul", "-o", f"{FILE[:150]}.q"],
        ["compare", model, f"{FILE[:150]}.q"],
        ["optimize", model, "-o", f"{FILE[:150]}.o"],
        ["quantize", model, "--performance_threshold", "none", "-o", f"{FILE[:150]}.t"],
        ["strip", f"{FILE[:150]}.q", "-o", f"{FILE[:150]}.s"],
        ["convert", model, "--to", "fp16", "-o", f"{FILE[:150]}.h"],
        ["shapes", model],
        ["inspect", model],
    ]
    return [line for line in lines if line[0] in known_commands()]


def known_commands() -> set[str]:
    choices = [a.choices for a in get_parser()._actions if isinstance(a.choices, dict)]
    return {name for each in choices for name in each}


def assert_harmless(shown: str) -> None:
    assert all(c.isprintable() or c in "\n\ufffd" for c in shown)
    assert max(map(len, shown.splitlines()), default=0) < 2100


def forged_lines(shown: str) -> list[str]:
    return [line for line in shown.splitlines() if line.startswith(FORGED)]


def test_every_command_is_here() -> None:
    tried = {line[0] for line in command_lines("m")}
    assert known_commands() - tried <= {"completion", "doctor"}


def test_what_commands_print_is_harmless(model: str, capsys: Capture) -> None:
    for line in command_lines(model):
        assert main([*line, "-v"]) == 0, line[0]
        captured = capsys.readouterr()
        assert captured.out
        assert_harmless(captured.out)
        assert_harmless(captured.err)
        assert forged_lines(captured.out) == []


@pytest.mark.slow
def test_json_is_valid_and_plain(model: str, capsys: Capture) -> None:
    for line in command_lines(model):
        assert main([*line, "--format", "json", "-q"]) == 0, line[0]
        out = capsys.readouterr().out
        assert out.isascii()
        assert "\x1b" not in out
        record = json.loads(out)
        assert isinstance(record, (dict, list))
        if line[0] == "bench":
            assert record["models"][0]["path"] == FILE
    files = [path for path in Path().rglob("*.json*") if path.is_file()]
    assert len(files) >= 3
    for file in files:
        text = file.read_text("utf-8")
        assert text.isascii()
        for part in text.splitlines() if file.suffix == ".jsonl" else [text]:
            json.loads(part)


@pytest.mark.parametrize(
    "line",
    [
        ["insert", "missing\n" + FORGED, "--ops", "MatMul", "-o", "q.onnx"],
        ["insert", "{model}", "--nodes", f"n\n{FORGED}", "-o", "q.onnx"],
        ["insert", "{model}", "--tensors", f"n\n{FORGED}", "-o", "q.onnx"],
        ["insert", "{model}", "--placement", f"p\n{FORGED}", "-o", "q.onnx"],
        ["insert", "{model}", "--ops", "MatMul", "-o", f"no\n{FORGED}/q.onnx"],
        ["insert", "{model}", "--ops", "MatMul", "--calibration_data", "d\n", "-o", "q.onnx"],
        ["insert", "{model}", "--shapes", f"x\n{FORGED}:1x2", "--ops", "MatMul", "-o", "q.onnx"],
        ["strip", "{model}", "-o", "s.onnx"],
        ["export", f"run\n{FORGED}", "--list"],
        ["tune", "{model}", "--engine", f"e\n{FORGED}"],
        ["verify", "{model}", "--engine", "simulated"],
    ],
    ids=lambda line: line[0] + line[2].strip("-"),
)
def test_errors_begin_no_line_with_a_name(line: list[str], model: str, capsys: Capture) -> None:
    # A message of several lines has the later ones indented: what begins a line is ours.
    assert main([word.format(model=model) for word in line]) in (1, 2)
    err = capsys.readouterr().err
    assert err
    assert_harmless(err)
    assert forged_lines(err) == []


def test_log_lines_begin_no_line_with_a_name(model: str, capsys: Capture) -> None:
    assert main(["insert", model, "--ops", "MatMul", "-o", "q.onnx", "-vv"]) == 0
    err = capsys.readouterr().err
    assert "INFO: " in err
    assert forged_lines(err) == []
