"""A deterministic engine for tests and research on search: a cost model with seeded noise.

It imports nothing but onnx and runs in any process. Its times are simulated: see
docs/extend/simulated.md.
"""

from __future__ import annotations

from qdqtune.testing.simulated._engine import QUIET, SimulatedEngine
from qdqtune.testing.simulated._kernels import Kernel, kernels_of, true_latency_ms
from qdqtune.testing.simulated._machine import PROFILES, Profile

__all__ = [
    "PROFILES",
    "QUIET",
    "Kernel",
    "Profile",
    "SimulatedEngine",
    "kernels_of",
    "true_latency_ms",
]
