"""trtexec as a program: its path and version, its output, and the reason for a failure."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from qdqtune.engines.tensorrt._files import open_log
from qdqtune.resources import end_with_parent

PROGRAM = "trtexec"
_BANNER = re.compile(r"&&&& \w+ TensorRT\.trtexec \[TensorRT v(\d+)\]")
# From 10 on the number has two digits for the minor version.
_FIRST_LONG = 100_000
_HELP_LIMIT_S = 120.0
# The whole help has about 25 kB.
_HELP_BYTES = 1 << 20

NOT_WHEN_SAFE = frozenset(
    {
        "--dumpLayerInfo", "--dumpProfile", "--exportLayerInfo", "--exportProfile",
        "--profilingVerbosity", "--separateProfileRun",
    }
)  # fmt: skip
"""Options that `--safe` forbids."""
DISPENSABLE = NOT_WHEN_SAFE | {"--loadInputs", "--exportOutput", "--exportTimes"}
"""Options without which models can still be built and timed."""
# The prefix excludes "Total GPU Compute Time" and the explanations in verbose output.
_GPU_TIME = re.compile(r"\[I\] GPU Compute Time: .*?median = ([0-9.eE+-]+|[+-]?inf|[+-]?nan) ms")
_UNKNOWN_OPTION = re.compile(r"Unknown option: (\S+)")
_PASSED = re.compile(r"^&&&& PASSED ", re.MULTILINE)
_STAMP = r"\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] "
_TIME_STAMP = re.compile(f"^{_STAMP}")
_LEVEL = re.compile(rf"^(?:{_STAMP})?\[([VIWEF])\] (?:\[TRT\] ?)?")
_SOURCE = re.compile(r"^(?:[\w./-]+\.(?:cpp|h|cu):\d+: )+")
_NODE = re.compile(r"While parsing node number (\d+) \[(.*)\]")
_NODE_NAME = re.compile(r'^Node name: (.+)$|\bname: "([^"\n]+)"', re.MULTILINE)
_BARE = re.compile(
    r"Cuda failure|Cannot find any available devices|Uncaught exception|terminate called|"
    r"error while loading shared libraries|[Oo]ut of memory|[Cc]ommand not found"
)
# Messages that merely follow from an earlier error.
_CONSEQUENCES = re.compile(
    r"--- (?:Begin|End) node ---|Engine set up failed|Failed to create engine from model|"
    r"Building engine failed|Engine could not be created from network|Parsing model failed|"
    r"Failed to parse onnx file|Network And Config setup failed|Attempting to access an empty|"
    r"In node \d+ with name|Error occurred during inference$|Inference set up failed"
)
_NO_KERNEL = re.compile(r"Could not find any implementation for node")
_LONGEST = 400

_LONGEST_LINE = 8000
_HEAD_LINES, _TAIL_LINES = 4000, 1000
_CHUNK = 1 << 16
# Progress, of which a verbose build prints tens of thousands of lines.
_PROGRESS = re.compile(rf"^{_STAMP}\[[VIW]\] ")
_TELLING = ("GPU Compute Time", "[E]", "[F]", "&&&& ")
# Two streams share one pipe: a message may start and end in the middle of another line.
_CUT = re.compile(rf"^(.+?)({_STAMP}\[[VIWEF]\] [^\n]*)\n((?!{_STAMP}|&&&& )[^\n]*)$", re.MULTILINE)
_GLUED = re.compile(rf"(?<=.)(?={_STAMP}\[[VIWEF]\] |&&&& (?:PASSED|FAILED) )")


def name_of(argument: str) -> str:
    """Return the option of an argument: `--iterations` for `--iterations=10`."""
    return argument.partition("=")[0]


class Version(NamedTuple):
    """A version of TensorRT."""

    major: int
    minor: int = 0
    patch: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, self))


def find_program(path: str) -> str:
    """Return the program's full path.

    Args:
        path: The user's path; empty for the one on PATH.

    Raises:
        ValueError: If it doesn't exist, or can't be started.
    """
    found = shutil.which(path or PROGRAM)
    if found is None:
        advice = "put it there, or say where with the option path"
        missing = f"{PROGRAM} is not on PATH: {advice}"
        raise ValueError(f"there is no program {path}" if path else missing)
    return os.path.abspath(found)


def version_of(program: str) -> Version:
    """Return the TensorRT version of a program; cached.

    Raises:
        ValueError: If it doesn't print one.
    """
    seen = os.stat(program)
    return _asked(program, seen.st_mtime_ns, seen.st_size)


def parse_version(text: str) -> Version | None:
    """Return the version in the first line of a program's output; None if it has none."""
    banner = _BANNER.search(text)
    if banner is None:
        return None
    number = int(banner[1])
    if number >= _FIRST_LONG:
        return Version(number // 10_000, number // 100 % 100, number % 100)
    return Version(number // 1000, number // 100 % 10, number % 100)


@functools.cache
def _asked(program: str, modified_ns: int, size: int) -> Version:
    """Read the version from the first line of the help, since there is no option for it."""
    del modified_ns, size  # they are part of the cache key: another program may take its place
    try:
        text = _first_printed([program, "--help"])
    except (OSError, TimeoutError) as error:
        raise ValueError(f"{program} can't be asked for its version: {error}") from None
    version = parse_version(text)
    if version is None:
        said = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
        raise ValueError(f"{program} doesn't print its version, but: {said[:300]}")
    return version


def _first_printed(command: Sequence[str]) -> str:
    """Return the first output of a command, which is ended if it prints more.

    Raises:
        OSError: If it can't be started.
        TimeoutError: If it takes too long.
    """
    child = _start(command, start_new_session=True)
    assert child.stdout is not None
    timer = threading.Timer(_HELP_LIMIT_S, _end, [child])
    timer.start()
    try:
        with child.stdout as stream:
            text = stream.read(_HELP_BYTES).decode(errors="replace")
        is_late = not timer.is_alive()
    finally:
        timer.cancel()
        _end(child)
        child.wait()
    if is_late:
        raise TimeoutError(f"it gave no answer in {_HELP_LIMIT_S:g} s")
    return text


def _start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=end_with_parent if sys.platform == "linux" else None,
        **options,
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child and all processes that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def gpu_median_ms(text: str) -> float | None:
    """Return the median GPU compute time of a run; None if no summary was printed."""
    found = _GPU_TIME.findall(text)
    return float(found[-1]) if found else None


def has_passed(text: str) -> bool:
    """Whether trtexec reports success."""
    return _PASSED.search(text) is not None


def unknown_options(text: str) -> set[str]:
    """Return the options that the output reports as unknown."""
    return set(_UNKNOWN_OPTION.findall(text))


def finds_no_kernel(text: str) -> bool:
    """Whether a build failed because no kernel was left that could compute a layer."""
    return _NO_KERNEL.search(text) is not None


def reason_of(text: str, code: int) -> str:
    """Return why a call failed, in a line or two.

    Args:
        text: Everything that was printed.
        code: The exit code; negative if a signal ended it.
    """
    unknown = sorted(unknown_options(text))
    errors = _errors(text)
    if unknown:
        reason = f"it doesn't know the option{'s'[: len(unknown) > 1]} {', '.join(unknown)}"
    else:
        reason = _told(errors)
    if code < 0:
        return f"it was ended by {_signal_name(-code)}" + (f": {reason}" if reason else "")
    if reason:
        return reason
    if code == 0:
        return "it ended without saying that it passed"
    last = [line for line in text.splitlines() if line.strip() and not line.startswith("&&&&")]
    said = _plain(last[-1])[:_LONGEST] if last else "it printed nothing"
    return f"it ended with code {code}: {said}"


def _errors(text: str) -> list[str]:
    """Return error messages, each with its continuation lines."""
    messages: list[str] = []
    is_open = False
    for line in text.splitlines():
        level = _LEVEL.match(line)
        if level is not None:
            is_open = level[1] in "EF"
            if is_open:
                messages.append(_plain(line))
        elif _TIME_STAMP.match(line) or line.startswith("&&&&"):
            is_open = False
        elif _BARE.search(line):
            messages.append(line.strip())
        elif is_open:
            messages[-1] += f"\n{line.rstrip()}"
    return [message for message in messages if message.strip()]


def _told(errors: Sequence[str]) -> str:
    for place, message in enumerate(errors):
        node = _NODE.search(message)
        if node is not None:
            return _parse_reason(node[2], errors[place + 1 :])
    telling = [_one_line(error) for error in errors if not _CONSEQUENCES.search(error)]
    if not telling:
        telling = [_one_line(error) for error in errors[:1]]
    return "; ".join(dict.fromkeys(telling[:2]))


def _parse_reason(node: str, following: Sequence[str]) -> str:
    """Return the node that could not be parsed, with the reason."""
    text = "\n".join(following)
    named = _NODE_NAME.search(text.partition("attribute {")[0])  # attributes have names, too
    name = f" '{named[1] or named[2]}'" if named is not None else ""
    _, found, said = text.partition("ERROR: ")
    where, _, why = said.partition("\n")
    why = why.partition("\n")[0] or where
    return f"it can't parse the node{name} [{node}]" + (f": {_one_line(why)}" if found else "")


def _plain(line: str) -> str:
    return _SOURCE.sub("", _LEVEL.sub("", line)).strip()


def _one_line(message: str) -> str:
    whole = " ".join(message.split())
    return whole if len(whole) <= _LONGEST else f"{whole[:_LONGEST]}…"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True)
class Finished:
    """A finished call.

    Attributes:
        code: The exit code; negative if a signal ended it.
        text: The output, without lines about progress.
    """

    code: int
    text: str


def run_command(command: Sequence[str], log: Path | None = None) -> Finished:
    """Runs a command to its end.

    The child stays in this process's group, so that ending the group also ends the child.

    Args:
        command: The program and its arguments.
        log: File that the output is appended to, up to a limit.

    Raises:
        OSError: If it can't be started.
    """
    child = _start(command)
    kept = _Kept()
    try:
        assert child.stdout is not None
        with child.stdout as stream, open_log(log) as file:
            file.write(f"$ {shlex.join(command)}\n".encode())
            while chunk := stream.read1(_CHUNK):  # type: ignore[attr-defined]
                file.write(chunk)
                kept.add(chunk)
        code = child.wait()
        with open_log(log) as file:
            file.write(f"\n(exit code {code})\n\n".encode())
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    return Finished(code, kept.text())


class _Kept:
    """The lines worth keeping; of very many, the first and the last."""

    def __init__(self) -> None:
        self._head: list[str] = []
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._open = b""

    def add(self, chunk: bytes) -> None:
        *lines, self._open = (self._open + chunk).split(b"\n")
        self._open = self._open[:_LONGEST_LINE]
        for line in lines:
            self._keep(line)

    def text(self) -> str:
        self._keep(self._open)
        self._open = b""
        return _GLUED.sub("\n", _CUT.sub(r"\1\3\n\2", "\n".join((*self._head, *self._tail))))

    def _keep(self, raw: bytes) -> None:
        line = raw[:_LONGEST_LINE].decode(errors="replace").rstrip("\r")
        if _PROGRESS.match(line) and not any(word in line for word in _TELLING):
            return
        if len(self._head) < _HEAD_LINES:
            self._head.append(line)
        else:
            self._tail.append(line)


class TrtexecError(RuntimeError):
    """A call of trtexec failed; the message says why.

    Args:
        reason: The reason.
        text: The output.
    """

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(reason)
        self.text = text


class Program:
    """A trtexec program.

    Args:
        path: Its path.
        version: The version of its TensorRT.

    Attributes:
        refused: Options that it turned out not to know; they are not passed again.
        loads: Whether it loads engines that it built; None if that has not been tried.
        trusts_cache: Whether a failed build also failed without the timing cache; None if that has
            not been tried. If False, the file is not used again.
    """

    def __init__(self, path: str, version: Version) -> None:
        self.path = path
        self.version = version
        self.refused: set[str] = set()
        self.loads: bool | None = None
        self.trusts_cache: bool | None = None

    def call(
        self, arguments: Sequence[str], given: Sequence[str] = (), log: Path | None = None
    ) -> str:
        """Runs it; options that it does not know are left out if they are dispensable.

        Args:
            arguments: All arguments.
            given: The user's arguments, which are never left out.
            log: File that receives the command and its output.

        Returns:
            The output.

        Raises:
            TrtexecError: If it failed.
            OSError: If it can't be started.
        """
        ours = DISPENSABLE - {name_of(argument) for argument in given}
        finished = self._run(arguments, self.refused & ours, log)
        while self._refuses_more(finished, ours):
            finished = self._run(arguments, self.refused & ours, log)
        if finished.code != 0 or not has_passed(finished.text):
            raise TrtexecError(reason_of(finished.text, finished.code), finished.text)
        return finished.text

    def _refuses_more(self, finished: Finished, ours: Set[str]) -> bool:
        """Whether it rejected further options, all of them dispensable; remembers them."""
        unknown = unknown_options(finished.text)
        if unknown <= self.refused or not unknown <= ours:
            return False
        self.refused |= unknown
        return True

    def _run(self, arguments: Sequence[str], left_out: Set[str], log: Path | None) -> Finished:
        kept = [argument for argument in arguments if name_of(argument) not in left_out]
        return run_command([self.path, *kept], log)
