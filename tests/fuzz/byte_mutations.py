"""Breaking a file as bytes: what a bad disk, a bad network or a bad person does to it."""

from __future__ import annotations

import random
from collections.abc import Callable

_HUGE_VARINT = b"\xff" * 9 + b"\x01"


def flip(rng: random.Random, data: bytearray) -> None:
    """Change some bits."""
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def truncate(rng: random.Random, data: bytearray) -> None:
    """Lose the end."""
    del data[rng.randrange(len(data)) :]


def drop(rng: random.Random, data: bytearray) -> None:
    """Lose a chunk in the middle."""
    start = rng.randrange(len(data))
    del data[start : start + rng.randint(1, 16)]


def splice(rng: random.Random, data: bytearray) -> None:
    """Copy a chunk to somewhere else."""
    start, target = rng.randrange(len(data)), rng.randrange(len(data))
    data[target:target] = data[start : start + rng.randint(1, 64)]


def repeat(rng: random.Random, data: bytearray) -> None:
    """Write a chunk many times over."""
    start = rng.randrange(len(data))
    chunk = bytes(data[start : start + rng.randint(1, 32)])
    data[start:start] = chunk * rng.choice((2, 20, 1000))


def noise(rng: random.Random, data: bytearray) -> None:
    """Overwrite a chunk with noise."""
    start = rng.randrange(len(data))
    data[start : start + 16] = rng.randbytes(rng.randint(1, 16))


def huge_varint(rng: random.Random, data: bytearray) -> None:
    """A number of 64 bits where a small one was."""
    start = rng.randrange(len(data))
    data[start : start + 1] = _HUGE_VARINT


def lying_length(rng: random.Random, data: bytearray) -> None:
    """Replace a byte, likely a length, by another size."""
    start = rng.randrange(len(data))
    data[start : start + 1] = rng.choice((b"\x00", b"\x01", b"\x7f", b"\xff\xff\x03", b"\x80\x01"))


def doubled(rng: random.Random, data: bytearray) -> None:
    """The file twice: protobuf merges messages that follow each other."""
    data.extend(bytes(data))


BYTE_MUTATIONS: tuple[Callable[[random.Random, bytearray], None], ...] = (
    flip, truncate, drop, splice, repeat, noise, huge_varint, lying_length, doubled,
)  # fmt: skip
