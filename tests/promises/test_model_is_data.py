"""A model is data: whatever it says, nothing outside its folder is read, nor written outside ours.

What a loader refuses is tested vector by vector in tests/graph/test_files.py; here every command
meets the same models, and the system tells whether the file outside was opened.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from qdqtune.cli.main import get_parser, main
from tests.conftest import model_from_text
from tests.fuzz.lane import _watch as collect_statistics
from tests.promises.models import one_matmul, tree

Spoil = Callable[[Path, Path], None]

pytestmark = pytest.mark.timeout(120)


def commands(model: Path, out: Path) -> dict[str, list[str]]:
    """Every command that reads a model, by name."""
    known: dict[str, object] = {}
    for action in get_parser()._actions:
        if isinstance(action.choices, dict):
            known.update(action.choices)
    simulated = ["--engine", "simulated"]
    lines = {
        "tune": [str(model), *simulated, "--preset", "quick", "-o", str(out / "run")],
        "insert": [str(model), "--ops", "MatMul", "-o", str(out / "quantized.onnx")],
        "strip": [str(model), "-o", str(out / "stripped.onnx")],
        "convert": [str(model), "--to", "fp16", "-o", str(out / "half.onnx")],
        "shapes": [str(model), "-o", str(out / "shaped.onnx"), "--batch_size", "4"],
        "bench": [str(model), *simulated, "--runs", "2"],
        "verify": [str(model), "--against", str(model), *simulated, "--runs", "2"],
        "inspect": [str(model)],
    }
    return {name: [name, *line, "-q"] for name, line in lines.items() if name in known}


def move_weights(home: Path, location: str) -> None:
    model = onnx.load(home / "m.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    (home / "m.onnx").write_bytes(model.SerializeToString())


def parent_folder(home: Path, secret: Path) -> None:
    move_weights(home, f"../{secret.name}")


def absolute_path(home: Path, secret: Path) -> None:
    move_weights(home, str(secret))


def linked_file(home: Path, secret: Path) -> None:
    (home / "w.bin").symlink_to(secret)
    move_weights(home, "w.bin")


def linked_folder(home: Path, secret: Path) -> None:
    (home / "inner").symlink_to(secret.parent)
    move_weights(home, f"inner/{secret.name}")


def hard_link(home: Path, secret: Path) -> None:
    os.link(secret, home / "w.bin")
    move_weights(home, "w.bin")


def beyond_the_end(home: Path, secret: Path) -> None:
    (home / "w.bin").write_bytes(bytes(8))
    move_weights(home, "w.bin")


def functions_that_call_each_other(home: Path, secret: Path) -> None:
    model = model_from_text("g (float[4,16] x) => (float[4,16] y) { y = Relu(x) }")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("l", 1)]
    model.opset_import.add(domain="l", version=1)
    for name, called in (("f", "g"), ("g", "f")):
        node = helper.make_node(called, ["a"], ["b"], domain="l")
        model.functions.append(helper.make_function("l", name, ["a"], ["b"], [node], opsets))
    model.graph.node[0].op_type, model.graph.node[0].domain = "f", "l"
    (home / "m.onnx").write_bytes(model.SerializeToString())


def ten_thousand_bodies(home: Path, secret: Path) -> None:
    """Written by hand: libraries refuse to."""

    def field(number: int, content: bytes) -> bytes:
        size, prefix = len(content), bytes([number << 3 | 2])
        while size > 127:
            prefix += bytes([size & 127 | 128])
            size >>= 7
        return prefix + bytes([size]) + content

    graph = field(2, b"innermost") + field(12, field(1, b"o"))
    for _ in range(10_000):
        body = field(1, b"then_branch") + b"\xa0\x01\x05" + field(6, graph)
        graph = field(1, field(1, b"c") + field(2, b"o") + field(4, b"If") + field(5, body))
    (home / "m.onnx").write_bytes(b"\x08\x08" + field(8, b"\x10\x11") + field(7, graph))


@pytest.mark.skipif(sys.platform != "linux", reason="watches files the way Linux does")
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (parent_folder, "outside the model's folder"),
        (absolute_path, "outside the model's folder"),
        (linked_file, "outside the model's folder"),
        (linked_folder, "outside the model's folder"),
        (hard_link, "is a link"),
        (beyond_the_end, "ends before it"),
        (functions_that_call_each_other, "call themselves"),
        (ten_thousand_bodies, "nested too deeply"),
    ],
)
def test_every_command_refuses_it_and_opens_and_writes_nothing(
    spoil: Spoil,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    home, out = tmp_path / "model", tmp_path / "out"
    home.mkdir()
    out.mkdir()
    monkeypatch.chdir(out)
    onnx.save(
        one_matmul(), home / "m.onnx", save_as_external_data=True, location="w.bin",
        size_threshold=0,
    )  # fmt: skip
    secret = tmp_path / "secret.bin"
    (home / "w.bin").rename(secret)
    spoil(home, secret)
    before = tree(tmp_path)
    content = secret.read_bytes()
    lines = commands(home / "m.onnx", out)
    assert len(lines) >= 7
    with collect_statistics(secret) as opened:
        for name, line in lines.items():
            assert main(line) == 1, name
            captured = capfd.readouterr()
            assert words in captured.err, name
            assert "Traceback" not in captured.err
            assert tree(tmp_path) == before, name
        assert not opened()
    assert secret.read_bytes() == content


EVIL = ["../../x", "/tmp/../../x", "a/b/../../../c", "..", "~/x", "C:\\x", "x.onnx", "con\0"]


def model_of_evil_names() -> onnx.ModelProto:
    """Tensors, weights, nodes and the graph, all named as files outside would be."""
    rng = np.random.default_rng(0)
    names = ["x", *EVIL]
    weights = [
        onnx.numpy_helper.from_array(rng.normal(size=(16, 16)).astype(np.float32) / 4, f"{name}.w")
        for name in EVIL
    ]
    nodes = [
        helper.make_node("MatMul", [source, f"{name}.w"], [name], name=name)
        for source, name in zip(names, EVIL, strict=False)
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "../../graph", [value("x", 1, [4, 16])], [value(EVIL[-1], 1, [4, 16])], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_names_that_are_paths_write_nothing_but_what_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, out = tmp_path / "a/b/model", tmp_path / "a/b/out"
    home.mkdir(parents=True)
    out.mkdir()
    monkeypatch.chdir(out)
    onnx.save(model_of_evil_names(), home / "m.onnx", save_as_external_data=True, location="w.bin")
    outside = {path for path in tree(tmp_path) if not path.startswith("a/b/out")}
    codes = {name: main(line) for name, line in commands(home / "m.onnx", out).items()}
    assert {name: code for name, code in codes.items() if code} == {"strip": 1}
    quantized = str(out / "quantized.onnx")
    assert main(["strip", quantized, "-o", str(out / "back.onnx"), "-q"]) == 0
    line = ["export", str(out / "run"), "--candidate", "c0001", "-o", str(out / "c.onnx"), "-q"]
    assert main(line) == 0
    assert {path for path in tree(tmp_path) if not path.startswith("a/b/out")} == outside
    models = {"quantized", "half", "shaped", "back", "c"}
    expected = {f"{name}.onnx{suffix}" for name in models for suffix in ("", ".data")} | {"run"}
    assert {path.name for path in out.iterdir()} == expected
    inside = {path.name for path in (out / "run").rglob("*")}
    assert not {Path(name).name for name in EVIL[:3]} & inside


def test_a_link_where_the_result_goes_is_replaced_and_not_followed(tmp_path: Path) -> None:
    onnx.save(one_matmul(), tmp_path / "m.onnx")
    precious, out = tmp_path / "precious", tmp_path / "out.onnx"
    precious.write_text("precious")
    out.symlink_to(precious)
    line = ["insert", str(tmp_path / "m.onnx"), "--ops", "MatMul", "-o", str(out), "-q"]
    assert main(line) == 1
    assert main([*line, "--force"]) == 0
    assert precious.read_text() == "precious"
    assert not out.is_symlink()
