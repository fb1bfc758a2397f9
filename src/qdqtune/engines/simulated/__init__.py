"""A deterministic engine for tests and research on search: a cost model with seeded noise.

It imports nothing but onnx and runs in any process. Its times are simulated: see docs/simulated.md.
"""

from __future__ import annotations

from qdqtune.engines.simulated.engine import SimulatedEngine
from qdqtune.engines.simulated.kernels import Kernel
from qdqtune.engines.simulated.latency import kernels_of, true_latency_ms
from qdqtune.engines.simulated.profiles import PROFILES, Profile
from qdqtune.engines.simulated.settings import QUIET

__all__ = [
    "PROFILES",
    "QUIET",
    "Kernel",
    "Profile",
    "SimulatedEngine",
    "kernels_of",
    "true_latency_ms",
]
