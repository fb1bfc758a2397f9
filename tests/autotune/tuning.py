"""Driving an autotuner as the seeds do, with latencies that are computed instead of measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnxruntime

from qdqtune import zoo
from qdqtune.autotune import QDQAutotunerBase
from qdqtune.records._placement import Edge

Latency = Callable[[frozenset[Edge]], float]


@lru_cache
def small(name: str) -> onnx.ModelProto:
    """A small model of the zoo; don't change it."""
    settings: dict[str, dict[str, Any]] = {
        "resnet18": {"width": 16, "image": 64},
        "shufflenet_v2": {"image": 64},
        "vit": {"image": 32, "width": 64, "head_width": 32, "layers": 3, "classes": 10},
    }
    return zoo.build(name, **settings[name])


def started(tuner: QDQAutotunerBase, baseline_ms: float = 10.0, **kwargs: Any) -> QDQAutotunerBase:
    """The autotuner, initialized, with a baseline."""
    tuner.initialize(**kwargs)
    tuner.submit(baseline_ms)
    return tuner


def candidates(
    tuner: QDQAutotunerBase, latency: Latency, schemes_per_region: int = 30
) -> Iterator[frozenset[Edge]]:
    """The seeds' loop, stopped at each candidate before it is measured."""
    for number, region in enumerate(tuner.regions):
        tuner.set_profile_region(region, commit=number > 0)
        if tuner.current_profile_pattern_schemes is None:
            continue
        for _ in range(schemes_per_region):
            if tuner.generate() == -1:
                break
            edges = tuner.placement(best=False).edges
            yield edges
            tuner.submit(latency(edges))
    tuner.set_profile_region(None, commit=True)


def tune(tuner: QDQAutotunerBase, latency: Latency, schemes_per_region: int = 30) -> int:
    """The seeds' loop; how many candidates it took."""
    return sum(1 for _ in candidates(tuner, latency, schemes_per_region))


def node_types(content: bytes) -> list[str]:
    return [node.op_type for node in onnx.load_from_string(content).graph.node]


def checked(content: bytes) -> onnx.ModelProto:
    """The model, if ONNX's checker has nothing against it."""
    model = onnx.load_from_string(content)
    onnx.checker.check_model(model, full_check=True)
    return model


def run(content: bytes) -> list[np.ndarray]:
    """What a model gives for inputs that are all alike."""
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    chance = np.random.default_rng(0)
    feeds = {}
    for each in session.get_inputs():
        shape = [dim if isinstance(dim, int) else 1 for dim in each.shape]
        feeds[each.name] = chance.standard_normal(shape).astype(np.float32)
    return session.run(None, feeds)
