"""Workflows ask the registry what an engine can do, and never look at its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qdqtune.cli.main import main
from qdqtune.engines import _registry as registry
from qdqtune.engines._hardware import Cpu
from qdqtune.records._health import BrokenPlugin, EngineHealth, Gpu, GpuHealth, Health, IsaLimit
from qdqtune.report._health import health_text
from qdqtune.workflows import _doctor as health
from qdqtune.workflows._accuracy_evaluator import has_own_kernels
from tests.conftest import matmul_file


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return matmul_file(tmp_path)


@pytest.fixture
def without_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference engine is not installed; the others are."""
    find = registry.importlib.util.find_spec
    missing = registry.entry(registry.REFERENCE).module
    monkeypatch.setattr(
        registry.importlib.util, "find_spec", lambda name: None if name == missing else find(name)
    )


@pytest.mark.parametrize(
    ("engine", "own"),
    [("onnxruntime", True), ("openvino", True), ("simulated", False), ("tensorrt", False)],
)
def test_who_can_evaluate_what_ships(engine: str, own: bool) -> None:
    assert has_own_kernels(engine) is own


@pytest.mark.usefixtures("without_reference")
@pytest.mark.parametrize("engine", ["openvino", "simulated"])
@pytest.mark.parametrize("command", [["tune"], ["insert", "--ops", "MatMul"]])
def test_calibration_needs_the_reference_engine_and_says_so(
    command: list[str],
    engine: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, *rest = command
    output = tmp_path / "output"
    assert main([name, str(model), *rest, "--engine", engine, "-o", str(output)]) == 1
    error = capsys.readouterr().err
    assert "Calibration runs the float model with ONNX Runtime" in error
    assert "pip install 'qdqtune[onnxruntime]'" in error
    assert not output.is_file()


@pytest.mark.usefixtures("without_reference")
def test_what_needs_no_calibration_works_without_it(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half, wide = tmp_path / "half.onnx", tmp_path / "wide.onnx"
    assert main(["convert", str(model), "--to", "fp16", "-o", str(half)]) == 0
    assert "could not be measured: ONNX Runtime is not installed" in capsys.readouterr().err
    assert main(["shapes", str(model), "--batch", "64", "-o", str(wide)]) == 0
    assert "ONNX Runtime is not installed: the model was not run" in capsys.readouterr().err


# What doctor says.


def healthy(**changes: object) -> Health:
    settings: dict[str, object] = {"isa": "amx_int8", **changes}
    engine = EngineHealth("e", True, "1", "a CPU", "d", "", **settings)  # type: ignore[arg-type]
    return Health("3.11", "a CPU", "amx_int8", False, (engine,))


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (GpuHealth(reason="no NVIDIA driver"), "No NVIDIA GPU answers: no NVIDIA driver."),
        (GpuHealth("570.1", reason="no device"), "no device (driver 570.1)."),
        (
            GpuHealth("570.1", "12.8", (Gpu("H100", "9.0"), Gpu("L4", "8.9"))),
            "NVIDIA driver 570.1, CUDA 12.8: H100 (compute capability 9.0), L4 (compute",
        ),
    ],
)
def test_gpus_are_told(gpu: GpuHealth, words: str) -> None:
    assert words in health_text(replace(healthy(), gpu=gpu))
    assert replace(healthy(), gpu=gpu).to_dict()["gpu"]["driver"] == gpu.driver


def test_what_an_engine_can_do_without_a_gpu_is_told() -> None:
    engine = EngineHealth("e", False, "1", "", "d", "no GPU", program="/bin/e", lists_layers=True)
    text = health_text(replace(healthy(), engines=(engine,)))
    assert "for layers" in text
    assert "no GPU; /bin/e" in text


def test_the_type_of_floats_is_told_with_the_option_that_changes_it() -> None:
    assert "bfloat16" in health_text(healthy(float_type="bfloat16"))
    text = health_text(healthy(float_type="bfloat16", float32_option="exact=1"))
    assert "e computes float32 in bfloat16 here" in text
    assert "--engine_option exact=1 makes it float32" in text


def test_an_engine_that_uses_the_cpu_whole_needs_no_line() -> None:
    assert len(health_text(healthy()).split("\n\n")) == 2


@pytest.mark.parametrize(
    ("inherited", "saturates", "words"),
    [
        (False, False, ("newer kernels crash on this machine", "get 8 bits")),
        (True, False, ("because LIMIT=OLD is set", "get 8 bits")),
        (True, True, ("because LIMIT=OLD is set", "saturate at int16 here, so weights get 7 bits")),
    ],
)
def test_a_limit_is_told_in_one_line(
    inherited: bool, saturates: bool, words: tuple[str, ...]
) -> None:
    limit = IsaLimit("OLD", "LIMIT", inherited)
    text = health_text(healthy(isa="avx2", saturates_u8s8=saturates, limited=limit))
    line = text.split("\n\n")[2]
    assert line.startswith("e uses avx2 instead of amx_int8, ")
    assert all(part in line for part in words)
    assert "needs LIMIT=OLD in its environment" in line
    assert "\n" not in line


def test_what_other_packages_say_can_not_write_to_the_terminal() -> None:
    sound = healthy()
    broken = BrokenPlugin("x", "p 1", "\x1b[31mboom")
    text = health_text(Health("3.11", "a CPU", "avx2", True, sound.engines, (broken,)))
    assert "warning: the engine x of p 1 can't be used" in text
    assert "\x1b" not in text


def test_the_limit_of_an_engine_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setattr(health, "read_cpu", lambda: Cpu("a CPU", "amx_int8"))
    found = health._examine_engine("openvino")
    assert found.limited == IsaLimit("AVX2", "ONEDNN_MAX_CPU_ISA", True)
    assert (found.isa, found.saturates_u8s8, found.dialect) == ("avx2", True, "openvino-novnni")
