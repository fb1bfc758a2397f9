"""Which dialect an engine speaks on this machine; the engine need not be installed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from qdqtune.engines import registry
from qdqtune.engines.isa import Cpu, limited_isa, read_cpu, saturates_u8s8
from qdqtune.engines.simulated.profiles import DEFAULT_PROFILE, Profile, profile_named
from qdqtune.qdq.dialect import Dialect
from qdqtune.qdq.dialects import (
    ONNXRUNTIME,
    ONNXRUNTIME_NO_VNNI,
    OPENVINO,
    OPENVINO_NO_VNNI,
    TENSORRT,
    TENSORRT_8,
    dialect_named,
)
from qdqtune.records.errors import UsageError


def native_dialect(
    engine: str,
    version: str = "",
    cpu: Cpu | None = None,
    options: Mapping[str, str] | None = None,
) -> Dialect:
    """The dialect in which an engine runs integer kernels, with exact arithmetic.

    Args:
        engine: An engine's name.
        version: Its version; by default the installed one, or else the newest.
        cpu: The CPU that will run the model; by default this machine's.
        options: The engine's own options; those of the simulated one say which machine it is.

    Raises:
        UsageError: If there is no such engine.
    """
    entry = registry.entry(engine)
    if entry.name in ("tensorrt", "trtexec", "tensorrt_rtx"):
        number = re.match(r"\d+", version or registry.available(engine).version)
        old = number is not None and int(number.group()) < 10 and entry.name != "tensorrt_rtx"
        return TENSORRT_8 if old else TENSORRT
    if entry.name == "simulated":
        return dialect_named(_profile(options or {}).dialect)
    isa = (cpu or read_cpu()).isa
    if entry.name == "openvino":
        limit = (options or {}).get("max_cpu_isa", os.environ.get("ONEDNN_MAX_CPU_ISA", ""))
        return OPENVINO_NO_VNNI if saturates_u8s8(limited_isa(isa, limit)) else OPENVINO
    return ONNXRUNTIME_NO_VNNI if saturates_u8s8(isa) else ONNXRUNTIME


def _profile(options: Mapping[str, str]) -> Profile:
    try:
        return profile_named(options.get("profile", DEFAULT_PROFILE.name))
    except ValueError as error:
        raise UsageError(f"The simulated engine: {error}.", "See docs/simulated.md.") from None
