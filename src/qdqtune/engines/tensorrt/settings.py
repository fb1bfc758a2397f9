"""How TensorRT is told to open a model: one set of options for the library and its program."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.tensorrt.shapes import ShapeRequest, parse_shapes
from qdqtune.records.measurement import FLOAT32

STRONG, WEAK = "strong", "weak"
"""Whether types are those of the model, or the builder's choice."""
FLOAT_TYPES = ("fp16", "bf16", "fp32")

COMMON = (
    "typing",
    "precision",
    "level",
    "workspace_mib",
    "min_shapes",
    "opt_shapes",
    "max_shapes",
    "plugins",
    "timing_cache",
    "plan_cache",
    "cuda_graph",
    "device",
)
"""Options that every form of TensorRT has."""
_LEVELS = range(6)
_LOW_FLOATS = {"fp16": "float16", "bf16": "bfloat16"}
_FIRST_WITH_TF32 = 80


@dataclass(frozen=True)
class Settings:
    """How a model is opened.

    Attributes:
        typing: `strong` or `weak`; empty is what the version prefers.
        precision: What float kernels may compute in beside float32 if the network is weakly typed.
        level: How much effort a build takes, from 0 to 5; None is TensorRT's default.
        workspace_mib: Most memory for kernels; None is TensorRT's default.
        shapes: What inputs with open dims look like.
        plugins: Libraries with custom ops.
        timing_cache: File with what is known of kernels; empty for none.
        plan_cache: Folder for built engines that are kept; empty for one that goes with the worker.
        cuda_graph: Whether timed runs are launched as a CUDA graph; None is the default.
        device: Number of the GPU.
        tactic_sources: Libraries that kernels may come from; empty for TensorRT's default.
        compute_capability: The kind of GPU to build for; empty for the one that is there.
        given: All options as they were given.
    """

    typing: str = ""
    precision: str = FLOAT_TYPES[0]
    level: int | None = None
    workspace_mib: int | None = None
    shapes: ShapeRequest = field(default_factory=ShapeRequest)
    plugins: tuple[str, ...] = ()
    timing_cache: str = ""
    plan_cache: str = ""
    cuda_graph: bool | None = None
    device: int = 0
    tactic_sources: tuple[str, ...] = ()
    compute_capability: str = ""
    given: Mapping[str, str] = field(default_factory=dict)


def settings_of(options: SessionOptions, own: Collection[str] = ()) -> Settings:
    """Reads options.

    Args:
        options: As given.
        own: Names of options that this form of TensorRT has beside the common ones.

    Raises:
        ValueError: If there is one that it doesn't have, or whose value can't be one.
    """
    if options.threads is not None:
        raise ValueError("it runs on the GPU and takes no number of threads: leave --threads out")
    given = dict(options.engine_options)
    known = (*COMMON, *own)
    for name in given:
        if name not in known:
            raise ValueError(f"there is no option '{name}'; there are {', '.join(known)}")
    return Settings(
        typing=_one_of(given, "typing", (STRONG, WEAK), ""),
        precision=_one_of(given, "precision", FLOAT_TYPES, FLOAT_TYPES[0]),
        level=_number(given, "level", _LEVELS),
        workspace_mib=_number(given, "workspace_mib", range(1, 1 << 40)),
        shapes=ShapeRequest(
            parse_shapes(given.get("min_shapes", "")),
            parse_shapes(given.get("opt_shapes", "")),
            parse_shapes(given.get("max_shapes", "")),
        ),
        plugins=tuple(path for path in given.get("plugins", "").split(os.pathsep) if path),
        timing_cache=given.get("timing_cache", ""),
        plan_cache=given.get("plan_cache", ""),
        cuda_graph=_switch(given, "cuda_graph"),
        device=_number(given, "device", range(1 << 10)) or 0,
        tactic_sources=tuple(filter(None, given.get("tactic_sources", "").split(","))),
        compute_capability=given.get("compute_capability", ""),
        given=given,
    )


def float_type_of(typing: str, precision: str, capability: str, *, tf32: bool = True) -> str:
    """What float32 is computed in; empty if that depends on a GPU that isn't known.

    Args:
        typing: Whether types are those of the model, or the builder's choice.
        precision: What the builder may choose beside float32.
        capability: The GPU's compute capability, such as `sm90`.
        tf32: Whether products of float32 may have ten bits of precision: a builder's default.
    """
    if typing == WEAK and precision in _LOW_FLOATS:
        return _LOW_FLOATS[precision]
    number = re.fullmatch(r"sm(\d+)", capability)
    if number is None:
        return ""
    allowed = tf32 and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0"
    return "tf32" if allowed and int(number[1]) >= _FIRST_WITH_TF32 else FLOAT32


def _one_of(given: Mapping[str, str], name: str, choices: Collection[str], default: str) -> str:
    value = given.get(name, default)
    if name in given and value not in choices:
        raise ValueError(f"{name} is '{value}'; choices: {', '.join(choices)}")
    return value


def _number(given: Mapping[str, str], name: str, allowed: range) -> int | None:
    if name not in given:
        return None
    try:
        value = int(given[name])
    except ValueError:
        value = -1
    if value not in allowed:
        raise ValueError(
            f"{name} is '{given[name]}'; it is a number from {allowed[0]} to {allowed[-1]}"
        )
    return value


def _switch(given: Mapping[str, str], name: str) -> bool | None:
    if name not in given:
        return None
    if given[name] not in ("0", "1"):
        raise ValueError(f"{name} is '{given[name]}'; it is 0 or 1")
    return given[name] == "1"
