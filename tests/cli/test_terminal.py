"""Names in a model are a stranger's: they are shown, never acted upon."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qdqtune.cli.main import main
from qdqtune.records._printable import message, printable

NAMES = ["\x1b[31mred", "a\nb", "a\rb", "a\0b", "[red]x[/red]", "\u202eabc", "\x9b31m", "a" * 9000]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["bench", "{model}", "--runs", "2", "--threads", "1"], 0),
        (["insert", "{model}", "--ops", "MatMul,Relu", "-o", "{out}", "-v"], 0),
        (["insert", "{model}", "--tensors", "zz", "-o", "{out}"], 2),
        (["insert", "{model}", "--nodes", "zz", "-o", "{out}"], 2),
        (["strip", "{model}", "-o", "{out}"], 1),
        (["tune", "{model}", "--engine", "simulated", "--preset", "quick", "-v", "-o", "{out}"], 0),
        (["tune", "{model}", "--dry_run", "--engine", "simulated"], 0),
    ],
    ids=["bench", "insert", "tensors", "nodes", "strip", "tune", "plan"],
)
def test_names_do_nothing(
    command: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", [source, "w"], [name], name=f"{name}!")
        for source, name in itertools.pairwise(["x", *NAMES])
    ]
    nodes.append(helper.make_node("Relu", ["x"], ["y"], name="\x1b[2J"))
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    outputs = [value(name, 1, [4, 4]) for name in (*NAMES, "y")]
    graph = helper.make_graph(nodes, "g", [value("x", 1, [4, 4])], outputs, [weight])
    path = tmp_path / "m.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    assert main([word.format(model=path, out=tmp_path / "out.onnx") for word in command]) == code
    captured = capsys.readouterr()
    shown = captured.out + captured.err
    assert shown
    assert all(c.isprintable() or c in "\n\ufffd" for c in shown)
    assert max(map(len, captured.err.splitlines()), default=0) < 2100


def test_what_is_replaced() -> None:
    assert printable("a\x1b[31m\u202eb\u2028\udcff") == "a\ufffd[31m\ufffdb\ufffd\ufffd"
    assert printable("Größe 日本 😀") == "Größe 日本 😀"
    assert message("two\nlines") == "two\nlines"
    assert len(message("x" * 10_000)) < 2100
