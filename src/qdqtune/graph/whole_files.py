"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from qdqtune.records.errors import OutputError

_ROOM = "Check that the disk has room and the folder can be written to."


@contextlib.contextmanager
def replacing(target: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write to, which takes a name when it is complete.

    Args:
        target: The name; what had it before is there until then.
        durable: Whether it must survive a crash of the machine, not only of this process.

    Raises:
        OutputError: If it can't be written.
    """
    staged = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with writing(target):
            with staged.open("wb") as file:
                yield file
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(staged, target)
            if durable:
                sync(target.parent)
    finally:
        staged.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(target: Path) -> Iterator[None]:
    """Say it in our words if the system can't write a file.

    Raises:
        OutputError: If it can't be written.
    """
    try:
        yield
    except OSError as error:
        # numpy tells a full disk without the system's reason.
        why = error.strerror or "not all of it could be written"
        raise OutputError(f"{target} could not be written: {why}.", _ROOM) from None


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
