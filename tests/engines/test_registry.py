from __future__ import annotations

import subprocess
import sys

import pytest
from tests.stand_ins.tensorrt_api.fixtures import api_environment

from qdqtune.engines import _registry as registry
from qdqtune.engines._hardware import Cpu
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._worker import probe_engine
from qdqtune.records._errors import EngineError, UsageError
from qdqtune.records._health import Gpu, GpuHealth

VARIABLES = ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"]


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(registry.shutil, "which", lambda name: None)


def test_onnxruntime_is_usable():
    status = registry.available("onnxruntime")
    assert status.usable
    assert status.version
    assert status.reason == ""


def test_auto_is_onnxruntime_here():
    assert registry.resolve("auto") == "onnxruntime"


def test_a_typo_gets_its_correction():
    with pytest.raises(UsageError) as caught:
        registry.resolve("onxruntime")
    assert "Unknown engine 'onxruntime'" in str(caught.value)
    assert "Did you mean 'onnxruntime'?" in caught.value.hint
    assert "tensorrt_rtx" in caught.value.hint


def test_an_unknown_engine_gets_the_choices():
    with pytest.raises(UsageError) as caught:
        registry.available("zzz")
    assert "Did you mean" not in caught.value.hint
    assert "Choices: auto, onnxruntime, openvino" in caught.value.hint


@pytest.mark.usefixtures("nothing_installed")
def test_a_missing_engine_names_its_extra():
    with pytest.raises(EngineError) as caught:
        registry.resolve("onnxruntime")
    assert "pip install 'qdqtune[onnxruntime]'" in caught.value.hint
    assert "pip install" in registry.available("onnxruntime").reason


@pytest.mark.usefixtures("nothing_installed")
def test_auto_with_nothing_installed_says_what_to_install():
    with pytest.raises(EngineError) as caught:
        registry.resolve("auto")
    assert "qdqtune[onnxruntime]" in caught.value.hint


NO_GPU = GpuHealth(reason="no NVIDIA driver")
ONE_GPU = GpuHealth("570.1", "12.8", (Gpu("NVIDIA H100", "9.0"),))


@pytest.fixture(params=[NO_GPU, ONE_GPU], ids=["no GPU", "a GPU"])
def gpus(request, monkeypatch):
    monkeypatch.setattr(registry, "find_gpus", lambda: request.param)
    return request.param.gpus


@pytest.fixture
def all_installed(monkeypatch):
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: object())


@pytest.mark.usefixtures("all_installed")
@pytest.mark.parametrize("name", ["tensorrt", "tensorrt_rtx"])
def test_without_a_gpu_nothing_is_timed(name, gpus):
    status = registry.available(name)
    assert status.usable == bool(gpus)
    assert status.lists_layers == (bool(gpus) or name == "tensorrt_rtx")
    assert registry.worker_class(name)
    if gpus:
        assert registry.resolve(name) == name
        return
    assert status.reason == "no NVIDIA GPU answers (no NVIDIA driver)"
    with pytest.raises(EngineError, match="can't time models here: no NVIDIA GPU answers") as told:
        registry.resolve(name)
    assert ("inspect --layers --engine tensorrt_rtx" in told.value.hint) == status.lists_layers


@pytest.mark.usefixtures("all_installed")
def test_layers_are_listed_without_a_gpu(gpus):
    assert registry.resolve("tensorrt_rtx", only_layers=True) == "tensorrt_rtx"
    if not gpus:
        with pytest.raises(EngineError, match="TensorRT can't time models"):
            registry.resolve("tensorrt", only_layers=True)


@pytest.fixture(params=["8.6.1", "11.1.0", ""])
def tensorrt(request, tmp_path, monkeypatch):
    """TensorRT in some version, which its package doesn't tell; or one that does not load."""
    if request.param:
        for name, value in api_environment(request.param, tmp_path).items():
            monkeypatch.setenv(name, value)
    probe_engine.cache_clear()
    yield request.param
    probe_engine.cache_clear()


@pytest.mark.usefixtures("all_installed")
def test_auto_takes_the_gpu_if_something_starts_on_it(tensorrt, monkeypatch, caplog):
    monkeypatch.setattr(registry, "find_gpus", lambda: ONE_GPU)
    assert registry.resolve("auto") == ("tensorrt" if tensorrt else "onnxruntime")
    told = "TensorRT is installed, but does not start: ModuleNotFoundError"
    assert (told in caplog.text) == (not tensorrt)
    dialect = native_dialect("tensorrt").name
    assert dialect == ("tensorrt-8" if tensorrt.startswith("8") else "tensorrt")


@pytest.mark.usefixtures("all_installed")
def test_where_there_is_no_gpu_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(registry, "find_gpus", lambda: NO_GPU)
    probe_engine.cache_clear()
    assert registry.resolve("auto") == "onnxruntime"
    assert native_dialect("tensorrt").name == "tensorrt"
    assert not probe_engine.cache_info().currsize


@pytest.mark.parametrize(
    ("name", "chosen"), [("onnxruntime", "onnxruntime"), ("openvino", "openvino")]
)
def test_auto_goes_by_its_order(name, chosen, monkeypatch):
    found = {name: object(), "tensorrt_rtx": object()}
    monkeypatch.setattr(registry.importlib.util, "find_spec", found.get)
    assert registry.resolve("auto") == chosen


def test_a_program_is_found_where_it_is_said_to_be(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    program = tmp_path / "trtexec-10"
    program.write_text(
        f"#!{sys.executable}\nprint('&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec')\n"
    )
    program.chmod(0o755)
    options = {"path": str(program)}
    with pytest.raises(EngineError, match="not installed"):
        registry.resolve("trtexec")
    assert registry.resolve("trtexec", options) == "trtexec"
    assert registry.available("trtexec", options).program == str(program)
    assert registry.available("trtexec", options).version == "8.6.1"
    assert native_dialect("trtexec", options=options).name == "tensorrt-8"


def test_a_program_that_says_nothing_has_no_version(tmp_path):
    program = tmp_path / "trtexec"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    status = registry.available("trtexec", {"path": str(program)})
    assert (status.usable, status.version) == (True, "")


def test_looking_around_imports_no_engine():
    code = (
        "import sys\n"
        "from qdqtune.engines import _registry as registry\n"
        "[registry.available(name) for name in registry.ENGINES]\n"
        "heavy = {'onnxruntime', 'openvino', 'tensorrt', 'tensorrt_rtx', 'qdqtune.testing'}\n"
        "assert not heavy & set(sys.modules), sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("engine", "version", "isa", "options", "dialect"),
    [
        ("onnxruntime", "", "avx2", {}, "onnxruntime-novnni"),
        ("onnxruntime", "", "avx512_vnni", {}, "onnxruntime"),
        ("onnxruntime", "", "neon_dotprod", {}, "onnxruntime"),
        ("onnxruntime", "", "amx_int8", {"max_cpu_isa": "AVX2"}, "onnxruntime"),
        ("openvino", "", "avx512", {}, "openvino-novnni"),
        ("openvino", "", "amx_int8", {}, "openvino"),
        ("openvino", "", "amx_int8", {"max_cpu_isa": "AVX512_CORE"}, "openvino-novnni"),
        ("openvino", "", "amx_int8", {"max_cpu_isa": "AVX512_CORE_FP16"}, "openvino"),
        ("tensorrt", "8.6.1", "avx2", {}, "tensorrt-8"),
        ("tensorrt", "10.3", "avx2", {}, "tensorrt"),
        ("trtexec", "", "avx2", {}, "tensorrt"),
        ("trtexec", "8.6.1", "avx2", {}, "tensorrt-8"),
        ("tensorrt_rtx", "1.7", "avx2", {}, "tensorrt"),
        ("simulated", "", "avx2", {"profile": "cpu-vnni"}, "onnxruntime"),
    ],
)
def test_the_dialect_follows_from_engine_version_and_cpu(
    engine, version, isa, options, dialect, monkeypatch
):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    assert native_dialect(engine, version, Cpu("a CPU", isa), options).name == dialect


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize(
    ("engine", "limit", "dialect"),
    [
        ("openvino", "AVX2", "openvino-novnni"),
        ("openvino", "ALL", "openvino"),
        ("onnxruntime", "AVX2", "onnxruntime"),
    ],
)
def test_a_limit_in_the_environment_holds_for_those_who_read_it(
    engine, limit, dialect, variable, monkeypatch
):
    for each in VARIABLES:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(variable, limit)
    assert native_dialect(engine, cpu=Cpu("a CPU", "amx_int8")).name == dialect


def test_no_engine_of_ours_is_left_without_a_dialect():
    for name in registry.ENGINES:
        for isa in ("avx2", "amx_int8", "neon", "unknown"):
            for version in ("", "1.0", "8.6", "2026.4"):
                assert native_dialect(name, version, Cpu("a CPU", isa))
