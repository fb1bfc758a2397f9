"""Finds NVIDIA GPUs by querying the driver, without importing an engine."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
from pathlib import Path
from typing import Any

from qdqtune.records._health import Gpu, GpuHealth

_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_VERSION = re.compile(r"\s(\d+\.\d+(?:\.\d+)?)\s")
_LONGEST_NAME = 128
# Constants of CUDA's driver API.
_MAJOR, _MINOR = 75, 76
_NO_DEVICE = 100


class _DriverError(Exception):
    """The driver returned an error."""


@functools.cache
def find_gpus() -> GpuHealth:
    """Return the driver and its GPUs, cached; any failure becomes the reason for having none."""
    driver = _driver_version(_DRIVER_FILE)
    library = _load(_LIBRARIES)
    if library is None:
        there = "its library libcuda.so.1 can't be loaded" if driver else "no NVIDIA driver"
        return GpuHealth(driver, "", (), there)
    try:
        return _ask(library, driver)
    except _DriverError as error:
        return GpuHealth(driver, "", (), str(error))


def _driver_version(file: Path) -> str:
    """Return the version of the kernel driver; empty if there is none."""
    try:
        found = _VERSION.search(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    return found[1] if found is not None else ""


def _load(names: tuple[str, ...]) -> Any:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _ask(library: Any, driver: str) -> GpuHealth:
    _call(library, "cuInit", 0)
    version, count = ctypes.c_int(), ctypes.c_int()
    _call(library, "cuDriverGetVersion", ctypes.byref(version))
    _call(library, "cuDeviceGetCount", ctypes.byref(count))
    gpus = tuple(_gpu(library, number) for number in range(count.value))
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return GpuHealth(driver, cuda, gpus, "" if gpus else "the driver shows no GPU")


def _gpu(library: Any, number: int) -> Gpu:
    device, name = ctypes.c_int(), ctypes.create_string_buffer(_LONGEST_NAME)
    _call(library, "cuDeviceGet", ctypes.byref(device), number)
    _call(library, "cuDeviceGetName", name, _LONGEST_NAME, device)
    capability = []
    for attribute in (_MAJOR, _MINOR):
        value = ctypes.c_int()
        _call(library, "cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        capability.append(str(value.value))
    return Gpu(name.value.decode(errors="replace"), ".".join(capability))


def _call(library: Any, name: str, *arguments: Any) -> None:
    try:
        error = getattr(library, name)(*arguments)
    except AttributeError:
        raise _DriverError(f"the driver's library has no {name}") from None
    if error:
        raise _DriverError(f"the driver answers with error {error}: {_text(library, error)}")


def _text(library: Any, error: int) -> str:
    text = ctypes.c_char_p()
    with contextlib.suppress(AttributeError):
        library.cuGetErrorString(error, ctypes.byref(text))
    if text.value:
        return text.value.decode(errors="replace")
    return "no device" if error == _NO_DEVICE else "unknown"
