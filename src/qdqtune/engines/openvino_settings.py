"""How OpenVINO is told to open a model: its options, and what this machine's CPU can really do."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.isa import ONEDNN_LIMITS, limited_isa, read_cpu

MAX_CPU_ISA = "ONEDNN_MAX_CPU_ISA"
"""The variable by which OpenVINO's kernels are kept from newer instructions."""
# What the user set; this process sets it itself later.
_INHERITED_LIMIT = os.environ.get(MAX_CPU_ISA, "")
# Our words for OpenVINO's properties. Whatever is written in capitals is passed on as it is.
_PROPERTIES = {
    "execution_mode": "EXECUTION_MODE_HINT",
    "inference_precision": "INFERENCE_PRECISION_HINT",
    "num_streams": "NUM_STREAMS",
    "performance_hint": "PERFORMANCE_HINT",
}
_OWN = ("device", "max_cpu_isa")
_WITHOUT_AMX = "AVX512_CORE_FP16"
_PROBE_TIMEOUT_S = 60.0
# A product that is large enough to be computed in tiles.
_PROBE = """
import numpy, openvino
from openvino import opset8
x = opset8.parameter([64, 64], numpy.float32)
y = opset8.matmul(x, opset8.constant(numpy.ones((64, 64), numpy.float32)), False, False)
properties = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": 1}
run = openvino.compile_model(openvino.Model([y], [x]), "CPU", properties)
run(numpy.ones((64, 64), numpy.float32))
"""


@dataclass(frozen=True)
class Settings:
    """How a model is opened.

    Attributes:
        device: Such as `CPU` or `GPU`.
        max_cpu_isa: The newest instructions that kernels may use; empty for all that there are.
        isa: What that leaves to integer kernels; empty on other devices.
        properties: OpenVINO's properties.
        in_effect: Everything that was asked for or had to be set, in the words of the options.
    """

    device: str
    max_cpu_isa: str
    isa: str
    properties: Mapping[str, str] = field(hash=False)
    in_effect: Mapping[str, str] = field(hash=False)

    @property
    def is_cpu(self) -> bool:
        """Whether models run on the CPU."""
        return self.device == "CPU"

    @property
    def in_parallel(self) -> bool:
        """Whether somebody asked for more than one run at a time."""
        hint = self.properties.get("PERFORMANCE_HINT", "LATENCY").upper()
        return hint != "LATENCY" or self.properties.get("NUM_STREAMS", "1") != "1"


def settings_of(options: SessionOptions) -> Settings:
    """Reads options.

    Raises:
        ValueError: If there is one that OpenVINO doesn't have, or that would spoil the timing.
    """
    given = dict(options.engine_options)
    for key in given:
        if key == "CACHE_DIR" and given[key]:
            raise ValueError("CACHE_DIR is set; models are timed without OpenVINO's model cache")
        if key not in (*_OWN, *_PROPERTIES) and not key.isupper():
            known = ", ".join((*_OWN, *_PROPERTIES))
            raise ValueError(
                f"unknown option '{key}' of OpenVINO; known are {known} and its own properties, "
                "such as ENABLE_CPU_PINNING"
            )
    if "device" in given:
        given["device"] = given["device"].upper()
    device = given.get("device", "CPU")
    if device == "CPU":
        given = {**_mended_cpu(given), **given}
    limit = given.get("max_cpu_isa", "").upper()
    if "max_cpu_isa" in options.engine_options and limit not in ONEDNN_LIMITS:
        raise ValueError(f"max_cpu_isa is '{limit}'; choices: {', '.join(ONEDNN_LIMITS)}")
    properties = {_PROPERTIES.get(key, key): given[key] for key in given if key not in _OWN}
    properties.setdefault("CACHE_DIR", "")
    if options.threads is not None and device == "CPU":
        properties.setdefault("INFERENCE_NUM_THREADS", str(options.threads))
        if "PERFORMANCE_HINT" not in properties:
            properties.setdefault("NUM_STREAMS", "1")
    isa = limited_isa(read_cpu().isa, limit) if device == "CPU" else ""
    return Settings(device, limit, isa, properties, given)


def _mended_cpu(given: Mapping[str, str]) -> dict[str, str]:
    """Options without which OpenVINO would crash on this machine; none if it would not."""
    limit = given.get("max_cpu_isa", _INHERITED_LIMIT)
    has_tiles = read_cpu().isa.startswith("amx")
    if not limit and has_tiles and not _amx_works():
        limit = _WITHOUT_AMX
    if not limit:
        return {}
    if not has_tiles or limited_isa(read_cpu().isa, limit).startswith("amx"):
        return {"max_cpu_isa": limit}
    # Where there is AMX, OpenVINO computes in bfloat16 unless told otherwise, also where its limit
    # leaves it no such kernel: it is then slower than in floats, or refuses the model.
    return {"max_cpu_isa": limit, "inference_precision": "f32"}


@functools.lru_cache(maxsize=1)
def _amx_works() -> bool:
    """Whether tiles can be used. Virtual machines exist that offer them, and then refuse them."""
    try:
        argv = [sys.executable, "-c", _PROBE]
        done = subprocess.run(argv, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != -signal.SIGILL
