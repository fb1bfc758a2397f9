"""The real OpenVINO in the real worker: what the conformance kit can't ask of every engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from qdqtune.engines import _openvino_settings as openvino_settings
from qdqtune.engines._hardware import Cpu, limited_isa
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._openvino import with_float_kernels
from qdqtune.engines._openvino_settings import Settings, check_device, settings_of
from qdqtune.engines._worker import Worker, WorkerFailure

AMX = Cpu("a CPU with tiles", "amx_int8")
AVX2 = Cpu("an older CPU", "avx2")
VNNI = Cpu("a CPU without tiles", "avx512_vnni")
# OpenVINO as it was before 2025, as far as the probe looks at it.
OLDER = """
import sys, types, openvino
runtime = types.ModuleType("openvino.runtime")
runtime.opset8 = openvino.opset8
sys.modules.update({"openvino.runtime": runtime, "openvino.opset8": None})
del openvino.opset8
"""


@pytest.fixture(scope="module")
def openvino() -> Iterator[Worker]:
    with Worker("openvino", SessionOptions(threads=1), timeout_s=60) as worker:
        yield worker


def options(**given: str) -> SessionOptions:
    return SessionOptions(threads=1, engine_options=given)


def set_cpu(
    monkeypatch: pytest.MonkeyPatch, cpu: Cpu, *, tiles_work: bool, limit: str = ""
) -> None:
    monkeypatch.setattr(openvino_settings, "read_cpu", lambda: cpu)
    monkeypatch.setattr(openvino_settings, "_amx_works", lambda: tiles_work)
    monkeypatch.setattr(openvino_settings, "_INHERITED_LIMIT", limit)


@pytest.mark.parametrize(
    ("isa", "limit", "left"),
    [
        ("amx_int8", "", "amx_int8"),
        ("amx_int8", "AVX512_CORE_FP16", "avx512_vnni"),
        ("amx_int8", "AVX512_CORE", "avx512"),
        ("amx_int8", "avx2_vnni", "avx_vnni"),
        ("amx_int8", "AVX2", "avx2"),
        ("amx_int8", "ALL", "amx_int8"),
        ("avx2", "AVX512_CORE_VNNI", "avx2"),
        ("neon_dotprod", "AVX2", "neon_dotprod"),
    ],
)
def test_a_limit_leaves_what_is_below_it(isa: str, limit: str, left: str) -> None:
    assert limited_isa(isa, limit) == left


def test_weights_get_seven_bits_where_the_limit_leaves_no_vnni() -> None:
    def dialect(limit: str) -> str:
        return native_dialect("openvino", cpu=AMX, options={"max_cpu_isa": limit}).name

    assert dialect("AVX2") == dialect("AVX512_CORE") == "openvino-novnni"
    assert dialect("AVX512_CORE_VNNI") == "openvino"
    assert native_dialect("openvino", cpu=AVX2).name == "openvino-novnni"


def test_a_cpu_that_keeps_its_promises_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu in (AMX, AVX2):
        set_cpu(monkeypatch, cpu, tiles_work=True)
        settings = settings_of(options())
        assert (settings.isa, settings.max_cpu_isa, settings.in_effect) == (cpu.isa, "", {})
        assert "INFERENCE_PRECISION_HINT" not in settings.properties


def told(given: SessionOptions, default: str = "bf16") -> Settings:
    """What OpenVINO is told if it would compute in that type by itself."""
    kind = SimpleNamespace(get_type_name=lambda: default)
    core = SimpleNamespace(get_property=lambda device, name: kind)
    return with_float_kernels(core, settings_of(given))


@pytest.mark.parametrize("limit", ["", "AVX2"])
def test_without_tiles_floats_stay_floats(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    set_cpu(monkeypatch, AMX, tiles_work=False, limit=limit)
    assert told(options()).in_effect == {
        "max_cpu_isa": limit or "AVX512_CORE_FP16",
        "inference_precision": "f32",
    }
    asked = told(options(inference_precision="bf16"))
    assert asked.properties["INFERENCE_PRECISION_HINT"] == "bf16"


@pytest.mark.parametrize(
    ("cpu", "limit", "default", "is_told"),
    [
        (VNNI, "AVX2", "bf16", True),
        (VNNI, "AVX512_CORE_VNNI", "bf16", True),
        (VNNI, "AVX512_CORE_BF16", "bf16", False),
        (VNNI, "AVX2", "f32", False),
        (VNNI, "", "bf16", False),
        (AMX, "AVX512_CORE_BF16", "bf16", True),
        (AMX, "AVX512_CORE_AMX", "bf16", False),
        (AVX2, "AVX2", "f32", False),
    ],
)
def test_a_limit_without_bfloat16_kernels_makes_floats_float32(
    monkeypatch: pytest.MonkeyPatch, cpu: Cpu, limit: str, default: str, is_told: bool
) -> None:
    set_cpu(monkeypatch, cpu, tiles_work=True, limit=limit)
    settings = told(options(), default)
    assert settings.properties.get("INFERENCE_PRECISION_HINT") == ("f32" if is_told else None)
    assert ("inference_precision" in settings.in_effect) == is_told


def test_the_precision_that_was_asked_for_is_the_only_one_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_cpu(monkeypatch, AMX, tiles_work=False)
    settings = told(options(INFERENCE_PRECISION_HINT="bf16"))
    assert settings.properties["INFERENCE_PRECISION_HINT"] == "bf16"
    assert settings.in_effect.keys() == {"max_cpu_isa", "INFERENCE_PRECISION_HINT"}


@pytest.mark.parametrize(
    ("device", "uses_cpu"),
    [
        ("cpu", True),
        ("AUTO", True),
        ("AUTO:GPU,CPU", True),
        ("AUTO:-GPU", True),
        ("AUTO:GPU,-CPU", False),
        ("AUTO:-CPU", False),
        ("HETERO:CPU", True),
        ("MULTI:GPU.1,CPU", True),
        ("BATCH:CPU(4)", True),
        ("BATCH:GPU(4)", False),
        ("GPU.1", False),
        ("NPU", False),
    ],
)
def test_whatever_may_use_the_cpu_is_mended_and_takes_threads(
    monkeypatch: pytest.MonkeyPatch, device: str, uses_cpu: bool
) -> None:
    set_cpu(monkeypatch, AMX, tiles_work=False)
    free = settings_of(SessionOptions(engine_options={"device": device}))
    assert free.isa == ("avx512_vnni" if uses_cpu else "")
    assert free.max_cpu_isa == ("AVX512_CORE_FP16" if uses_cpu else "")
    assert free.leaves_bfloat16 != uses_cpu
    core = SimpleNamespace(available_devices=["CPU", "GPU.0", "GPU.1", "NPU"])
    check_device(core, free, None)
    with_threads = settings_of(options(device=device))
    assert with_threads.properties.get("INFERENCE_NUM_THREADS") == ("1" if uses_cpu else None)
    refused = pytest.raises(ValueError, match="takes none: leave it out")
    with nullcontext() if uses_cpu else refused:
        check_device(core, with_threads, 1)


@pytest.mark.parametrize("device", ["AUTO", "HETERO:CPU"])
def test_devices_that_are_made_of_the_cpu_run(conv_path, conv_feeds, device: str) -> None:
    with Worker("openvino", options(device=device), timeout_s=60) as worker:
        model = worker.open(conv_path)
        worker.feed(model, conv_feeds)
        assert min(worker.time(model, 2)) > 0
        np.testing.assert_allclose(worker.run(model, conv_feeds)["y"][0, 0, 4, 4], 1.0, rtol=1e-2)


def cores() -> int:
    """Those that this process may use, where the system tells."""
    allowed = getattr(os, "sched_getaffinity", lambda pid: range(os.cpu_count() or 1))
    return len(allowed(0))


@pytest.mark.skipif(cores() < 2, reason="one core has one thread, whatever is asked")
@pytest.mark.parametrize("device", ["CPU", "AUTO"])
def test_more_threads_than_are_told_are_refused(openvino: Worker, conv_path, device: str) -> None:
    otherwise = options(device=device, DEVICE_PROPERTIES="{CPU:{INFERENCE_NUM_THREADS:2}}")
    with pytest.raises(WorkerFailure, match=f"threads is 1, .* '{device}' .* with 2"):
        openvino.open(conv_path, otherwise)


@pytest.mark.parametrize(
    ("probe", "works", "told"),
    [
        ("", True, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", False, ""),
        ("import sys; sys.exit('first\\nlast')", True, "could not be found out: last"),
        ("import os; os._exit(3)", True, "could not be found out: it ended with 3"),
        ("import time; time.sleep(60)", True, "not found out in 0.5 s"),
    ],
)
def test_a_probe_that_tells_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    probe: str,
    works: bool,
    told: str,
) -> None:
    monkeypatch.setattr(openvino_settings, "_PROBE", probe)
    if "sleep" in probe:
        monkeypatch.setattr(openvino_settings, "_PROBE_TIMEOUT_S", 0.5)
    assert openvino_settings._amx_works.__wrapped__() == works
    assert told in caplog.text
    assert bool(told) == bool(caplog.records)


@pytest.mark.parametrize("before", ["", OLDER])
def test_the_probe_runs_on_older_versions_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, before: str
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    monkeypatch.setattr(openvino_settings, "_PROBE", before + openvino_settings._PROBE)
    assert openvino_settings._amx_works.__wrapped__()
    assert not caplog.records


def test_threads_streams_and_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    set_cpu(monkeypatch, AVX2, tiles_work=True)
    plain = settings_of(options()).properties
    assert plain == {"CACHE_DIR": "", "INFERENCE_NUM_THREADS": "1", "NUM_STREAMS": "1"}
    assert "NUM_STREAMS" not in settings_of(options(performance_hint="THROUGHPUT")).properties
    assert settings_of(options(num_streams="2")).in_parallel
    assert not settings_of(options(performance_hint="LATENCY")).in_parallel
    assert settings_of(SessionOptions()).properties == {"CACHE_DIR": ""}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"streams": "2"}, "unknown option 'streams'.*num_streams"),
        ({"CACHE_DIR": "somewhere"}, "without OpenVINO's model cache"),
        ({"max_cpu_isa": "AVX9"}, "'AVX9'; choices: .*AVX2"),
        ({"device": "TPU"}, "no device 'TPU' here; it finds: CPU"),
        ({"num_streams": "4", "NUM_STREAMS": "2"}, "num_streams=4 and NUM_STREAMS=2"),
        ({"INFERENCE_NUM_THREADS": "4"}, "INFERENCE_NUM_THREADS=4 .* threads, 1"),
        ({"NO_SUCH_PROPERTY": "1"}, "RuntimeError: .*NO_SUCH_PROPERTY"),
        ({"inference_precision": "f99"}, "RuntimeError: .*f99"),
    ],
)
def test_a_wrong_option_is_named(conv_path, given: dict[str, str], message: str) -> None:
    with Worker("openvino", timeout_s=60) as worker:
        with pytest.raises(WorkerFailure, match=message) as caught:
            worker.open(conv_path, options(**given))
        assert "Exception from src" not in str(caught.value)


def test_several_runs_at_a_time(conv_path, conv_feeds) -> None:
    two = SessionOptions(threads=2, engine_options={"num_streams": "2"})
    with Worker("openvino", two, timeout_s=60) as worker:
        model = worker.open(conv_path)
        worker.feed(model, conv_feeds)
        samples = worker.time(model, 5)
    assert len(samples) == 5
    assert min(samples) > 0


def test_the_limit_is_for_the_whole_process(openvino: Worker, conv_path) -> None:
    openvino.open(conv_path)
    with pytest.raises(WorkerFailure, match="can't be changed"):
        openvino.open(conv_path, options(max_cpu_isa="SSE41"))


def test_the_runtime_model_can_be_written(openvino: Worker, conv_path, tmp_path) -> None:
    written = tmp_path / "runtime.xml"
    openvino.open(conv_path, SessionOptions(threads=1, optimized_model_path=str(written)))
    assert "originalLayersNames" in written.read_text()


def test_a_layer_names_all_that_it_executes(openvino: Worker, conv_path, conv_feeds) -> None:
    model = openvino.open(conv_path)
    openvino.feed(model, conv_feeds)
    (conv,) = [layer for layer in openvino.layers(model, 3) if layer.op_type == "Convolution"]
    assert conv.precision == openvino.info().float_type
    assert "the_conv" in conv.origins
    np.testing.assert_allclose(openvino.run(model, conv_feeds)["y"][0, 0, 4, 4], 1.0, rtol=1e-2)
