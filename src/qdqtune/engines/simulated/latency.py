"""The noise-free latency of a model: a function of the model file and the machine."""

from __future__ import annotations

import os

import onnx

from qdqtune.engines.simulated.kernels import Kernel, plan_kernels
from qdqtune.engines.simulated.profiles import DEFAULT_PROFILE, Profile, profile_named
from qdqtune.engines.simulated.shapes import Shapes
from qdqtune.engines.simulated.wiring import Wiring, read_proto


def kernels_of(
    model: str | os.PathLike[str] | onnx.ModelProto,
    profile: str | Profile = DEFAULT_PROFILE,
    input_shapes: Shapes | None = None,
) -> tuple[Kernel, ...]:
    """Return the kernels of a model, in order of execution.

    Args:
        model: A file or a proto; the values of its weights are not used.
        profile: The machine, or its name.
        input_shapes: Shapes of inputs whose dims the model leaves open; open dims are 1.

    Raises:
        ValueError: If there is no such profile, or the model's graph is broken.
    """
    proto = model if isinstance(model, onnx.ModelProto) else read_proto(model)
    machine = profile if isinstance(profile, Profile) else profile_named(profile)
    return plan_kernels(Wiring(proto, input_shapes), machine)


def true_latency_ms(
    model: str | os.PathLike[str] | onnx.ModelProto,
    profile: str | Profile = DEFAULT_PROFILE,
    input_shapes: Shapes | None = None,
) -> float:
    """Return the latency around which the simulated samples scatter; see `kernels_of`."""
    return total_ms(kernels_of(model, profile, input_shapes))


def total_ms(kernels: tuple[Kernel, ...]) -> float:
    """Return the total time of all kernels."""
    return sum(kernel.ms for kernel in kernels)
