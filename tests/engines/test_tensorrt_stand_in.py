"""The stand-in for TensorRT's API is like the real one, as far as is known without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from tests.conftest import model_from_text
from tests.stand_ins.tensorrt_api.fixtures import api_environment
from tests.stand_ins.tensorrt_api.situation import VERSIONS

from qdqtune.engines import _registry as registry

Facts = dict[str, dict[str, Any]]
BUILT = "built"
PAIR = "q = QuantizeLinear({0}, s, z) {1} = DequantizeLinear(q, s, z)"


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """What it does, by version."""
    folder = tmp_path_factory.mktemp("facts")
    constants = {"s": np.array(0.1, np.float32), "z": np.array(0, np.int8)}
    weights = {"w": np.ones((2, 3, 3, 3), np.float32)}
    texts = {
        "open": ("g (float[n,8] x) => (float[n,8] y) { y = Relu(x) }", {}),
        "int8": (f"g (float[2,8] x) => (float[2,8] y) {{ {PAIR.format('x', 'y')} }}", constants),
        "window": (
            "g (float[1,3,6,6] x) => (float[1,2,4,4] y)"
            f"{{ {PAIR.format('w', 'v')} y = Conv(x, v) }}",
            {**constants, **weights},
        ),
    }
    for name, (text, given) in texts.items():
        onnx.save(model_from_text(text, **given), folder / f"{name}.onnx")
    command = [sys.executable, "-m", "tests.stand_ins.tensorrt_api.facts", str(folder)]
    found = {}
    for version in VERSIONS:
        environment = {**os.environ, **api_environment(version, folder)}
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
        found[version] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(
    not registry.available("tensorrt_rtx").version, reason="TensorRT-RTX is not installed"
)
class TestLikeTensorRtRtx:
    """Its API is about that of version 11."""

    def test_enums_have_its_numbers(self, facts: Facts) -> None:
        api = pytest.importorskip("tensorrt_rtx")
        for name, members in facts["11.1.0"]["enums"].items():
            real = {key: int(value) for key, value in getattr(api, name).__members__.items()}
            extra = {"PREFER_AOT_PYTHON_PLUGINS", "PREFER_JIT_PYTHON_PLUGINS"}  # which RTX has not
            assert {k: v for k, v in members.items() if k not in extra}.items() <= real.items()

    def test_classes_have_no_more_than_the_real_ones(self, facts: Facts) -> None:
        api = pytest.importorskip("tensorrt_rtx")
        for name, members in facts["11.1.0"]["members"].items():
            missing = set(members) - set(dir(getattr(api, name)))
            assert not missing, f"{name} has no {missing}"


@pytest.mark.parametrize(
    ("enum", "name", "numbers"),
    [
        ("NetworkDefinitionCreationFlag", "EXPLICIT_BATCH", (0, 0, None)),
        ("NetworkDefinitionCreationFlag", "STRONGLY_TYPED", (None, 1, 0)),
        ("BuilderFlag", "FP16", (0, 0, None)),
        ("BuilderFlag", "INT8", (1, 1, None)),
        ("BuilderFlag", "BF16", (None, 17, None)),
        ("BuilderFlag", "TF32", (7, 6, 6)),
        ("DataType", "INT64", (None, 8, 8)),
    ],
)
def test_names_and_numbers_are_those_of_a_version(
    facts: Facts, enum: str, name: str, numbers: tuple[int | None, ...]
) -> None:
    found = [facts[version]["enums"][enum].get(name) for version in VERSIONS]
    assert found == list(numbers)


def test_only_newer_parsers_name_nodes(facts: Facts) -> None:
    named = ["node_name" in facts[version]["members"]["ParserError"] for version in VERSIONS]
    assert named == [False, True, True]


@pytest.mark.parametrize(
    ("what", "outcomes"),
    [
        ("no flags", ("explicit batch", BUILT, BUILT)),
        ("unknown flags", ("unknown flags",) * 3),
        ("no profile", ("no optimization profile has been defined",) * 3),
        ("profile", (BUILT,) * 3),
        ("wrong profile", ("static dimensions",) * 3),
        ("int8", (BUILT,) * 3),
        (
            "int8 without its flag",
            ("int8 is not configured in the builder", "int8 is not configured", BUILT),
        ),
        ("strong int8", ("int8 is not configured", BUILT, BUILT)),
        ("strong with a flag", (BUILT, "strongly typed", BUILT)),
        ("no window", ("checkSpatialDims", BUILT, BUILT)),
    ],
)
def test_refuses_what_a_version_refuses(facts: Facts, what: str, outcomes: tuple[str, ...]) -> None:
    for version, outcome in zip(VERSIONS, outcomes, strict=True):
        assert outcome in facts[version][what], version
