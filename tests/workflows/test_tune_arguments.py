"""What `tune` and `plan_tune` say of arguments that belong to one workflow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtune.config import NameFilters
from qdqtune.records._errors import QdqtuneError, UsageError
from qdqtune.records._inputs import InputRequest, request_of
from qdqtune.workflows.tuning._tune import plan_tune, tune
from tests.conftest import model_from_text

OPEN = InputRequest(dims={"N": 4})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    text = "g (float[N,8] x) => (float[N,8] y) { h = MatMul(x, w) y = Relu(h) }"
    path = tmp_path / "model.onnx"
    onnx.save(model_from_text(text, w=np.eye(8, dtype=np.float32)), path)
    return path


@pytest.mark.parametrize("call", [tune, plan_tune])
@pytest.mark.parametrize(
    ("name", "value"),
    [("graph_json", "a.json"), ("min_shapes", {"x": (1, 8)}), ("max_shapes", OPEN)],
)
def test_what_region_mode_has_no_use_for(
    call: Callable[..., object], name: str, value: object, model: Path
) -> None:
    with pytest.raises(UsageError, match=f"{name} requires --workflow subgraph") as caught:
        call(model, engine="simulated", inputs=OPEN, **{name: value})
    assert "workflow='subgraph'" in caught.value.hint


@pytest.mark.parametrize(
    ("value", "workflow", "words"),
    [
        (False, "region", "no_incremental_validation requires --workflow subgraph"),
        ("no", "subgraph", "incremental_validation must be True or False, not 'no'"),
        (None, "region", "incremental_validation must be True or False, not None"),
    ],
)
def test_incremental_validation_is_yes_or_no(
    value: Any, workflow: str, words: str, model: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        tune(model, engine="simulated", workflow=workflow, incremental_validation=value)


@pytest.mark.parametrize("call", [tune, plan_tune])
@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"min_shapes": {"x": (5, 8)}}, "The min shape 5x8"),
        ({"max_shapes": {"x": [3, 8]}}, "The opt shape 4x8"),
        ({"max_shapes": InputRequest({"": (3, 8)})}, "The opt shape 4x8"),
        ({"min_shapes": {"y": (1, 8)}}, "'y'"),
        ({"min_shapes": {"x": 3}}, "can't be read as shapes"),
        ({"min_shapes": {"x": ("1", 8)}}, "can't be read as shapes"),
        ({"min_shapes": [1, 8]}, "can't be read as shapes"),
    ],
)
def test_shapes_that_cannot_be(
    call: Callable[..., object], shapes: dict[str, Any], words: str, model: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        call(model, engine="simulated", workflow="subgraph", inputs=OPEN, **shapes)


def test_a_plan_with_a_range_of_shapes(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "layers.json"
    file.write_text(json.dumps({"Layers": ["n0 + n1"]}))
    plan = plan_tune(
        model, engine="simulated", workflow="subgraph", inputs=OPEN, graph_json=file,
        min_shapes={"x": (1, 8)}, max_shapes={"": (64, None)},
    )  # fmt: skip
    assert plan.mode == "subgraph"


def test_sizes_by_input_are_a_request() -> None:
    assert request_of({"x": [1, 8]}) == InputRequest({"x": (1, 8)})
    assert request_of(OPEN) is OPEN
    assert request_of(None) is None


@pytest.mark.parametrize(
    "refused",
    [
        {"qdq_baseline": "model.onnx"},
        {"qdq_baseline": "gone.onnx"},
        {"budget_s": 0.0},
        {"budget_s": float("nan")},
        {"node_filter": ("gone*",)},
        {"engine_options": {"gone": "1"}},
        {"evaluate": lambda path: None},
    ],
    ids=lambda refused: next(iter(refused)),
)
@pytest.mark.parametrize("is_there", [False, True])
def test_what_is_refused_leaves_nothing_behind(
    refused: dict[str, Any], is_there: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    if is_there:
        Path("all/run").mkdir(parents=True)
    before = sorted(Path().rglob("*"))
    with pytest.raises(QdqtuneError):
        tune(model, engine="simulated", inputs=OPEN, output_dir="all/run", **refused)
    assert sorted(Path().rglob("*")) == before


def test_a_plan_leaves_out_what_filters_leave_float(model: Path) -> None:
    options: dict[str, Any] = {"engine": "simulated", "inputs": OPEN}
    assert plan_tune(model, **options).groups == 2  # static or dynamic
    filters = NameFilters(op_types_to_exclude=["MatMul"])
    assert plan_tune(model, **options, filters=filters).groups == 0
