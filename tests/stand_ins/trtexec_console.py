"""What the stand-in trtexec prints: progress to stdout, warnings and errors to stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

Version = tuple[int, ...]
_BUILD_TOLD_SINCE = (10, 4)


class Console:
    """The two streams.

    Args:
        version: Of the TensorRT that is stood in for.
        arguments: The program's name and what follows.
    """

    def __init__(self, version: Version, arguments: Sequence[str]) -> None:
        self._version = version
        self._called = " ".join(arguments)
        self._stamp = time.strftime("[%m/%d/%Y-%H:%M:%S]")

    def banner(self, what: str) -> None:
        """Says that it runs, passed or failed."""
        major, minor, patch = self._version
        thousands = 1000 if major < 10 else 10000
        number = major * thousands + minor * 100 + patch
        build = " [b11]" if self._version >= _BUILD_TOLD_SINCE else ""
        self.write(f"&&&& {what} TensorRT.trtexec [TensorRT v{number}]{build} # {self._called}\n")

    def info(self, text: str, end: str = "\n") -> None:
        """Tells progress."""
        self.write(f"{self._stamp} [I] {text}{end}")

    def verbose(self, text: str) -> None:
        """Tells details."""
        self.write(f"{self._stamp} [V] [TRT] {text}\n")

    def warning(self, text: str) -> None:
        """Warns."""
        self.complain(f"{self._stamp} [W] {text}\n")

    def errors(self, text: str) -> None:
        """Tells what is wrong, a line each."""
        for line in text.splitlines():
            self.complain(f"{self._stamp} [E] {line}\n")

    def write(self, text: str) -> None:
        """Writes to stdout."""
        sys.stdout.write(text)

    def complain(self, text: str) -> None:
        """Writes to stderr, after all that was written before."""
        sys.stdout.flush()
        sys.stderr.write(text)
