"""How much memory a process can use on this machine, within every limit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

if sys.platform != "win32":
    import resource

_RESERVE_SHARE = 0.1
_MOST_RESERVE = 2 << 30
# These limits also count code and shared memory.
_SHARE_OF_LIMIT = 0.75
# Less than this is useless, and may change at any moment.
_LEAST = 1 << 30


def usable_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that one process can take without harming the machine.

    This is the free memory of the machine and of the control groups around this process, less a
    reserve, and at most a large part of the inherited limits (`ulimit -v`, `ulimit -d`).

    Args:
        root: Root of the system's files.

    Returns:
        The number of bytes; None where it can't be determined.
    """
    free = min((*_free_in_machine(root), *_free_in_groups(root)), default=None)
    if free is not None:
        free = max(_LEAST, free - min(_MOST_RESERVE, int(free * _RESERVE_SHARE)))
    return min((each for each in (free, *_inherited()) if each is not None), default=None)


def private_bytes() -> int:
    """Return the memory of this process that counts toward the limit; 0 where unknown."""
    for line in _lines(Path("/proc/self/status")):
        name, _, value = line.partition(":")
        if name == "VmData":
            return int(value.split()[0]) << 10
    return 0


def _inherited() -> Iterator[int]:
    if sys.platform != "win32":
        for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
            limit, _ = resource.getrlimit(which)
            if limit != resource.RLIM_INFINITY:
                yield int(limit * _SHARE_OF_LIMIT)


def _free_in_machine(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield int(value.split()[0]) << 10


def _free_in_groups(root: Path) -> Iterator[int]:
    """Yield the memory left in each control group; page cache counts as free."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            places = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            places = ["sys/fs/cgroup/memory"]
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        for place in places:
            yield from _free_in_group(root / place, path, names)


def _free_in_group(mount: Path, path: str, names: tuple[str, str, str]) -> Iterator[int]:
    limit_name, usage_name, cache_name = names
    inner = PurePosixPath(path.lstrip("/"))
    # In a container the path may be the host's, with the group itself at the mount point.
    for group in {mount, *(mount / each for each in (inner, *inner.parents))}:
        limit, usage = _number(group / limit_name), _number(group / usage_name)
        if limit is not None and usage is not None:
            cache = 0
            for line in _lines(group / "memory.stat"):
                key, _, value = line.partition(" ")
                if key == cache_name:
                    cache = int(value)
            yield max(0, limit - usage + cache)


def _number(file: Path) -> int | None:
    text = "".join(_lines(file)).strip()
    return int(text) if text.isdigit() else None  # no limit is called "max"


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:  # another system, or another version of it
        return []
