"""The GPU that isn't there: the host's memory, and streams with a clock of their own.

Work on a stream moves its clock on at once, by simulated milliseconds, and is computed when
somebody looks at memory. Who waits for a stream waits as long as the clock says.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tests.stand_ins.tensorrt_api.situation import strikes

GPUS = 2
NAME = "Stand-in for an NVIDIA GPU"
CAPABILITY = (9, 0)


class Work(Protocol):
    """Something to be done on a stream."""

    def key(self) -> Hashable:
        """Equal for work that makes the same of the same memory."""

    def next_ms(self) -> float:
        """How long it takes this time."""

    def compute(self) -> None:
        """Does it."""


@dataclass
class Graph:
    """Work that was captured."""

    works: list[Work] = field(default_factory=list)


@dataclass
class Stream:
    """A queue of work.

    Attributes:
        now_ms: Its clock.
        waited_ms: Up to where somebody has waited.
        capturing: What is captured; None if nothing is.
        is_spoiled: Whether that capture can't come to a graph any more.
    """

    now_ms: float = 0.0
    waited_ms: float = 0.0
    capturing: Graph | None = None
    is_spoiled: bool = False

    def put(self, work: Work) -> None:
        """Adds work, or captures it."""
        if self.capturing is not None:
            self.capturing.works.append(work)
            return
        self.now_ms += work.next_ms()
        _pending[work.key()] = work

    def wait(self) -> None:
        """Takes the time that the work takes."""
        left_ms, self.waited_ms = self.now_ms - self.waited_ms, self.now_ms
        if left_ms > 0:
            time.sleep(left_ms / 1000.0)


streams: dict[int, Stream] = {}
graphs: dict[int, Graph] = {}
"""Those that nobody has destroyed, captured and instantiated ones alike."""
_memory: dict[int, np.ndarray] = {}
_pending: dict[Hashable, Work] = {}
_handles = itertools.count(0x5000)


def new_handle() -> int:
    """A number for something."""
    return next(_handles)


def allocate(size: int) -> int | None:
    """Memory, filled with what nobody would compute; None if there is no more."""
    if strikes("cuda_malloc_fails"):
        return None
    block = np.full(size, 0xA5, np.uint8)
    _memory[block.ctypes.data] = block
    return int(block.ctypes.data)


def free(address: int) -> bool:
    """Gives memory back; False if there is none at that address."""
    finish()
    return _memory.pop(address, None) is not None


def owns(address: int, size: int) -> bool:
    """Whether so many bytes from an address on are the GPU's."""
    block = _memory.get(address)
    return block is not None and block.nbytes >= size


def copy(target: int, source: int, size: int) -> None:
    """Copies bytes, when everything before is done."""
    finish()
    ctypes.memmove(target, source, size)


def finish() -> None:
    """Computes what is still to be computed."""
    while _pending:
        _pending.pop(next(iter(_pending))).compute()


def array_at(address: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A view of memory."""
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return np.zeros(shape, dtype)
    content = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(content, np.uint8).view(dtype).reshape(shape)
