"""`qdqtune compare`, as a user calls it."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import pytest

from qdqtune.cli.main import main
from tests.conftest import model_from_text

CONSTANTS = {
    "c": np.array(10, np.float32),
    "s": np.array(1, np.float32),
    "z": np.array(0, np.int8),
}
PAIR = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    folder = tmp_path_factory.mktemp("compare")
    head = "g (float[4] x) => (float[4] y) {"
    for name, body in {"float": "y = Add(x, c) }", "int8": PAIR + " y = Add(d, c) }"}.items():
        model = model_from_text(head + body, **CONSTANTS)
        model.graph.node[-1].name = "the\x1b[2Jlayer"
        onnx.save(model, folder / f"{name}.onnx")
    np.save(folder / "rows.npy", np.array([[0.4, 1.6, -0.4, 3]], np.float32).reshape(1, 4))
    return str(folder / "float.onnx"), str(folder / "int8.onnx"), str(folder / "rows.npy")


def test_the_table(files: tuple[str, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    original, quantized, rows = files
    assert main(["compare", original, quantized, "--calibration-data", rows]) == 0
    printed = capsys.readouterr().out
    assert "as it is written" in printed.splitlines()[0]
    assert printed.count("30.2") == 3  # the output, and the layer's own and accumulated error
    assert "\x1b" not in printed
    assert "random" not in printed
    # What is left of it is the layer's own.
    assert re.search(r"^own dB.* max value +accumulated dB +op +node +inputs$", printed, re.M)
    flag = r"to leave the worst float: .* --nodes_to_exclude '\^the.*layer\$'\n"
    assert re.search(flag, printed)


def test_as_json(files: tuple[str, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--samples", "3", "--seed", "1", "--format", "json"]
    assert main(["compare", *files[:2], *arguments]) == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert record["kind"] == "errors"
    assert record["source"] == "random"
    assert record["samples"] == "3 random samples, seed 1"
    assert record["layers"][0]["op_type"] == "Add"
    assert "random inputs" in captured.err
