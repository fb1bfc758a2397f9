"""Limits as users write them, and where they hold."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

import qdqtune
from qdqtune.records._errors import UsageError
from qdqtune.records._untrusted_files import parse_size, size_text
from qdqtune.resources import current_limits, is_out_of_memory


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 << 30), ("4g", 4 << 30), ("512 MiB", 512 << 20), ("6GB", 6 * 10**9),
        ("1.5G", 3 << 29), ("2e9", 2 * 10**9), ("1073741824", 1 << 30), ("9e99", 1 << 62),
    ],
)  # fmt: skip
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-4GiB", "4 lots", "0", "0.1", "nan", "inf", "4GiB4"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write 4GiB, 512MiB or 6GB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (5, "5 bytes"), (1 << 30, "1 GiB"), (3 << 29, "1.5 GiB"), (1 << 50, "1024 TiB"),
        (1 << 5000, "more than 4 million TiB"),
    ],
)  # fmt: skip
def test_sizes_are_shown(size: int, text: str) -> None:
    assert size_text(size) == text


def test_limits_hold_inside_and_end_with_the_block() -> None:
    before = current_limits()
    with qdqtune.resource_limits(max_memory="2GiB", timeout_s=7):
        assert (current_limits().memory_bytes, current_limits().timeout_s) == (2 << 30, 7)
        with qdqtune.resource_limits(max_memory=1 << 30):
            assert (current_limits().memory_bytes, current_limits().timeout_s) == (1 << 30, None)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(current_limits().timeout_s))
        thread.start()
        thread.join()
        assert seen == [None]
    assert current_limits() == before


@pytest.mark.parametrize(
    "limits",
    [{"max_memory": "1MiB"}, {"max_memory": "much"}, {"timeout_s": 0}, {"timeout_s": float("nan")}],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, object]) -> None:
    with pytest.raises(UsageError), qdqtune.resource_limits(**limits):  # type: ignore[arg-type]
        pass


def test_what_native_code_says_of_memory_is_understood() -> None:
    assert is_out_of_memory("RuntimeError: std::bad_alloc")
    assert is_out_of_memory("MemoryError: Unable to allocate 4.00 TiB for an array")
    assert not is_out_of_memory("Invalid argument: shapes do not match")
    assert not is_out_of_memory("CUDA error: out of memory")  # of the GPU's


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to it")
def test_this_process_is_held_to_the_limit_and_told_so() -> None:
    script = """
import argparse, resource, sys
from qdqtune.cli._runner import run_safely
options = argparse.Namespace(max_memory=1 << 30, timeout=None)
code = run_safely(lambda: len(bytearray(2 << 30)), options)
assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY
sys.exit(code)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: There is not enough memory.\n")
    assert "--max_memory" in ended.stderr
