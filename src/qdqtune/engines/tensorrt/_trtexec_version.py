"""The installed trtexec, its version, and the options that each version takes."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from qdqtune.resources import end_with_parent

PROGRAM = "trtexec"
_BANNER = re.compile(r"&&&& \w+ TensorRT\.trtexec \[TensorRT v(\d+)\]")
_TOLD = re.compile(r"\[I\] TensorRT version: (\d+)\.(\d+)\.(\d+)")
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
"""What `--safe` forbids."""
DISPENSABLE = NOT_WHEN_SAFE | {"--loadInputs", "--exportOutput", "--exportTimes"}
"""Options without which models can still be built and timed."""
PLUGIN_FLAGS = frozenset(
    {"--staticPlugins", "--plugins", "--dynamicPlugins", "--setPluginsToSerialize"}
)
"""Options that name a library each; they may be said more than once."""
FLOAT_FLAGS = ("--fp16", "--bf16", "--best")
PRECISION_FLAGS = (*FLOAT_FLAGS, "--int8", "--fp8", "--int4")
"""What a builder may choose from in a weakly typed network."""


class Version(NamedTuple):
    """A version of TensorRT."""

    major: int
    minor: int = 0
    patch: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, self))


def find_program(path: str) -> str:
    """The program's full path.

    Args:
        path: As the user says it; empty is the one on PATH.

    Raises:
        ValueError: If it isn't there, or can't be started.
    """
    found = shutil.which(path or PROGRAM)
    if found is None and path:
        raise ValueError(f"there is no program {path}")
    if found is None:
        raise ValueError(
            f"{PROGRAM} is not on PATH: put it there, or say where with the option path"
        )
    return os.path.abspath(found)


def version_of(program: str) -> Version:
    """The version of TensorRT that a program is from; asked for once.

    Raises:
        ValueError: If it doesn't tell.
    """
    seen = os.stat(program)
    return _asked(program, seen.st_mtime_ns, seen.st_size)


def parse_version(text: str) -> Version | None:
    """The version that the first line of a program's output names; None if it names none."""
    told = _TOLD.search(text)
    if told is not None:
        return Version(*map(int, told.groups()))
    banner = _BANNER.search(text)
    if banner is None:
        return None
    number = int(banner[1])
    if number >= _FIRST_LONG:
        return Version(number // 10_000, number // 100 % 100, number % 100)
    return Version(number // 1000, number // 100 % 10, number % 100)


@functools.cache
def _asked(program: str, modified_ns: int, size: int) -> Version:
    """There is no option for it; the shortest way is the help, whose first line tells it."""
    del modified_ns, size  # they are here so that another program at the same place is asked again
    try:
        text = _first_printed([program, "--help"])
    except (OSError, TimeoutError) as error:
        raise ValueError(f"{program} can't be asked for its version: {error}") from None
    version = parse_version(text)
    if version is None:
        said = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
        raise ValueError(f"{program} doesn't tell its version, it says: {said[:300]}")
    return version


def _first_printed(command: Sequence[str]) -> str:
    """The beginning of what a command prints; the command is ended when there is more.

    Raises:
        OSError: If it can't be started.
        TimeoutError: If it takes too long.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=end_with_parent if sys.platform == "linux" else None,
    )
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


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child, and what it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


_ALWAYS, _NEVER = Version(0), Version(1 << 30)
_V8_2, _V8_4, _V8_6, _V9 = Version(8, 2), Version(8, 4), Version(8, 6), Version(9)
_V10, _V10_1, _V10_13 = Version(10), Version(10, 1), Version(10, 13)
_V11, _V11_1 = Version(11), Version(11, 1)

# From which version on, and before which, options are what one says.
_LIVES = {
    flag: (since, before)
    for since, before, flags in (
        (_ALWAYS, _V8_4, "--workspace"),
        (_ALWAYS, _V8_6, "--buildOnly --plugins"),
        (_ALWAYS, _V10, "--explicitBatch --batch --nvtxMode --heuristic --minTiming"),
        (_ALWAYS, _V11, "--fp16 --int8 --best"),
        (_ALWAYS, _V11, "--useCudaGraph --noDataTransfers --useSpinWait --separateProfileRun"),
        (_V8_6, _V11, "--fp8"),
        (_V9, _V11, "--stronglyTyped --bf16"),
        (_V10_1, _V11, "--int4"),
        (_V8_2, _NEVER, "--exportLayerInfo --dumpLayerInfo --profilingVerbosity"),
        (_V8_4, _NEVER, "--memPoolSize"),
        (_V8_6, _NEVER, "--skipInference --builderOptimizationLevel"),
        (_V8_6, _NEVER, "--staticPlugins --dynamicPlugins --setPluginsToSerialize"),
        (Version(10, 4), _NEVER, "--maxTactics"),
        (Version(10, 8), _NEVER, "--tilingOptimizationLevel"),
        (_V10_13, _NEVER, "--remoteAutoTuningConfig"),
        (Version(10, 15), _NEVER, "--cpuOnly"),
        (_V11, _NEVER, "--noCudaGraph --includeDataTransfers --noSpinWait"),
        (_V11_1, _NEVER, "--tuneBuildRoutes --setBuildRoute"),
    )
    for flag in flags.split()
}
# Before which version it is still taken, though another says the same or it means nothing.
_TOLERATED = {
    **dict.fromkeys(("--stronglyTyped", "--plugins", "--useCudaGraph"), _NEVER),
    **dict.fromkeys(("--noDataTransfers", "--useSpinWait", "--separateProfileRun"), _NEVER),
    "--workspace": _V10,
}


def takes(version: Version, flag: str) -> bool:
    """Whether an option is the one to say in a version; one that isn't listed is in all."""
    since, before = _LIVES.get(flag, (_ALWAYS, _NEVER))
    return since <= version < before


def is_removed(version: Version, flag: str) -> bool:
    """Whether an option that there was is an error in a version."""
    return version >= _removed_by(flag)


def lacks(version: Version, flag: str) -> str:
    """Why an option is an error in a version: since or until when there is one; empty if not."""
    since, _ = _LIVES.get(flag, (_ALWAYS, _NEVER))
    if version < since:
        return f"it came with {_short(since)}"
    return f"{_short(_removed_by(flag))} removed it" if is_removed(version, flag) else ""


def require(version: Version, flag: str, purpose: str) -> None:
    """Make sure that there is an option.

    Raises:
        ValueError: If there isn't; it says since or until when there is.
    """
    why = lacks(version, flag)
    if why:
        raise ValueError(f"trtexec {version} has no {flag}, which {purpose} needs: {why}")


def name_of(argument: str) -> str:
    """The option that an argument is about: `--iterations` of `--iterations=10`."""
    return argument.partition("=")[0]


def joined(ours: Iterable[str], given: Sequence[str]) -> list[str]:
    """Our arguments and the user's; what the user says isn't said twice, which is an error."""
    said = {name_of(argument) for argument in given} - PLUGIN_FLAGS
    return [argument for argument in ours if name_of(argument) not in said] + list(given)


def _removed_by(flag: str) -> Version:
    _, before = _LIVES.get(flag, (_ALWAYS, _NEVER))
    return _TOLERATED.get(flag, before)


def _short(version: Version) -> str:
    return f"{version.major}.{version.minor}"
