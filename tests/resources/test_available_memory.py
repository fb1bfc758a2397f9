"""The memory that a process can have: what is free in the machine and in its control groups."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from qdqtune.resources import usable_memory

GIB = 1 << 30
V1, V2 = "4:memory:/a/b\n2:cpu:/\n0::/\n", "0::/a/b\n"


def machine(root: Path, available: int, groups: str, **files: object) -> Path:
    """The files of a system; `__` in their names is `/`."""
    (root / "proc/self").mkdir(parents=True)
    lines = f"MemTotal: {64 << 20} kB\nMemAvailable: {available >> 10} kB\n"
    (root / "proc/meminfo").write_text(lines)
    (root / "proc/self/cgroup").write_text(groups)
    for name, content in files.items():
        file = root / "sys/fs/cgroup" / name.replace("__", "/").replace("memory_", "memory.")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    return root


def test_a_reserve_is_left(tmp_path: Path) -> None:
    assert usable_memory(machine(tmp_path / "a", 10 * GIB, "")) == 9 * GIB
    assert usable_memory(machine(tmp_path / "b", 60 * GIB, "")) == 58 * GIB


def test_there_is_always_enough_to_start_with(tmp_path: Path) -> None:
    assert usable_memory(machine(tmp_path, GIB // 8, "")) == GIB


def test_a_group_of_version_2_counts_and_its_page_cache_does_not(tmp_path: Path) -> None:
    files = {
        "a__b__memory_max": 6 * GIB, "a__b__memory_current": 3 * GIB,
        "a__b__memory_stat": f"anon 5\ninactive_file {2 * GIB}\nactive_file 9",
    }  # fmt: skip
    assert usable_memory(machine(tmp_path, 60 * GIB, V2, **files)) == 5 * GIB - GIB // 2


def test_the_groups_around_it_count(tmp_path: Path) -> None:
    files = {
        "a__b__memory_max": "max", "a__b__memory_current": 3 * GIB,
        "a__memory_max": 12 * GIB, "a__memory_current": 2 * GIB,
    }  # fmt: skip
    assert usable_memory(machine(tmp_path, 60 * GIB, V2, **files)) == 9 * GIB


def test_a_group_of_version_1_counts(tmp_path: Path) -> None:
    files = {
        "memory__a__b__memory_limit_in_bytes": 12 * GIB,
        "memory__a__b__memory_usage_in_bytes": 2 * GIB,
        "memory__memory_limit_in_bytes": 9223372036854771712,
        "memory__memory_usage_in_bytes": 2 * GIB,
    }
    assert usable_memory(machine(tmp_path, 60 * GIB, V1, **files)) == 9 * GIB


def test_in_a_container_the_group_is_at_the_mount(tmp_path: Path) -> None:
    files = {"memory_max": 12 * GIB, "memory_current": 2 * GIB}
    assert usable_memory(machine(tmp_path, 60 * GIB, V2, **files)) == 9 * GIB


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
@pytest.mark.parametrize("which", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_limit_that_was_set_around_us_counts(which: str) -> None:
    script = f"""
import resource
resource.setrlimit(resource.{which}, ({4 * GIB}, {4 * GIB}))
from qdqtune.resources import usable_memory
print(usable_memory())
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert int(said.stdout) <= 3 * GIB
