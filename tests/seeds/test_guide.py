"""The guide's own code, block by block, with nothing changed but the package's name."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtune.autotune.__main__ import main as autotune
from qdqtune.autotune.region_inspect import main as region_inspect
from qdqtune.cli.main import main
from qdqtune.qdq_utils import get_quantized_tensors
from qdqtune.workflows._benchmarks import init_benchmark_instance
from tests.conftest import model_from_text

BLOCKS = Path(__file__).parent.parent / "data" / "seed_002"

FLOAT_MODELS = (
    "model", "model_v1", "model_v2", "bert_base", "bert_large", "roberta_base", "resnet50",
    "gpt2_small", "gpt2_medium",
)  # fmt: skip
QUANTIZED_MODELS = ("manually_quantized", "quantized_baseline")

COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "qdqtune.autotune": autotune,
    "qdqtune.autotune.region_inspect": region_inspect,
}

# Blocks that one user runs in one folder, one after the other; Python ones share their names.
QUICK_START = ("01_quick_start.sh", "17_faster.sh", "18_verbose.sh", "19_logs.sh")
LOW_LEVEL = ("07_low_level.py", "08_state.py", "09_pattern_cache.py", "10_import_baseline.py")
ELSEWHERE = ("13_trtexec.sh",)  # test_trtexec deploys a tuned model with it

# What a command of a block says when it can't do what it is asked here; all others end well.
NO_FP8 = "dialect has no quant type 'fp8'"
NO_PLUGIN = "The plugin library /path/to/plugin"
REFUSED = {
    ("01_quick_start.sh", 1): NO_FP8,
    ("06_plugins.sh", 0): NO_PLUGIN,
    ("16_plugin.sh", 0): NO_PLUGIN,
    ("24_transfer.sh", 0): NO_FP8,
    ("24_transfer.sh", 1): NO_FP8,
}


def groups() -> list[tuple[str, ...]]:
    """Every block, in groups that share a folder."""
    found = sorted(path.name.removesuffix(".txt") for path in BLOCKS.glob("*.txt"))
    assert len(found) == 26
    together = (*QUICK_START, *LOW_LEVEL, *ELSEWHERE)
    alone = [(name,) for name in found if name not in together]
    return [*alone, QUICK_START, LOW_LEVEL]


def block(name: str) -> str:
    return (BLOCKS / f"{name}.txt").read_text().replace("modelopt.onnx.quantization", "qdqtune")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has every file that a block presupposes; the models are as small as can be."""
    weights = np.random.default_rng(0).normal(size=(2, 8, 8, 1, 1)).astype(np.float32)
    small = model_from_text(
        "g (float[1,8,8,8] x) => (float[1,8,8,8] y) { y = Conv(x, w) }", w=weights[0]
    )
    for name in FLOAT_MODELS:
        onnx.save(small, tmp_path / f"{name}.onnx")
    larger = model_from_text(
        "g (float[1,8,8,8] x) => (float[1,8,8,8] y) { c = Conv(x, w) r = Relu(c) y = Conv(r, v) }",
        w=weights[0],
        v=weights[1],
    )
    onnx.save(larger, tmp_path / "larger.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def quantize(model: str) -> None:
    for name in QUANTIZED_MODELS:
        assert main(["insert", model, "--ops", "Conv", "-o", f"{name}.onnx", "-q"]) == 0


def tier_of(group: tuple[str, ...]) -> Any:
    """Commands take a run each; in `make test`, test_autotune_command has some."""
    is_shell = any(name.endswith(".sh") for name in group)
    return pytest.param(group, id=group[0], marks=pytest.mark.docs if is_shell else ())


@pytest.mark.usefixtures("brief_timing")
@pytest.mark.parametrize("group", [tier_of(group) for group in groups()])
def test_the_blocks_run(
    group: tuple[str, ...], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if group == LOW_LEVEL:
        shutil.copyfile("larger.onnx", "model.onnx")
    if any("quantized" in block(name) for name in group):
        quantize("model.onnx")
    namespace: dict[str, Any] = {}
    try:
        for name in group:
            if name.endswith(".py"):
                run_python(name, namespace)
            else:
                run_shell(name, folder, capfd)
        if group == QUICK_START:
            check_the_files_of(folder / "autotuner_output")
        if group == LOW_LEVEL:
            check_the_import(namespace)
    finally:
        init_benchmark_instance(engine="simulated")  # ends the process of the blocks' own one


def run_python(name: str, namespace: dict[str, Any]) -> None:
    if "import tensorrt" in block(name) and importlib.util.find_spec("tensorrt") is None:
        pytest.skip("needs TensorRT; TensorRT-RTX has no EXPLICIT_BATCH flag")
    exec(compile(block(name), name, "exec"), namespace)


def run_shell(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The first block is run as a user does; with the others, our commands run in this process."""
    lines = block(name).replace("\\\n", " ").splitlines()
    for number, line in enumerate(line for line in lines if line.strip()):
        words = shlex.split(line)
        if words[0] == "python" and name != QUICK_START[0]:
            assert words[1] == "-m"
            code = COMMANDS[words[2]](words[3:])
            errors = capfd.readouterr().err
        else:
            code, errors = run_process(words, folder)
        assert "Traceback" not in errors
        reason = REFUSED.get((name, number))
        if reason is None:
            assert code == 0, f"{line}\n{errors}"
        else:
            assert code == 1
            assert reason in errors


def run_process(words: list[str], folder: Path) -> tuple[int, str]:
    program = sys.executable if words[0] == "python" else shutil.which(words[0])
    if program is None:
        pytest.skip(f"there is no {words[0]} here")
    done = subprocess.run(
        [program, *words[1:]], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stderr


def check_the_files_of(output: Path) -> None:
    """Those that the guide lists."""
    for name in (
        "autotuner_state.yaml",
        "autotuner_state_pattern_cache.yaml",
        "baseline.onnx",
        "optimized_final.onnx",
        "logs/baseline.log",
        "logs/region_0_scheme_0.log",
        "logs/final.log",
        "region_models",
    ):
        assert (output / name).exists(), name


def check_the_import(names: dict[str, Any]) -> None:
    """What a baseline quantizes, by the names that the autotuner knows, is what it tries first."""
    assert names["quantized_tensors"] >= {"x", "w", "r"}
    assert names["quantized_tensors"] == get_quantized_tensors("quantized_baseline.onnx")
    autotuner = names["autotuner"]
    autotuner.submit(1.0)
    autotuner.set_profile_region(autotuner.regions[0])
    scheme = autotuner.current_profile_pattern_schemes.schemes[autotuner.generate()]
    assert not scheme.is_empty


def test_regions_of_ones_own(folder: Path) -> None:
    """The guide's subclass, put to use."""
    namespace: dict[str, Any] = {}
    exec(compile(block("21_custom_autotuner.py"), "21", "exec"), namespace)
    from qdqtune.autotune import Region, RegionType

    region = Region(0, 0, RegionType.LEAF)
    region.nodes.add(0)
    autotuner = namespace["CustomAutotuner"](onnx.load("larger.onnx"), [region])
    autotuner.initialize()
    assert [sorted(each.nodes) for each in autotuner.regions] == [[0]]
    autotuner.submit(1.0)
    autotuner.set_profile_region(autotuner.regions[0])
    assert autotuner.generate() >= 0
