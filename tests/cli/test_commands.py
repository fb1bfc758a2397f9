"""The commands, as a user calls them: results on stdout, words on stderr, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest

from qdqtune import zoo
from qdqtune._version import __version__
from qdqtune.cli.main import main
from qdqtune.graph._files import load_model
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._folding import fold
from qdqtune.qdq._read_back import read
from qdqtune.records._placement import Placement
from tests.silence import without_progress


@pytest.fixture(scope="module")
def small_resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "resnet.onnx"
    onnx.save(zoo.build("resnet18", width=16, image=64), path)
    return path


def test_version_names_the_engines(capsys: pytest.CaptureFixture[str]) -> None:
    import onnxruntime

    assert main(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"qdqtune {__version__}"
    assert f"onnxruntime {onnxruntime.__version__}" in lines


def test_insert_writes_what_it_says(
    small_resnet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, placed = tmp_path / "out.onnx", tmp_path / "placement.json"
    arguments = ["insert", str(small_resnet), "--ops", "Conv,Gemm", "-o", str(out)]
    assert main([*arguments, "--save_placement", str(placed)]) == 0
    printed = capsys.readouterr().out
    assert "21 ops" in printed
    assert "SQNR" in printed
    assert printed.splitlines()[-1].startswith("Calibrated on random inputs")
    onnx.checker.check_model(str(out), full_check=True)
    facts = {p.key: p.value for p in onnx.load(out).metadata_props}
    assert facts["qdqtune.calibration"] == "random"
    placement = Placement.from_json(placed.read_text())
    assert read(load_model(out)).placement.edges >= placement.edges


def test_a_saved_placement_gives_the_same_file(small_resnet: Path, tmp_path: Path) -> None:
    first, second, placed = (tmp_path / name for name in ("a.onnx", "b.onnx", "p.json"))
    by_hand = ["insert", str(small_resnet), "--nodes", "layer1.0.conv1", "-o", str(first)]
    assert main([*by_hand, "--save_placement", str(placed)]) == 0
    assert main(["insert", str(small_resnet), "--placement", str(placed), "-o", str(second)]) == 0
    assert first.read_bytes() == second.read_bytes()


def test_the_empty_placement_of_a_run_that_kept_the_float_model_inserts_nothing(
    small_resnet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    placed, out = tmp_path / "placement.json", tmp_path / "out.onnx"
    placed.write_text(Placement().to_json(fingerprint(load_model(small_resnet))))
    arguments = ["insert", str(small_resnet), "--placement", str(placed), "-o", str(out)]
    assert main(arguments) == 0
    assert "no Q/DQ is inserted" in capsys.readouterr().err
    assert not read(load_model(out)).placement
    assert main([*arguments, "--force", "--ops", "Relu"]) == 2  # that is a mistake


def test_insert_as_json(
    small_resnet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.onnx"
    arguments = ["--engine", "tensorrt", "--quant-type", "fp8", "--format=json", "-o", str(out)]
    assert main(["insert", str(small_resnet), "--ops", "Conv", *arguments]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["dialect"] == "tensorrt"
    assert record["quant_type"] == "fp8"
    assert record["calibration"] == "random"
    assert len(record["quantized"]) == 19
    assert "49 taps" in record["left_float"]["conv1"]


def test_strip_gives_the_float_model_back(small_resnet: Path, tmp_path: Path) -> None:
    quantized, stripped = tmp_path / "q.onnx", tmp_path / "s.onnx"
    assert main(["insert", str(small_resnet), "--ops", "Conv", "-o", str(quantized)]) == 0
    arguments = ["strip", str(quantized), "-o", str(stripped)]
    assert main([*arguments, "--weights_from", str(small_resnet)]) == 0
    original = load_model(small_resnet)
    fold(original)
    assert fingerprint(load_model(stripped)) == fingerprint(original)


def test_bench_compares(
    small_resnet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantized = tmp_path / "q.onnx"
    assert main(["insert", str(small_resnet), "--ops", "Conv", "-o", str(quantized)]) == 0
    capsys.readouterr()
    arguments = ["bench", str(small_resnet), str(quantized), "--threads", "1", "--runs", "40"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "baseline" in text
    assert "onnxruntime" in text
    assert "Output SQNR is against the first model, on the random inputs" in text
    assert main([*arguments, "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["engine"]["threads"] == 1
    first, second = record["models"]
    assert first["speedup"] is None
    assert second["speedup"]["low"] <= second["speedup"]["ratio"] <= second["speedup"]["high"]
    kept = sum(len(block) for block in second["measurement"]["blocks_ms"])
    assert kept >= 40


def test_bench_of_a_model_that_the_engine_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    node = onnx.helper.make_node("Relu", ["x"], ["y"], name="n")
    strange = onnx.helper.make_node("Strange", ["x"], ["y"], name="n", domain="nowhere")
    value = onnx.helper.make_tensor_value_info
    for path, one in ((good, node), (bad, strange)):
        graph = onnx.helper.make_graph([one], "g", [value("x", 1, [2])], [value("y", 1, [2])])
        opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("nowhere", 1)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    assert main(["bench", str(good), str(bad), "--runs", "20"]) == 1
    out = capsys.readouterr().out
    assert "bad.onnx failed" in out
    assert "Strange" in out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--timing_cache", "t.cache"], "has no timing cache"),
        (["--trtexec-benchmark-args", "--fp16 --best"], "no arguments of trtexec: --fp16 --best"),
        (["--plugins", "missing.so"], "missing.so does not exist"),
        (["--max_shapes", "x:1"], "not take ranges of shapes"),
    ],
)
def test_bench_refuses_what_its_engine_has_no_use_for(
    flags: list[str], words: str, small_resnet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(small_resnet), "--engine", "simulated", *flags]) == 2
    assert words in capsys.readouterr().err


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--format", "json"]) == 0
    health = json.loads(capsys.readouterr().out)
    engines = {engine["name"]: engine for engine in health["engines"]}
    assert engines["onnxruntime"]["usable"]
    assert engines["onnxruntime"]["dialect"].startswith("onnxruntime")
    assert engines["onnxruntime"]["float_type"] == "float32"
    openvino = engines["openvino"]
    if openvino["usable"] and openvino["float_type"] != "float32":
        assert openvino["float32_option"] == "inference_precision=f32"
    assert all(engine["usable"] or engine["reason"] for engine in engines.values())
    assert health["gpu"]["gpus"] or health["gpu"]["reason"]
    assert main(["doctor"]) == 0
    assert health["isa"] in capsys.readouterr().out


def test_interrupting_leaves_130_and_no_traceback(small_resnet: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "qdqtune",
        "bench",
        *[str(small_resnet)] * 4,
        "--runs",
        "90000",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    time.sleep(4)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert without_progress(errors).strip() == "interrupted"


def test_a_reader_that_goes_away_is_no_traceback(small_resnet: Path) -> None:
    command = f"{sys.executable} -m qdqtune doctor --format json | head -1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("{")


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        # The names of engines in the help include those of other packages, found by metadata.
        ("tune", {"numpy", "onnx", "rich", "secrets", "subprocess"}),
        ("strip", {"numpy", "onnx", "rich", "secrets", "subprocess", "importlib.metadata"}),
    ],
)
def test_help_imports_only_what_it_shows(command: str, heavy: set[str]) -> None:
    code = (
        "import sys\n"
        "from qdqtune.cli.main import main\n"
        f"assert main([{command!r}, '--help']) == 0\n"
        f"imported = {heavy!r} & set(sys.modules)\n"
        "assert not imported, imported"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: qdqtune {command}")


def test_importing_qdqtune_is_light() -> None:
    code = "import qdqtune, sys; print([m for m in ('numpy', 'onnx', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
