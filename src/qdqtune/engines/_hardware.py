"""The hardware of this machine: the CPU's instruction set, and NVIDIA GPUs.

Read from the operating system and the driver, without importing an engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtune.records._health import Gpu, GpuHealth

_X86_MACHINES = {"x86_64", "amd64", "i386", "i686", "x86"}
_ARM_MACHINES = {"aarch64", "arm64"}
# Best first: the first flag that the CPU has names the instruction set.
_X86_LEVELS: tuple[tuple[str, str], ...] = (
    ("amx_int8", "amx_int8"),
    ("avx512_vnni", "avx512_vnni"),
    ("avx_vnni", "avx_vnni"),
    ("avx512bw", "avx512"),
    ("avx2", "avx2"),
)
_ARM_LEVELS: tuple[tuple[str, str], ...] = (
    ("i8mm", "neon_i8mm"),
    ("asimddp", "neon_dotprod"),
    ("asimd", "neon"),
)
# In oneDNN's notation.
_ONEDNN_LIMITS = {
    "SSE41": "x86",
    "AVX": "x86",
    "AVX2": "avx2",
    "AVX2_VNNI": "avx_vnni",
    "AVX2_VNNI_2": "avx_vnni",
    "AVX512_CORE": "avx512",
    "AVX512_CORE_VNNI": "avx512_vnni",
    "AVX512_CORE_BF16": "avx512_vnni",
    "AVX512_CORE_FP16": "avx512_vnni",
    "AVX10_1_512": "avx512_vnni",
    "AVX512_CORE_AMX": "amx_int8",
    "AVX512_CORE_AMX_FP16": "amx_int8",
    "AVX10_1_512_AMX": "amx_int8",
    "AVX10_1_512_AMX_FP16": "amx_int8",
}
ONEDNN_LIMITS = tuple(_ONEDNN_LIMITS)
"""Limits that oneDNN accepts, oldest instructions first."""
_FIRST_WITH_BFLOAT16 = "AVX512_CORE_BF16"
_X86_SATURATING = {"avx512", "avx2", "x86"}
_SYSCTL_FLAGS = {
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.AdvSIMD": "asimd",
    "hw.optional.neon": "asimd",
    "hw.optional.avx512vnni": "avx512_vnni",
    "hw.optional.avx512bw": "avx512bw",
    "hw.optional.avx2_0": "avx2",
}

_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_VERSION = re.compile(r"\s(\d+\.\d+(?:\.\d+)?)\s")
_LONGEST_NAME = 128
# Constants of CUDA's driver API.
_MAJOR, _MINOR = 75, 76
_NO_DEVICE = 100


@dataclass(frozen=True)
class Cpu:
    """The properties of a CPU that matter for integer kernels.

    Attributes:
        device: Its name.
        isa: ``amx_int8``, ``avx512_vnni``, ``avx_vnni``, ``avx512``, ``avx2``, ``x86`` (unknown
            or older), ``neon_i8mm``, ``neon_dotprod``, ``neon``, else the machine's name.
    """

    device: str
    isa: str


def saturates_u8s8(isa: str) -> bool:
    """Whether pairs of uint8 x int8 products are summed with saturation at int16.

    Every x86 without a VNNI or AMX instruction does; 8-bit weights then give wrong results. An
    unknown x86 is assumed to.
    """
    return isa in _X86_SATURATING


def limited_isa(isa: str, limit: str) -> str:
    """Return the instruction set left under a limit in oneDNN's notation, such as `AVX512_CORE`.

    Args:
        isa: The CPU's instruction set.
        limit: One of oneDNN's limits; other values, such as `ALL`, limit nothing.
    """
    most = _ONEDNN_LIMITS.get(limit.upper(), isa)
    order = [level for _, level in _X86_LEVELS] + ["x86"]
    if isa not in order or most not in order:
        return isa
    return order[max(order.index(isa), order.index(most))]


def leaves_bfloat16(isa: str, limit: str) -> bool:
    """Whether a limit leaves kernels that are faster in bfloat16 than in float32.

    Args:
        isa: The CPU's instruction set. Where it has tiles (AMX), these kernels are those on tiles.
        limit: One of oneDNN's limits; other values, such as `ALL`, limit nothing.
    """
    name = limit.upper()
    if name not in ONEDNN_LIMITS:
        return True
    if isa.startswith("amx"):
        return limited_isa(isa, name) == isa
    return ONEDNN_LIMITS.index(name) >= ONEDNN_LIMITS.index(_FIRST_WITH_BFLOAT16)


def inherited_limit(variables: Sequence[str]) -> tuple[str, str]:
    """Return the environment variable that limits oneDNN, and its limit; empty if there is none.

    Args:
        variables: The variables to read. The first non-empty one counts, as for oneDNN, even if
            its value is not a limit.
    """
    for variable in variables:
        if limit := os.environ.get(variable, "").upper():
            return (variable, limit) if limit in ONEDNN_LIMITS else ("", "")
    return "", ""


def read_cpu() -> Cpu:
    """Read the CPU's properties from the operating system."""
    machine = platform.machine()
    system = platform.system()
    if system == "Linux":
        with contextlib.suppress(OSError):
            text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
            return parse_cpuinfo(text, machine)
    if system == "Darwin" and (text := _sysctl()):
        return parse_sysctl(text, machine)
    return Cpu(platform.processor() or machine, _isa(set(), machine))


def _sysctl() -> str:
    """Return what macOS says about its CPU; empty if it says nothing."""
    import subprocess  # no other system needs it

    argv = ["/usr/sbin/sysctl", "machdep.cpu", "hw.optional"]
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def parse_cpuinfo(text: str, machine: str) -> Cpu:
    """Reads Linux' ``/proc/cpuinfo``."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip().lower(), value.strip())
    flags = set((fields.get("flags") or fields.get("features") or "").lower().split())
    device = fields.get("model name") or fields.get("hardware") or fields.get("model")
    if device is None and "cpu part" in fields:
        device = f"ARM implementer {fields.get('cpu implementer', '?')} part {fields['cpu part']}"
    return Cpu(device or machine, _isa(flags, machine))


def parse_sysctl(text: str, machine: str) -> Cpu:
    """Reads the output of macOS' ``sysctl machdep.cpu hw.optional``."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    flags = {flag for key, flag in _SYSCTL_FLAGS.items() if fields.get(key) == "1"}
    return Cpu(fields.get("machdep.cpu.brand_string") or machine, _isa(flags, machine))


def _isa(flags: set[str], machine: str) -> str:
    family = machine.lower()
    if family in _X86_MACHINES:
        levels, otherwise = _X86_LEVELS, "x86"
    elif family in _ARM_MACHINES:
        levels, otherwise = _ARM_LEVELS, "neon"
    else:
        return family or "unknown"
    return next((isa for flag, isa in levels if flag in flags), otherwise)


@functools.cache
def find_gpus() -> GpuHealth:
    """Return the driver and its GPUs, cached; any failure becomes the reason for having none."""
    version = None
    with contextlib.suppress(OSError):
        version = _VERSION.search(_DRIVER_FILE.read_text(encoding="utf-8", errors="replace"))
    driver = version[1] if version is not None else ""
    library = _load(_LIBRARIES)
    if library is None:
        there = "its library libcuda.so.1 can't be loaded" if driver else "no NVIDIA driver"
        return GpuHealth(driver, "", (), there)
    try:
        _call(library, "cuInit", 0)
        cuda = _number(library, "cuDriverGetVersion")
        gpus = tuple(_gpu(library, each) for each in range(_number(library, "cuDeviceGetCount")))
    except _DriverError as error:
        return GpuHealth(driver, "", (), str(error))
    reason = "" if gpus else "the driver shows no GPU"
    return GpuHealth(driver, f"{cuda // 1000}.{cuda % 1000 // 10}", gpus, reason)


class _DriverError(Exception):
    """The driver returned an error."""


def _load(names: tuple[str, ...]) -> Any:
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


def _gpu(library: Any, position: int) -> Gpu:
    device = _number(library, "cuDeviceGet", position)
    name = ctypes.create_string_buffer(_LONGEST_NAME)
    _call(library, "cuDeviceGetName", name, _LONGEST_NAME, device)
    major, minor = (_number(library, "cuDeviceGetAttribute", a, device) for a in (_MAJOR, _MINOR))
    return Gpu(name.value.decode(errors="replace"), f"{major}.{minor}")


def _number(library: Any, name: str, *arguments: int) -> int:
    """Return the number that a function writes to its first argument."""
    value = ctypes.c_int()
    _call(library, name, ctypes.byref(value), *arguments)
    return value.value


def _call(library: Any, name: str, *arguments: Any) -> None:
    try:
        error = getattr(library, name)(*arguments)
    except AttributeError:
        raise _DriverError(f"the driver's library has no {name}") from None
    if error:
        text = ctypes.c_char_p(b"no device" if error == _NO_DEVICE else b"unknown")
        with contextlib.suppress(AttributeError):
            library.cuGetErrorString(error, ctypes.byref(text))
        meaning = (text.value or b"unknown").decode(errors="replace")
        raise _DriverError(f"the driver answers with error {error}: {meaning}")
