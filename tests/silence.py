"""How long a command says nothing while it works."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Silence(NamedTuple):
    """A time without a line of output.

    Attributes:
        seconds: How long it was, and at most the CPU time that the command took meanwhile: on a
            busy machine it may get none.
        after: The line before it.
        before: The line after it.
    """

    seconds: float
    after: str
    before: str


class CommandOutput(NamedTuple):
    """What a command said.

    Attributes:
        code: Its exit code.
        lines: Its output, stderr and stdout.
        silences: The times before each line, and before its end.
    """

    code: int
    lines: list[str]
    silences: list[Silence]

    @property
    def longest(self) -> Silence:
        """The longest silence."""
        return max(self.silences)


def listen_to(command: Sequence[str]) -> CommandOutput:
    """Run a command in a pipe, and take the time of every line."""
    lines, silences = ["(start)"], []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        last_s, last_cpu_s = time.monotonic(), 0.0
        assert process.stdout is not None
        for line in itertools.chain(process.stdout, ["(end)"]):
            now_s, cpu_s = time.monotonic(), _cpu_seconds(process.pid)
            seconds = min(now_s - last_s, cpu_s - last_cpu_s)
            silences.append(Silence(seconds, lines[-1], line.rstrip()))
            lines.append(line.rstrip())
            last_s, last_cpu_s = now_s, max(cpu_s, last_cpu_s)
        code = process.wait()
    return CommandOutput(code, lines[1:-1], silences)


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, its descendants, and those that ended."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for each in Path("/proc").iterdir():
        if not each.name.isdigit():
            continue
        try:
            fields = (each / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it is gone
            continue
        children.setdefault(int(fields[1]), []).append(int(each.name))
        ticks[int(each.name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        total += ticks.get(one, 0)
        waiting += children.get(one, [])
    return total / os.sysconf("SC_CLK_TCK")


def without_progress(errors: str) -> str:
    """Return what a command wrote to stderr, without its lines of progress."""
    return re.sub(r"^\[[^]\n]+\] .*\n", "", errors, flags=re.MULTILINE)
