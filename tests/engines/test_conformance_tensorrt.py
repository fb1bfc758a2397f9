"""trtexec passes the kit on a stand-in of it, and TensorRT-RTX what needs no GPU.

The stand-in is tests/stand_ins/trtexec.py: it needs no GPU, and its times are simulated.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.stand_ins.fixtures import stand_in_environment, write_stand_in_trtexec

from qdqtune.engines._hardware import find_gpus
from qdqtune.engines._interface import SessionOptions
from qdqtune.testing import EngineConformance, EngineUnderTest

TRTEXEC = "qdqtune.engines.tensorrt._trtexec:TrtexecEngine"
TENSORRT_RTX = "qdqtune.engines.tensorrt._engine:TensorRtRtxEngine"
# trtexec writes outputs with six digits.
SIX_DIGITS_DB = 100.0
# Models differ by version in nothing but their layers.
SOME = ("resnet18", "bert", "shufflenet_v2", "vit")


@pytest.fixture(scope="session")
def stand_in_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stand_in_trtexec(tmp_path_factory.mktemp("stand-in"))


def stand_in(folder: Path, version: str, dialect: str, **promised: object) -> EngineUnderTest:
    calls = folder / f"calls of {version}.jsonl"
    return EngineUnderTest(
        TRTEXEC,
        SessionOptions(engine_options={"typing": "strong"} if dialect == "tensorrt" else {}),
        dialect=dialect,
        program=True,
        measures=False,
        float_db=SIX_DIGITS_DB,
        other_options={"level": "1", "warmup_ms": "50"},
        environment=stand_in_environment(folder, version, calls=calls),
        **promised,
    )


@pytest.mark.slow
class TestStandInOf86(EngineConformance):
    @pytest.fixture
    def engine(self, stand_in_folder: Path) -> EngineUnderTest:
        return stand_in(stand_in_folder, "8.6.1", "tensorrt-8", architectures=SOME)


class TestStandInOf1016(EngineConformance):
    @pytest.fixture
    def engine(self, stand_in_folder: Path) -> EngineUnderTest:
        return stand_in(stand_in_folder, "10.16.1", "tensorrt")


@pytest.mark.slow
class TestStandInOf11(EngineConformance):
    @pytest.fixture
    def engine(self, stand_in_folder: Path) -> EngineUnderTest:
        return stand_in(stand_in_folder, "11.1.0", "tensorrt", architectures=SOME)


@pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="TensorRT-RTX is not installed"
)
@pytest.mark.skipif(bool(find_gpus().gpus), reason="there is a GPU")
class TestTensorRtRtxWithoutGpu(EngineConformance):
    @pytest.fixture
    def engine(self) -> EngineUnderTest:
        return EngineUnderTest(
            TENSORRT_RTX,
            SessionOptions(),
            dialect="tensorrt",
            runs=False,
            architectures=("resnet18", "convnext", "vit", "bert", "unet", "mobilenet_v2"),
            other_options={"compute_capability": "sm120"},
        )
