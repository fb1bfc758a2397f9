"""Activations stay sane: neither dead nor exploding, at the default depth and at great depth."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from qdqtune.zoo import build
from tests.zoo.runs import activations, has_own_scale

SIZES = [
    ("resnet18", {"image": 128}),
    ("resnet50", {"image": 96}),
    ("resnet50", {"blocks": (3, 8, 36, 3), "width": 16, "image": 64}),
    ("resnet18", {"blocks": (8, 16, 36, 8), "width": 16, "image": 64, "seed": 1}),
    ("mobilenet_v2", {}),
    ("efficientnet", {"image": 128}),
    ("efficientnet", {"depth": 3.0, "image": 96}),
    ("shufflenet_v2", {}),
    ("convnext", {"image": 96}),
    ("convnext", {"depths": (3, 3, 27, 3), "dims": (16, 32, 64, 128), "image": 64}),
    ("vit", {"image": 64}),
    ("vit", {"layers": 48, "width": 128, "image": 64}),
    ("bert", {}),
    ("bert", {"layers": 48, "width": 128, "sequence": 32, "vocabulary": 1000}),
    ("gpt", {}),
    ("gpt", {"layers": 48, "width": 128, "sequence": 32, "vocabulary": 1000}),
    ("unet", {}),
    ("yolo", {"image": 160}),
    ("yolo", {"depth": 3, "image": 160}),
    ("chain", {}),
]


@pytest.mark.parametrize(("name", "settings"), SIZES)
def test_activations_stay_in_range(name: str, settings: dict[str, Any]) -> None:
    model = build(name, **settings)
    values = activations(model)

    stds = {key: float(value.std()) for key, value in values.items() if not has_own_scale(key)}
    assert all(np.isfinite(value).all() for value in values.values())
    assert {key: std for key, std in stds.items() if not 0.05 < std < 20} == {}
    assert all(ratio >= 0.05 for ratio in branch_ratios(model, values))


def branch_ratios(model: onnx.ModelProto, values: dict[str, np.ndarray]) -> list[float]:
    """For each residual sum, how large the smaller summand is beside the larger."""
    ratios = []
    for node in model.graph.node:
        is_sum = node.op_type == "Add" and all(name in values for name in node.input)
        if is_sum and not any(has_own_scale(name) for name in (*node.input, *node.output)):
            small, large = sorted(float(values[name].std()) for name in node.input)
            ratios.append(small / large)
    return ratios
