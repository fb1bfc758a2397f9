"""trtexec passes the kit on a stand-in of it, and TensorRT-RTX what needs no GPU.

The stand-in is tests/stand_ins/trtexec.py: it needs no GPU, and its times are made up.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.stand_ins.fixtures import stand_in_environment, write_stand_in_trtexec

from qdqtune.engines.gpu import find_gpus
from qdqtune.engines.interface import SessionOptions
from qdqtune.testing import EngineConformance, EngineUnderTest

TRTEXEC = "qdqtune.engines.trtexec.engine:TrtexecEngine"
TENSORRT_RTX = "qdqtune.engines.tensorrt.engine:TensorRtRtxEngine"
# trtexec writes outputs with six digits.
SIX_DIGITS_DB = 100.0


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


class StandInConformance(EngineConformance):
    """The kit without what a stand-in can't show: its arithmetic is ONNX Runtime's."""

    test_extreme_values_do_not_overflow = None


class OneOfManyVersions(StandInConformance):
    """The same without what has nothing to do with flags or files: one version will do for it."""

    test_outputs_repeat = None
    test_closing_gives_memory_back = None
    test_sessions_do_not_mix = None
    test_feeds_are_kept = None
    test_a_crash_is_a_failure = None
    test_a_model_is_as_fast_as_itself = None


class TestStandInOf86(OneOfManyVersions):
    @pytest.fixture
    def engine(self, stand_in_folder: Path) -> EngineUnderTest:
        return stand_in(stand_in_folder, "8.6.1", "tensorrt-8", architectures=("resnet18", "bert"))


class TestStandInOf1016(StandInConformance):
    @pytest.fixture
    def engine(self, stand_in_folder: Path) -> EngineUnderTest:
        some = ("resnet18", "efficientnet", "bert", "unet", "yolo")
        return stand_in(stand_in_folder, "10.16.1", "tensorrt", architectures=some)


class TestStandInOf11(OneOfManyVersions):
    # The dialect and the types of inputs are those of 10.
    test_quantized_ops_are_exact = None
    test_odd_models_run = None

    @pytest.fixture
    def engine(self, stand_in_folder: Path) -> EngineUnderTest:
        return stand_in(
            stand_in_folder, "11.1.0", "tensorrt",
            quant_types=("int8",), architectures=("vit", "shufflenet_v2"),
        )  # fmt: skip


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
