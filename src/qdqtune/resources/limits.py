"""The limits of memory and time under which models are read, built and run.

They hold for everything that is done inside `resource_limits`, and for every process that is
started meanwhile; nothing about a result depends on them, unless they are exceeded.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from qdqtune.records.errors import UsageError
from qdqtune.records.memory_sizes import parse_size, size_text
from qdqtune.resources.available_memory import usable_memory

if sys.platform != "win32":
    import resource

#: With less, an engine doesn't even start.
LEAST_MEMORY = 256 << 20

_MEMORY_SIGNS = (
    "bad_alloc", "MemoryError", "Failed to allocate memory", "Cannot allocate memory",
    "Unable to allocate", "out of memory", "Out of memory", "bad allocation", "failed to allocate",
    "could not allocate", "not enough memory",
)  # fmt: skip
# A GPU's memory is not what is limited here.
_OF_GPUS = ("cuda", "gpu", "device memory")


@dataclass(frozen=True)
class ResourceLimits:
    """What each process may take.

    Attributes:
        max_memory: Bytes of memory for each process; None is what the machine has to spare.
        timeout_s: Seconds for one step: reading a model, opening it in an engine, a block of runs;
            None is what each step usually may take.
    """

    max_memory: int | None = None
    timeout_s: float | None = None

    @property
    def memory_bytes(self) -> int | None:
        """Bytes for each process; None where the system can't say or can't hold a limit."""
        return usable_memory() if self.max_memory is None else self.max_memory


_NONE = ResourceLimits()
_limits: ContextVar[ResourceLimits] = ContextVar("limits", default=_NONE)


def current_limits() -> ResourceLimits:
    """The limits that hold here."""
    return _limits.get()


@contextmanager
def resource_limits(
    max_memory: int | str | None = None, timeout_s: float | None = None
) -> Iterator[ResourceLimits]:
    """Let other limits hold for a while, in this thread.

    Args:
        max_memory: For each process that reads, builds or runs a model: a number of bytes, or text
            such as `4GiB`; None is what the machine has to spare. Only Linux can hold a process to
            it; elsewhere it serves to refuse models that need more.
        timeout_s: Seconds for one step: reading a model, opening it in an engine, a block of runs;
            None is what each step usually may take.

    Raises:
        UsageError: If they make no sense.
    """
    # Told once, so that everything inside has the same.
    memory = usable_memory() if max_memory is None else _memory(max_memory)
    token = _limits.set(ResourceLimits(memory, _seconds(timeout_s)))
    try:
        yield _limits.get()
    finally:
        _limits.reset(token)


@contextmanager
def this_process_limited() -> Iterator[None]:
    """Hold this process to the limit of memory for a while: what is too much is a MemoryError."""
    before = set_memory_limit(current_limits().memory_bytes)
    try:
        yield
    finally:
        if before is not None:
            resource.setrlimit(resource.RLIMIT_DATA, before)


def set_memory_limit(size: int | None) -> tuple[int, int] | None:
    """Hold this process, and those that it starts, to a limit of memory.

    What counts is memory that a process can write to and shares with nobody, be it used or not.
    Address space that is only reserved, as GPU drivers do, does not: under a limit of all address
    space (RLIMIT_AS) CUDA would not start.

    Args:
        size: In bytes; None sets no limit.

    Returns:
        The limit before; None if nothing was set.
    """
    if size is None or sys.platform != "linux":
        return None
    before = resource.getrlimit(resource.RLIMIT_DATA)
    given = [each for each in (size, *before) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(given), before[1]))
    return before


def is_out_of_memory(text: str) -> bool:
    """Whether what native code or Python printed means that memory ran out."""
    of_gpu = any(sign in text.lower() for sign in _OF_GPUS)
    return not of_gpu and any(sign in text for sign in _MEMORY_SIGNS)


def out_of_memory_text(limit: int | None) -> str:
    """How to say that a process ran out of memory, as the end of a sentence."""
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
