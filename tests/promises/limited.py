"""Runs a command in a process of its own, under a limit of memory, and watches all that it starts.

Processes are known by a variable in their environment, which those in sessions of their own and
those whose parent is gone have as well.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 3 << 30
MOST_SECONDS = 60.0

_MARK = "QDQTUNE_TEST_TREE"
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int | None
    """None if it had to be ended."""
    output: str
    seconds: float
    peak_bytes: int
    """The most that it and all its children took together."""
    orphans: tuple[str, ...]
    left: tuple[str, ...]
    """Files that stayed in the folder for temporary ones, or have a temporary file's name."""

    def faults(self, most_bytes: int = MOST_BYTES) -> list[str]:
        """What is wrong with it; nothing if it ended well or was refused clearly."""
        found = []
        if self.code is None:
            found.append(f"it did not end within {MOST_SECONDS:.0f} s and {most_bytes >> 20} MB")
        elif self.code not in (0, 1, 2):
            found.append(f"its exit code is {self.code}")
        elif self.code and not self.output.strip():
            found.append("it failed without a word")
        if self.peak_bytes > most_bytes:
            found.append(f"it took {self.peak_bytes >> 20} MB")
        words = ("Traceback", "Fatal Python error", "This is a bug in qdqtune")
        found += [f"it said: {each}" for each in words if each in self.output]
        found += [f"{process} outlives it" for process in self.orphans]
        found += [f"{name} stays behind" for name in self.left]
        return found


def run_limited(
    line: Sequence[str], folder: Path, *, address_space: int | None = MOST_BYTES
) -> Outcome:
    """Run a command in a folder.

    Args:
        line: What `qdqtune` is called with; or ``python`` and what that is called with.
        folder: Where; temporary files go to a folder beside it.
        address_space: What each process may map, which makes allocations fail instead of us.
    """
    mark = uuid.uuid4().hex
    temporary = folder.with_name(folder.name + ".tmp")
    temporary.mkdir()
    paths = [str(_ROOT / "src"), str(_ROOT)]
    environment = {
        **os.environ, _MARK: mark, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(paths),
    }  # fmt: skip

    def limit() -> None:
        if address_space is not None:
            resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))

    arguments = line[1:] if line[0] == "python" else ["-m", "qdqtune", *line]
    log = folder.with_name(folder.name + ".log")
    began = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=folder, env=environment, preexec_fn=limit,
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            peak = _watch(process, mark)
            seconds = time.monotonic() - began
            orphans = _orphans(mark) if process.poll() is not None else ()
        finally:
            ended = process.poll()
            _end(mark)
            process.wait()
    with log.open("rb") as read:
        output = read.read(1 << 20).decode(errors="replace")
    left = [path.name for path in temporary.rglob("*")]
    left += [path.name for path in folder.rglob("*qdqtune-*")]
    shutil.rmtree(temporary)
    return Outcome(ended, output, seconds, peak, orphans, tuple(left))


def _watch(process: subprocess.Popen[bytes], mark: str) -> int:
    """Waits for the end; returns the peak, and soon after it is too high or too late.

    What counts is the time in which processes computed, and that in which none of them could. Time
    in which one could, but others had the cores, does not count.
    """
    peak, computed, idle = 0, 0.0, 0.0
    before = time.monotonic()
    while peak <= MOST_BYTES and computed + idle <= MOST_SECONDS:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
            break
        members = list(_members(mark))
        peak = max(peak, sum(map(_bytes, members)))
        now, spent = time.monotonic(), [_computed_s(number) for number in members]
        if not any(map(_could_run, members)):
            idle += now - before
        computed, before = max(computed, sum(spent)), now
    return peak


def _members(mark: str) -> Iterator[int]:
    wanted = f"{_MARK}={mark}".encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def _bytes(number: int) -> int:
    """What a process takes, with its share of what it has in common with others."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{number}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


def _computed_s(number: int) -> float:
    """How long a process and those of its children that ended have computed."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _could_run(number: int) -> bool:
    """Whether a thread of a process computes, waits for a core or for a disk."""
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{number}/task").iterdir():
            if (thread / "stat").read_text().rpartition(")")[2].split()[0] in ("R", "D"):
                return True
    return False


def _orphans(mark: str) -> tuple[str, ...]:
    """Children that are there a second after their parent."""
    deadline = time.monotonic() + 1.0
    while (found := list(_members(mark))) and time.monotonic() < deadline:
        time.sleep(0.05)
    named = []
    for number in found:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ")
            named.append(command.decode(errors="replace")[:120])
    return tuple(named)


def _end(mark: str) -> None:
    for number in _members(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
