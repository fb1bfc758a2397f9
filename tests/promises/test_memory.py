"""Memory is bounded by the largest weight and the largest sample, not by how many there are."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

# Beside what Python and its modules take: some weights or samples, and room for allocators.
SLACK_BYTES = 110 * 2**20

MEASURED = """
import json, resource, sys
import qdqtune.workflows._insert, qdqtune.workflows._strip, qdqtune.workflows._convert
from qdqtune.cli.main import main
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
codes = [main(line) for line in json.loads(sys.argv[1])]
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"codes": codes, "growth": 1024 * (after - before)}))
"""


def growth_bytes(*lines: list[str]) -> int:
    """By how much the peak of a process grows that runs these commands."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, json.dumps(lines)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["codes"] == [0] * len(lines), done.stderr
    growth: int = told["growth"]
    return growth


def save_wide(folder: Path, layers: int, width: int) -> int:
    """A chain of MatMuls with weights beside it; returns the size of the weights."""
    rng = np.random.default_rng(0)
    raw = (rng.normal(size=(width, width)) / np.sqrt(width)).astype(np.float32).tobytes()
    weights, nodes = [], []
    with (folder / "w.bin").open("wb") as file:
        for number in range(layers):
            weight = onnx.TensorProto(name=f"w{number}", data_type=1, dims=[width, width])
            weight.data_location = onnx.TensorProto.EXTERNAL
            place = {"location": "w.bin", "offset": file.tell(), "length": len(raw)}
            for key, value in place.items():
                weight.external_data.add(key=key, value=str(value))
            file.write(number.to_bytes(4, "little") + raw[4:])  # no two are equal
            weights.append(weight)
            ends = [f"t{number}", weight.name], [f"t{number + 1}"]
            nodes.append(helper.make_node("MatMul", *ends, name=f"n{number}"))
    first, last = (
        helper.make_tensor_value_info(name, 1, [1, width]) for name in ("t0", f"t{layers}")
    )
    graph = helper.make_graph(nodes, "g", [first], [last], weights)
    opsets = [helper.make_opsetid("", 17)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    return layers * len(raw)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak is told in other units")
def test_quantizing_a_large_model_takes_the_memory_of_a_few_weights(tmp_path: Path) -> None:
    size = save_wide(tmp_path, layers=18, width=2048)
    assert size > 2 * SLACK_BYTES
    model, quantized = str(tmp_path / "m.onnx"), tmp_path / "q.onnx"
    line = ["insert", model, "--ops", "MatMul", "--calibration_method", "minmax", "-q"]
    assert growth_bytes([*line, "-o", str(quantized)]) < SLACK_BYTES
    assert size // 4 <= quantized.with_name("q.onnx.data").stat().st_size < size // 3


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak is told in other units")
def test_calibration_takes_the_memory_of_a_few_samples(tmp_path: Path) -> None:
    samples, shape = 250, (1, 16, 128, 128)
    weight = np.random.default_rng(0).normal(size=(4, 16, 1, 1)).astype(np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="n", strides=[8, 8])],
        "g",
        [value("x", 1, shape)],
        [value("y", 1, [1, 4, 16, 16])],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    data = tmp_path / "x.npy"
    save_zeros(data, (samples, *shape))
    assert data.stat().st_size > 2 * SLACK_BYTES
    line = [
        "insert",
        str(tmp_path / "m.onnx"),
        "--ops",
        "Conv",
        "-q",
        "-o",
        str(tmp_path / "q.onnx"),
    ]
    told = growth_bytes([*line, "--calibration_data", str(data), "--calibration_method", "minmax"])
    assert told < SLACK_BYTES


def save_zeros(path: Path, shape: tuple[int, ...]) -> None:
    """An array of zeros that takes no room on the disk."""
    header = io.BytesIO()
    what = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, what)
    with path.open("wb") as file:
        file.write(header.getvalue())
        file.truncate(header.tell() + 4 * int(np.prod(shape)))
