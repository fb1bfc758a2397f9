"""What the driver says of GPUs, with a library in its place that says what a test wants."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from qdqtune.engines import _hardware as hardware
from qdqtune.records._health import Gpu


class Driver:
    """Stands in for the driver's library.

    Args:
        errors: What functions return, if not success.
        count: How many GPUs there are.
    """

    def __init__(self, errors: dict[str, int] | None = None, count: int = 1) -> None:
        self.errors = errors or {}
        self.count = count

    def __getattr__(self, name: str) -> Any:
        if name not in ("cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet",
                        "cuDeviceGetName", "cuDeviceGetAttribute"):  # fmt: skip
            raise AttributeError(name)
        return lambda *arguments: self.errors.get(name, 0) or self.answer(name, *arguments)

    def answer(self, name: str, first: Any = None, *rest: Any) -> int:
        numbers = {"cuDriverGetVersion": 12080, "cuDeviceGetCount": self.count}
        if name in numbers:
            first._obj.value = numbers[name]
        elif name == "cuDeviceGet":
            first._obj.value = rest[0]
        elif name == "cuDeviceGetName":
            ctypes.memmove(first, b"NVIDIA H200\0", 12)
        elif name == "cuDeviceGetAttribute":
            first._obj.value = {75: 9, 76: 0}[rest[0]]
        return 0


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26\n")
    monkeypatch.setattr(hardware, "_DRIVER_FILE", file)
    monkeypatch.setattr(hardware, "find_gpus", hardware.find_gpus.__wrapped__)


def load(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    monkeypatch.setattr(hardware, "_load", lambda names: library)


@pytest.mark.parametrize("count", [1, 2])
def test_gpus_are_told(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, Driver(count=count))
    found = hardware.find_gpus()
    assert (found.driver, found.cuda, found.reason) == ("570.124.06", "12.8", "")
    assert found.gpus == (Gpu("NVIDIA H200", "9.0"),) * count


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        (None, "its library libcuda.so.1 can't be loaded"),
        (Driver({"cuInit": 100}), "the driver answers with error 100: no device"),
        (Driver({"cuDeviceGetCount": 3}), "the driver answers with error 3: unknown"),
        (Driver(count=0), "the driver shows no GPU"),
        (object(), "the driver's library has no cuInit"),
    ],
)
def test_what_fails_is_the_reason(
    library: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(monkeypatch, library)
    assert hardware.find_gpus().gpus == ()
    assert hardware.find_gpus().reason == reason


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load(monkeypatch, None)
    monkeypatch.setattr(hardware, "_DRIVER_FILE", tmp_path / "missing")
    assert hardware.find_gpus().reason == "no NVIDIA driver"


def test_a_library_that_is_not_there_is_no_error() -> None:
    assert hardware._load(("libthere-is-no-such.so.1",)) is None
