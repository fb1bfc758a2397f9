"""The stand-in says what trtexec would, in the versions that differ."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.conftest import model_from_text
from tests.stand_ins.fixtures import stand_in_environment, write_stand_in_trtexec

VERSIONS = ("8.6.1", "10.16.1", "11.1.0")
WEAK = {"8.6.1": ["--fp16", "--int8"], "10.16.1": ["--fp16", "--int8"], "11.1.0": []}
"""What lets float kernels be float16, and the others int8."""
Call = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def trtexec(tmp_path: Path) -> Call:
    programs = write_stand_in_trtexec(tmp_path / "bin")

    def call(version: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **stand_in_environment(programs, version, **variables)}
        command = [programs / "trtexec", *arguments]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    return call


def quantized(rows: int, *, quantize: tuple[bool, bool], width: int = 512) -> onnx.ModelProto:
    """Products one after the other, of which those are quantized that `quantize` says."""
    weights: dict[str, np.ndarray] = {
        "one": np.float32(1.0).reshape(()),
        "zero": np.zeros((), np.int8),
    }
    lines, last = [], "x"
    for number, wanted in enumerate(quantize):
        weights[f"w{number}"] = np.ones((width, width), np.float32)
        left, right = last, f"w{number}"
        if wanted:
            for name in (left, right):
                lines.append(f"q{number}{name} = QuantizeLinear({name}, one, zero)")
                lines.append(f"d{number}{name} = DequantizeLinear(q{number}{name}, one, zero)")
            left, right = f"d{number}{left}", f"d{number}{right}"
        lines.append(f"m{number} = MatMul({left}, {right}) r{number} = Relu(m{number})")
        last = f"r{number}"
    text = f"g (float[{rows},{width}] x) => (float[{rows},{width}] {last}) {{ {' '.join(lines)} }}"
    return model_from_text(text, **weights)


def median_ms(printed: str) -> float:
    found = re.search(r"\[I\] GPU Compute Time: .*?median = ([0-9.e-]+) ms", printed)
    assert found is not None, printed
    return float(found[1])


@pytest.mark.parametrize(
    ("version", "option", "is_known"),
    [
        ("8.6.1", "--stronglyTyped", False),
        ("10.16.1", "--stronglyTyped", True),
        ("11.1.0", "--stronglyTyped", True),
        ("8.6.1", "--fp16", True),
        ("11.1.0", "--fp16", False),
        ("10.16.1", "--noCudaGraph", False),
        ("11.1.0", "--noCudaGraph", True),
        ("8.6.1", "--explicitBatch", True),
        ("10.16.1", "--explicitBatch", False),
    ],
)
def test_options_are_those_of_the_version(
    trtexec: Call, version: str, option: str, is_known: bool
) -> None:
    done = trtexec(version, "--onnx=gone.onnx", option)
    assert done.returncode == 1
    assert (f"[E] Unknown option: {option} " in done.stderr) != is_known
    assert ("Could not open file gone.onnx" in done.stderr) == is_known
    assert ("&&&& FAILED" in done.stdout) == (is_known or version != "11.1.0")


@pytest.mark.parametrize("version", VERSIONS)
def test_int8_pays_for_many_rows_only(trtexec: Call, tmp_path: Path, version: str) -> None:
    times = {}
    for rows in (16, 1024):
        for quantize in ((False, False), (True, True)):
            onnx.save(quantized(rows, quantize=quantize), tmp_path / "m.onnx")
            done = trtexec(version, "--onnx=m.onnx", *WEAK[version], "--duration=0")
            assert done.returncode == 0, done.stderr
            times[rows, quantize[0]] = median_ms(done.stdout)
    assert times[1024, True] < 0.9 * times[1024, False]
    if WEAK[version]:  # against float32 it pays sooner
        assert times[16, True] > times[16, False]


@pytest.mark.parametrize("version", VERSIONS)
def test_layers_and_profile_agree(trtexec: Call, tmp_path: Path, version: str) -> None:
    onnx.save(quantized(64, quantize=(True, False)), tmp_path / "m.onnx")
    done = trtexec(
        version, "--onnx=m.onnx", *WEAK[version], "--profilingVerbosity=detailed",
        "--separateProfileRun", "--exportLayerInfo=l.json", "--exportProfile=p.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    info = json.loads((tmp_path / "l.json").read_text(), strict=False)
    profile = json.loads((tmp_path / "p.json").read_text())
    assert [layer["Name"] for layer in info["Layers"]] == [entry["name"] for entry in profile[1:]]
    assert ("I/O Tensors" in info) == (version == "11.1.0")
    assert "GPU Compute Time" in done.stdout


def test_a_profile_that_is_not_separate_takes_the_summary_away(
    trtexec: Call, tmp_path: Path
) -> None:
    onnx.save(quantized(8, quantize=(False, False)), tmp_path / "m.onnx")
    done = trtexec("10.16.1", "--onnx=m.onnx", "--exportProfile=p.json")
    assert done.returncode == 0
    assert "GPU Compute Time" not in done.stdout


def test_a_failed_build_that_streams_leaves_an_empty_engine(trtexec: Call, tmp_path: Path) -> None:
    onnx.save(quantized(8, quantize=(False, False)), tmp_path / "m.onnx")
    for version, says_failed in (("10.3.0", True), ("10.16.1", False)):
        (tmp_path / "m.plan").unlink(missing_ok=True)
        done = trtexec(version, "--onnx=m.onnx", "--saveEngine=m.plan", fault="build_fails")
        assert done.returncode == 1
        assert ("&&&& FAILED" in done.stdout) == says_failed
        assert (tmp_path / "m.plan").exists() != says_failed


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("zero point", "Non-zero zero point"),
        ("uint8", "UInt8 is not supported"),
        ("scale", "must all be positive"),
        ("int32", "has type Int32"),
        ("without the flag", "int8 is not configured"),
    ],
)
def test_bad_pairs_are_refused(trtexec: Call, tmp_path: Path, fault: str, says: str) -> None:
    model = quantized(8, quantize=(True, False))
    made = {tensor.name: tensor for tensor in model.graph.initializer}
    if fault in ("zero point", "uint8"):
        array = np.ones((), np.int8) if fault == "zero point" else np.zeros((), np.uint8)
        made["zero"].CopyFrom(numpy_helper.from_array(array, "zero"))
    elif fault == "scale":
        made["one"].CopyFrom(numpy_helper.from_array(np.float32(-1.0).reshape(()), "one"))
    elif fault == "int32":
        bias = helper.make_tensor("bias", TensorProto.INT32, (512,), np.zeros(512, np.int32))
        model.graph.initializer.append(bias)
        model.graph.node.insert(0, helper.make_node("DequantizeLinear", ["bias", "one"], ["b"]))
    onnx.save(model, tmp_path / "m.onnx")
    flags = () if fault == "without the flag" else ("--int8",)
    done = trtexec("10.16.1", "--onnx=m.onnx", *flags)
    assert done.returncode == 1
    assert says in done.stderr


def test_outputs_are_what_the_model_computes(trtexec: Call, tmp_path: Path) -> None:
    text = """g (float[n,4] x, int64[2] i) => (float[n,2] y, int64[2] j) {
        y = Gather<axis=1>(x, i) j = Add(i, i)
    }"""
    onnx.save(model_from_text(text), tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    x.tofile(tmp_path / "x.bin")
    np.array([2, 0], np.int64).tofile(tmp_path / "i.bin")
    assert trtexec("10.16.1", "--onnx=m.onnx", "--optShapes=x:3x4", "--saveEngine=m.plan",
                   "--skipInference").returncode == 0  # fmt: skip
    done = trtexec("10.16.1", "--loadEngine=m.plan", "--shapes=x:3x4", "--exportOutput=o.json",
                   "--loadInputs=x:x.bin,i:i.bin")  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = {each["name"]: each for each in json.loads((tmp_path / "o.json").read_text())}
    assert np.allclose(told["y"]["values"], x[:, [2, 0]].ravel(), rtol=1e-5)
    assert (told["y"]["dimensions"], told["j"]["values"]) == ("3x2", [4, 0])
    wrong = trtexec("10.16.1", "--loadEngine=m.plan", "--shapes=x:5x4")
    assert "does not satisfy any optimization profiles" in wrong.stderr
