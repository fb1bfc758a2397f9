"""What trtexec prints: the time of runs, and why something failed."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

# The prefix keeps "Total GPU Compute Time" and what verbose lines explain out.
_GPU_TIME = re.compile(r"\[I\] GPU Compute Time: .*?median = ([0-9.eE+-]+|[+-]?inf|[+-]?nan) ms")
_UNKNOWN_OPTION = re.compile(r"Unknown option: (\S+)")
_PASSED = re.compile(r"^&&&& PASSED ", re.MULTILINE)
_STAMP = re.compile(r"^\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] ")
_LEVEL = re.compile(r"^(?:\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] )?\[([VIWEF])\] (?:\[TRT\] ?)?")
_SOURCE = re.compile(r"^(?:[\w./-]+\.(?:cpp|h|cu):\d+: )+")
_NODE = re.compile(r"While parsing node number (\d+) \[(.*)\]")
_NODE_NAME = re.compile(r'^Node name: (.+)$|\bname: "([^"\n]+)"', re.MULTILINE)
_BARE = re.compile(
    r"Cuda failure|Cannot find any available devices|Uncaught exception|terminate called|"
    r"error while loading shared libraries|[Oo]ut of memory|[Cc]ommand not found"
)
# What follows from an error that was told before.
_CONSEQUENCES = re.compile(
    r"--- (?:Begin|End) node ---|Engine set up failed|Failed to create engine from model|"
    r"Building engine failed|Engine could not be created from network|Parsing model failed|"
    r"Failed to parse onnx file|Network And Config setup failed|Attempting to access an empty|"
    r"In node \d+ with name|Error occurred during inference$|Inference set up failed"
)
_NO_KERNEL = re.compile(r"Could not find any implementation for node")
_LONGEST = 400


def gpu_median_ms(text: str) -> float | None:
    """The median of the time that the GPU computes in a run; None if no summary was printed."""
    found = _GPU_TIME.findall(text)
    return float(found[-1]) if found else None


def has_passed(text: str) -> bool:
    """Whether trtexec says that all went well."""
    return _PASSED.search(text) is not None


def unknown_options(text: str) -> set[str]:
    """Options that it doesn't know."""
    return set(_UNKNOWN_OPTION.findall(text))


def finds_no_kernel(text: str) -> bool:
    """Whether a build failed because nothing was left that could compute a layer."""
    return _NO_KERNEL.search(text) is not None


def reason_of(text: str, code: int) -> str:
    """Why a call failed, in a line or two.

    Args:
        text: All that was printed.
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
    """Messages about errors, each with the lines that belong to it."""
    messages: list[str] = []
    is_open = False
    for line in text.splitlines():
        level = _LEVEL.match(line)
        if level is not None:
            is_open = level[1] in "EF"
            if is_open:
                messages.append(_plain(line))
        elif _STAMP.match(line) or line.startswith("&&&&"):
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
    """The node that could not be parsed, and what was said of it."""
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
