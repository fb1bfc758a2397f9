"""A user's mistakes: what happened, where, what to do; never a traceback, nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtune.cli.main import main
from tests.conftest import model_from_text

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "Traceback" not in captured.err
        return code, captured.err

    return call


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, ["required: COMMAND"]),
        (["insert"], 2, ["required: MODEL"]),
        (["frobnicate"], 2, ["unknown command frobnicate", "quantize", "See qdqtune --help."]),
        (["tun", "{model}"], 2, ["unknown command tun; did you mean tune?"]),
        (
            ["bench", "{model}", "--treads", "1"],
            2,
            ["unknown flag --treads; did you mean --threads?"],
        ),
        (
            ["bench", "{model}", "--rnus=3", "--seeed", "1"],
            2,
            ["--rnus (did you mean --runs?), --seeed (did you mean --seed?)"],
        ),
        (
            ["tune", "{model}", "--preset", "quik"],
            2,
            ["--preset: unknown value quik; did you mean quick?", "See qdqtune tune --help."],
        ),
        (["bench", "{model}", "--zzzzz"], 2, ["unknown flag --zzzzz\n"]),
        (["bench", "{model}", "more", "--shapes"], 2, ["expected one argument"]),
        (["bench", "{model}", "--shapes", "x:1,2", "z:3"], 2, ["no input 'z'"]),
        (
            ["bench", "{model}", "--engine_option", "provider=CUDAExecutionProvider"],
            2,
            ["ONNX Runtime does not take these options: unknown option 'provider'"],
        ),
        (
            ["tune", "{model}", "-o", "{out}.run", "--engine_option", "provider=CUDA"],
            2,
            ["ONNX Runtime does not take these options: unknown option 'provider'"],
        ),
        (["tune", "{model}", "-o", "{out}", "--evaluate", "ev"], 2, ["'ev' does", "ev:function"]),
        (["tune", "{model}", "-o", "{out}", "--evaluate", "e.py"], 2, ["Write e.py:function"]),
        (["tune", "{model}", "-o", "{out}", "--evaluate", ":f"], 2, ["Write module:function"]),
        (["insert", "{model}", "--ops", "Conv"], 2, ["-o/--output"]),
        (["insert", "{model}", "-o", "{out}"], 2, ["Nothing was chosen", "--ops"]),
        (["insert", "no.onnx", "--ops", "Conv", "-o", "{out}"], 2, ["no.onnx does not exist"]),
        (["bench", "{model}x"], 2, ["x does not exist", "Did you mean", "residual.onnx?"]),
        (
            ["tune", "{model}", "-o", "{out}", "--calibration_data", "{model}x"],
            2,
            ["There is no file or folder", "Did you mean", "residual.onnx?"],
        ),
        (["insert", "{model}", "--ops", "Cnv", "-o", "{out}"], 2, ["no op type 'Cnv'", "'Conv'"]),
        (["insert", "{model}", "--nodes", "n33", "-o", "{out}"], 2, ["no node 'n33'", "'n3'"]),
        (["insert", "{model}", "--tensors", "zz", "-o", "{out}"], 2, ["no tensor 'zz'", "It has"]),
        (["insert", "{model}", "--ops", "Relu", "-o", "{out}"], 2, ["can be quantized"]),
        (
            ["insert", "{model}", "--ops", "Conv", "--engine", "onxruntime", "-o", "{out}"],
            2,
            ["Unknown engine 'onxruntime'", "onnxruntime"],
        ),
        (
            ["insert", "{model}", "--ops", "Conv", "--dialect", "klingon", "-o", "{out}"],
            2,
            ["no dialect 'klingon'", "tensorrt-8"],
        ),
        (
            ["insert", "{model}", "--ops", "Conv", "--quant_type", "int3", "-o", "{out}"],
            2,
            ["--quant_type: unknown value int3; did you mean int8? (one of: int8, uint8, fp8)"],
        ),
        (["insert", "{model}", "--ops", "Conv", "-o", "{model}"], 1, ["exists", "--force"]),
        (["insert", "{model}", "--ops", "Conv", "-o", "/no/such/x.onnx"], 1, ["does not exist"]),
        (["insert", "{model}", "--placement", "no.json", "-o", "{out}"], 2, ["no.json"]),
        (["strip", "{model}", "-o", "{out}"], 1, ["no Q/DQ pairs"]),
        (["bench", "{model}", "--engine", "tensorrrt"], 2, ["Unknown engine", "tensorrt"]),
        (["bench", "{model}", "--engine", "tensorrt"], 1, ["tensorrt"]),
        (["bench", "{model}", "--threads", "0"], 2, ["from 1 up"]),
        (
            ["bench", "{model}", "--threads", "two"],
            2,
            ["number from 1 up, not two"],
        ),
        (["bench", "{text}"], 1, ["not an ONNX file"]),
        (["bench", "{model}", "--seed", "-1"], 2, ["from 0 up"]),
        (
            ["insert", "{model}", "--ops", "Conv", "-o", "{out}", "--save_placement", "{out}"],
            2,
            ["over a model"],
        ),
    ],
)
def test_mistakes(
    arguments: list[str], code: int, words: list[str], run: Run, residual_path: Path, tmp_path: Path
) -> None:
    text, out = tmp_path / "text.onnx", tmp_path / "out.onnx"
    text.write_text("not a model")
    before = residual_path.read_bytes()
    filled = [argument.format(model=residual_path, out=out, text=text) for argument in arguments]
    found, errors = run(*filled)
    assert found == code
    for word in words:
        assert word in errors
    assert not out.exists()
    assert residual_path.read_bytes() == before


def test_usage_errors_are_two_lines(run: Run) -> None:
    for words in (["tune", "--treads", "1"], ["inspect"], ["tun"], []):
        code, errors = run(*words)
        assert code == 2
        assert len(errors.splitlines()) == 2, errors


@pytest.mark.parametrize(
    "line",
    [
        "tune {model} -o {folder}/run",
        "quantize {model} -o {folder}/out.onnx",
        "insert {model} --ops MatMul -o {folder}/out.onnx",
        "inspect {model} --layers",
    ],
)
def test_a_custom_op_is_named(line: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "custom.onnx"
    model = model_from_text(
        "g (float[8,64] x) => (float[8,64] y) { h = MatMul(x, w) y = Relu(h) }",
        w=np.eye(64, dtype=np.float32),
    )
    model.graph.node[1].op_type, model.graph.node[1].domain = "Swirl", "my.domain"
    model.opset_import.add(domain="my.domain", version=1)
    onnx.save(model, path)
    code, errors = run(*line.format(model=path, folder=tmp_path).split(), "--engine", "onnxruntime")
    assert code == 1
    assert "ONNX Runtime does not know the custom op Swirl of the domain 'my.domain'." in errors
    assert "--shapes" not in errors


def test_the_ops_of_a_branch_are_what_stays_float(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "branch.onnx"
    model = model_from_text(
        """g (bool k, float[8,64] x) => (float[8,64] y) {
            y = If (k) <
                then_branch = t () => (float[8,64] a) { a = MatMul(x, w) },
                else_branch = e () => (float[8,64] b) { b = Relu(x) }
            >
        }""",
        w=np.eye(64, dtype=np.float32),
    )
    onnx.save(model, path)
    assert main(["tune", str(path), "-o", str(tmp_path / "run"), "--engine=simulated", "-q"]) == 0
    assert "ops in the bodies of If are not quantized" in capsys.readouterr().out


def test_an_engine_that_is_not_installed_names_the_extra(
    run: Run, residual_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else found(name)
    )
    code, errors = run("bench", residual_path, "--engine", "onnxruntime")
    assert code == 1
    assert "pip install 'qdqtune[onnxruntime]'" in errors


def test_a_read_only_folder(run: Run, residual_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setattr(os, "access", lambda *_: False)
    code, errors = run("insert", residual_path, "--ops", "Conv", "-o", "out.onnx")
    assert code == 1
    assert "can't be written to" in errors


def test_models_with_other_inputs_are_not_compared(
    run: Run, residual_path: Path, tmp_path: Path
) -> None:
    other = model_from_text("g (float[1,3,16,16] x) => (float[1,3,16,16] y) { y = Relu(x) }")
    path = tmp_path / "other.onnx"
    onnx.save(other, path)
    code, errors = run("bench", residual_path, path)
    assert code == 2
    assert "takes other inputs" in errors
