"""Every engine that measures here, and the one that makes its times up, pass the kit."""

from __future__ import annotations

import pytest

from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._openvino_settings import settings_of
from qdqtune.testing import EngineConformance, EngineUnderTest

ONE_THREAD = SessionOptions(threads=1)


class TestOnnxRuntime(EngineConformance):
    @pytest.fixture
    def engine(self) -> EngineUnderTest:
        return EngineUnderTest(
            "onnxruntime",
            dialect=native_dialect("onnxruntime").name,
            other_options={"graph_optimization_level": "basic"},
        )


class TestOpenVino(EngineConformance):
    @pytest.fixture
    def engine(self) -> EngineUnderTest:
        # What a broken machine needs is found out once, not in every process that is started.
        options = dict(settings_of(ONE_THREAD).in_effect)
        return EngineUnderTest(
            "openvino",
            SessionOptions(threads=1, engine_options=options),
            dialect=native_dialect("openvino", options=options).name,
            other_options={"ENABLE_CPU_PINNING": "NO"},
        )


class TestSimulated(EngineConformance):
    @pytest.fixture
    def engine(self) -> EngineUnderTest:
        return EngineUnderTest(
            "simulated",
            dialect=native_dialect("simulated").name,
            measures=False,
            other_options={"profile": "cpu", "seed": "7"},
        )
