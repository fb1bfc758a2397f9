"""Limits on memory and time of this process and its children, and their end with the parent."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from qdqtune.records._errors import UsageError
from qdqtune.records._untrusted_files import parse_size, size_text

if sys.platform != "win32":
    import resource

_RESERVE_SHARE = 0.1
_MOST_RESERVE = 2 << 30
# These limits also count code and shared memory.
_SHARE_OF_LIMIT = 0.75
# A smaller amount is useless, and may change at any moment.
_LEAST = 1 << 30

#: With less, an engine can't even start.
LEAST_MEMORY = 256 << 20
_MEMORY_SIGNS = (
    "bad_alloc", "MemoryError", "Failed to allocate memory", "Cannot allocate memory",
    "Unable to allocate", "out of memory", "Out of memory", "bad allocation", "failed to allocate",
    "could not allocate", "not enough memory",
)  # fmt: skip
# GPU memory is not limited here.
_OF_GPUS = ("cuda", "gpu", "device memory")


def usable_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that one process can take without harming the machine.

    This is the free memory of the machine and of the control groups around this process, less a
    reserve, and at most a large part of the inherited limits (`ulimit -v`, `ulimit -d`).

    Args:
        root: Root of the system's files.

    Returns:
        The number of bytes; None where it can't be determined.
    """
    machine = _field(root / "proc/meminfo", "MemAvailable")
    known = [machine << 10] if machine is not None else []
    free = min((*known, *_free_in_groups(root)), default=None)
    if free is not None:
        free = max(_LEAST, free - min(_MOST_RESERVE, int(free * _RESERVE_SHARE)))
    return min((each for each in (free, *_inherited()) if each is not None), default=None)


def private_bytes() -> int:
    """Return the memory of this process that counts toward the limit; 0 where unknown."""
    return (_field(Path("/proc/self/status"), "VmData") or 0) << 10


def _inherited() -> Iterator[int]:
    if sys.platform != "win32":
        for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
            limit, _ = resource.getrlimit(which)
            if limit != resource.RLIM_INFINITY:
                yield int(limit * _SHARE_OF_LIMIT)


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
            yield max(0, limit - usage + (_field(group / "memory.stat", cache_name) or 0))


def _number(file: Path) -> int | None:
    text = "".join(_lines(file)).strip()
    return int(text) if text.isdigit() else None  # "max" means no limit


def _field(file: Path, name: str) -> int | None:
    """Return the number behind a name in a file of the system."""
    fields = (line.replace(":", " ").split() for line in _lines(file))
    return next((int(words[1]) for words in fields if words[:1] == [name]), None)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:  # another system, or another version of it
        return []


@dataclass(frozen=True)
class ResourceLimits:
    """The limits of each process.

    Attributes:
        max_memory: Bytes of memory for each process; None for what the machine has available.
        timeout_s: Seconds for one step: reading a model, opening it in an engine, a block of runs;
            None for the default of each step.
    """

    max_memory: int | None = None
    timeout_s: float | None = None

    @property
    def memory_bytes(self) -> int | None:
        """Bytes for each process; None where unknown, or where a limit can't be enforced."""
        return usable_memory() if self.max_memory is None else self.max_memory


_NONE = ResourceLimits()
_limits: ContextVar[ResourceLimits] = ContextVar("limits", default=_NONE)


def current_limits() -> ResourceLimits:
    """Return the limits in effect."""
    return _limits.get()


@contextmanager
def resource_limits(
    max_memory: int | str | None = None, timeout_s: float | None = None
) -> Iterator[ResourceLimits]:
    """Apply other limits in this thread, as a context manager.

    Args:
        max_memory: For each process that reads, builds or runs a model: a number of bytes, or text
            such as `4GiB`; None for what the machine has available. Only Linux can enforce it;
            elsewhere it is used to reject models that need more.
        timeout_s: Seconds for one step: reading a model, opening it in an engine, a block of runs;
            None for the default of each step.

    Raises:
        UsageError: If a limit is invalid.
    """
    # Determined once, so that everything inside uses the same value.
    memory = usable_memory() if max_memory is None else _memory(max_memory)
    token = _limits.set(ResourceLimits(memory, _seconds(timeout_s)))
    try:
        yield _limits.get()
    finally:
        _limits.reset(token)


@contextmanager
def this_process_limited() -> Iterator[None]:
    """Apply the memory limit to this process temporarily; exceeding it raises a MemoryError."""
    before = set_memory_limit(current_limits().memory_bytes)
    try:
        yield
    finally:
        if before is not None:
            resource.setrlimit(resource.RLIMIT_DATA, before)


def set_memory_limit(size: int | None) -> tuple[int, int] | None:
    """Limit the memory of this process and of those that it starts.

    Private writable memory counts, used or not. Address space that is only reserved, as GPU drivers
    do, does not count: under a limit on all address space (RLIMIT_AS) CUDA would not start.

    Args:
        size: The limit in bytes; None sets no limit.

    Returns:
        The previous limit; None if nothing was set.
    """
    if size is None or sys.platform != "linux":
        return None
    before = resource.getrlimit(resource.RLIMIT_DATA)
    given = [each for each in (size, *before) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(given), before[1]))
    return before


def is_out_of_memory(text: str) -> bool:
    """Whether output of native code or Python means that memory ran out."""
    of_gpu = any(sign in text.lower() for sign in _OF_GPUS)
    return not of_gpu and any(sign in text for sign in _MEMORY_SIGNS)


def out_of_memory_text(limit: int | None) -> str:
    """Return the end of a sentence that says a process ran out of memory."""
    shown = f" (limit {size_text(limit)}; --max_memory)" if limit is not None else ""
    return f"ran out of memory{shown}"


def _memory(given: int | str) -> int:
    try:
        size = parse_size(given) if isinstance(given, str) else given
    except ValueError as error:
        raise UsageError(f"max_memory can't be read: {error}.", "It is a size, or None.") from None
    if size < LEAST_MEMORY:
        raise UsageError(
            f"A memory limit of {size_text(size)} leaves no room for any engine.",
            f"Allow at least {size_text(LEAST_MEMORY)}: --max_memory.",
        )
    return size


def _seconds(given: float | None) -> float | None:
    if given is not None and not (math.isfinite(given) and given > 0):
        raise UsageError(
            f"timeout_s must be a positive number of seconds, not {given}.",
            "None leaves each step the time that it usually may take.",
        )
    return given


_PR_SET_PDEATHSIG = 1
# Loaded here: nothing can be loaded between fork and exec.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent(parent: int | None = None, by: int = signal.SIGKILL) -> None:
    """Ask Linux to signal this process when its parent dies; a no-op on other systems.

    Args:
        parent: The parent's id, if it may already be dead; then this process ends at once.
        by: The signal.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(0)
