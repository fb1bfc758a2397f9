"""Settings for opening a model in OpenVINO: its options, and the capabilities of this CPU."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qdqtune.engines._hardware import (
    ONEDNN_LIMITS,
    inherited_limit,
    leaves_bfloat16,
    limited_isa,
    read_cpu,
)
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._registry import ENGINES

_ISA_VARIABLES = ENGINES["openvino"].isa_variables
MAX_CPU_ISA = _ISA_VARIABLES[0]
"""Environment variable that limits the instruction set of OpenVINO's kernels."""
PRECISION_OPTION, PRECISION_HINT = "inference_precision", "INFERENCE_PRECISION_HINT"
"""The type in which floats are computed, as an option and as an OpenVINO property."""
# Composite devices.
_VIRTUAL_DEVICES = frozenset({"AUTO", "BATCH", "HETERO", "MULTI"})
_THREADS = "INFERENCE_NUM_THREADS"
# The user's value; this process sets the variable itself later.
_, _INHERITED_LIMIT = inherited_limit(_ISA_VARIABLES)
# Our names for OpenVINO's properties. Names in capitals are passed on unchanged.
_PROPERTIES = {
    "execution_mode": "EXECUTION_MODE_HINT",
    PRECISION_OPTION: PRECISION_HINT,
    "num_streams": "NUM_STREAMS",
    "performance_hint": "PERFORMANCE_HINT",
}
_OWN = ("device", "max_cpu_isa")
_WITHOUT_AMX = "AVX512_CORE_FP16"
_PROBE_TIMEOUT_S = 60.0
# A product that is large enough to be computed in tiles (AMX).
_PROBE = """
import numpy, openvino
try:
    from openvino import opset8
except ImportError:  # before 2025
    from openvino.runtime import opset8
x = opset8.parameter([64, 64], numpy.float32)
y = opset8.matmul(x, opset8.constant(numpy.ones((64, 64), numpy.float32)), False, False)
properties = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": 1}
run = openvino.compile_model(openvino.Model([y], [x]), "CPU", properties)
run(numpy.ones((64, 64), numpy.float32))
"""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """How a model is opened.

    Attributes:
        device: Device name, such as `CPU` or `GPU`.
        max_cpu_isa: The newest instructions that kernels may use; empty for no limit.
        isa: The instruction set left for integer kernels; empty on other devices.
        properties: OpenVINO's properties.
        in_effect: Everything that was requested or had to be set, as options.
        leaves_bfloat16: Whether the limit leaves kernels for which bfloat16 is worthwhile.
    """

    device: str
    max_cpu_isa: str
    isa: str
    properties: Mapping[str, str] = field(hash=False)
    in_effect: Mapping[str, str] = field(hash=False)
    leaves_bfloat16: bool = True

    @property
    def is_cpu(self) -> bool:
        """Whether models run on the CPU alone."""
        return self.device == "CPU"

    @property
    def in_parallel(self) -> bool:
        """Whether more than one run at a time was requested."""
        hint = self.properties.get("PERFORMANCE_HINT", "LATENCY").upper()
        return hint != "LATENCY" or self.properties.get("NUM_STREAMS", "1") != "1"


def settings_of(options: SessionOptions) -> Settings:
    """Reads options.

    Raises:
        ValueError: If an option is unknown, would distort the timing, or contradicts another.
    """
    given = dict(options.engine_options)
    _check_names(given)
    if "device" in given:
        given["device"] = given["device"].upper()
    device = given.get("device", "CPU")
    on_cpu = _may_use_cpu(device)
    if on_cpu:
        given = {**_mended_cpu(given), **given}
    limit = given.get("max_cpu_isa", "").upper()
    if "max_cpu_isa" in options.engine_options and limit not in ONEDNN_LIMITS:
        raise ValueError(f"max_cpu_isa is '{limit}'; choices: {', '.join(ONEDNN_LIMITS)}")
    properties = {_PROPERTIES.get(key, key): given[key] for key in given if key not in _OWN}
    properties.setdefault("CACHE_DIR", "")
    if options.threads is not None and on_cpu:
        _set_threads(properties, options.threads)
    cpu = read_cpu().isa
    isa = limited_isa(cpu, limit) if on_cpu else ""
    return Settings(device, limit, isa, properties, given, leaves_bfloat16(cpu, limit))


def check_device(core: Any, settings: Settings, threads: int | None) -> None:
    """Make sure that the device exists and accepts the requested threads.

    Raises:
        ValueError: If it does not.
    """
    device = settings.device
    kinds = {found.partition(".")[0] for found in core.available_devices}
    if re.split(r"[.:]", device)[0] not in kinds | _VIRTUAL_DEVICES:
        found = ", ".join(core.available_devices) or "none"
        raise ValueError(f"OpenVINO has no device '{device}' here; it finds: {found}")
    if threads is not None and not _may_use_cpu(device):
        what = f"the number of threads is {threads}, but the device '{device}' takes none"
        raise ValueError(f"{what}: leave it out")


def check_threads(compiled: Any, settings: Settings, threads: int) -> None:
    """Make sure that a model runs with no more threads than requested.

    Composite devices may or may not pass the number on; on the CPU, too, there is more than one way
    to set it. A machine with fewer cores has fewer threads.

    Raises:
        ValueError: If it runs with more, or OpenVINO doesn't report the number.
    """
    used = None
    with contextlib.suppress(RuntimeError, KeyError):
        if settings.is_cpu:
            used = compiled.get_property(_THREADS)
        else:
            used = compiled.get_property("DEVICE_PROPERTIES")["CPU"][_THREADS]
    if used is None or used > threads:
        told = "an unknown number" if used is None else used
        raise ValueError(
            f"the number of threads is {threads}, but on the device '{settings.device}' OpenVINO "
            f"runs the model with {told}"
        )


def _check_names(given: Mapping[str, str]) -> None:
    for key in given:
        if key == "CACHE_DIR" and given[key]:
            raise ValueError("CACHE_DIR is set; models are timed without OpenVINO's model cache")
        if key not in (*_OWN, *_PROPERTIES) and not key.isupper():
            known = ", ".join((*_OWN, *_PROPERTIES))
            raise ValueError(
                f"unknown option '{key}' of OpenVINO; known are {known} and its own properties, "
                "such as ENABLE_CPU_PINNING"
            )
    for word, name in _PROPERTIES.items():
        if word in given and given.get(name, given[word]) != given[word]:
            raise ValueError(
                f"{word}={given[word]} and {name}={given[name]} are two values of one property"
            )


def _may_use_cpu(device: str) -> bool:
    """Whether it is the CPU, or a composite device that includes it, as in `AUTO:GPU,CPU`."""
    kind, _, listed = device.partition(":")
    if kind not in _VIRTUAL_DEVICES:
        return kind == "CPU"
    parts = [re.split(r"[.(]", part)[0].strip() for part in listed.split(",") if part]
    if all(part.startswith("-") for part in parts):  # all that there are, but for these
        return "-CPU" not in parts
    return "CPU" in parts


def _set_threads(properties: dict[str, str], threads: int) -> None:
    if properties.setdefault(_THREADS, str(threads)) != str(threads):
        raise ValueError(
            f"{_THREADS}={properties[_THREADS]} contradicts the number of threads, {threads}"
        )
    if "PERFORMANCE_HINT" not in properties:
        properties.setdefault("NUM_STREAMS", "1")


def _mended_cpu(given: Mapping[str, str]) -> dict[str, str]:
    """Return options without which OpenVINO would crash on this machine; empty if none."""
    limit = given.get("max_cpu_isa", _INHERITED_LIMIT)
    has_tiles = read_cpu().isa.startswith("amx")
    if not limit and has_tiles and not _amx_works():
        limit = _WITHOUT_AMX
    return {"max_cpu_isa": limit} if limit else {}


@functools.lru_cache(maxsize=1)
def _amx_works() -> bool:
    """Whether tiles (AMX) can be used. Some virtual machines advertise them, and then refuse them.

    Where that can't be determined, they are assumed to work.
    """
    argv = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=_PROBE_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        _logger.warning("whether AMX works was not found out in %g s", _PROBE_TIMEOUT_S)
        return True
    if done.returncode not in (0, -signal.SIGILL):
        said = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        _logger.warning("whether AMX works could not be found out: %s", said[-1])
    return done.returncode != -signal.SIGILL
