"""The kit on a real engine that really overflows: OpenVINO without VNNI, told by an option."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace

import pytest

from qdqtune.engines._hardware import read_cpu
from qdqtune.engines._interface import SessionOptions
from qdqtune.testing import Bench, EngineConformance, EngineUnderTest

X86 = platform.machine().lower() in ("x86_64", "amd64") and read_cpu().isa != "x86"
OPTIONS = {"max_cpu_isa": "AVX2", "inference_precision": "f32"}


@pytest.fixture(scope="module")
def without_vnni(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    options = SessionOptions(threads=1, engine_options=OPTIONS)
    bench = Bench(EngineUnderTest("openvino", options), tmp_path_factory.mktemp("avx2"))
    yield bench
    bench.close()


@pytest.mark.skipif(not X86, reason="only x86 has kernels that saturate")
@pytest.mark.parametrize("op", ["Conv", "MatMul"])
def test_eight_bits_overflow_and_seven_do_not(without_vnni: Bench, op: str) -> None:
    without_vnni.engine = replace(without_vnni.engine, dialect="openvino-novnni")
    EngineConformance().test_extreme_values_do_not_overflow(without_vnni, op)
    without_vnni.engine = replace(without_vnni.engine, dialect="openvino")
    with pytest.raises(AssertionError, match="saturate at 16 bits"):
        EngineConformance().test_extreme_values_do_not_overflow(without_vnni, op)
