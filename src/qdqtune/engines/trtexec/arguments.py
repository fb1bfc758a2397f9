"""The user's own arguments for trtexec, as a version of it takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qdqtune.engines.trtexec.flags import PRECISION_FLAGS, is_removed, lacks, name_of
from qdqtune.engines.trtexec.version import Version

_OURS = frozenset(
    {
        "--onnx",
        "--saveEngine",
        "--loadEngine",
        "--skipInference",
        "--buildOnly",
        "--exportTimes",
        "--exportOutput",
        "--exportProfile",
        "--exportLayerInfo",
        "--loadInputs",
        "--help",
        "-h",
    }
)
_DEVICE, _WORKSPACE, _POOLS = "--device", "--workspace", "--memPoolSize"
_CUDA_GRAPH = {"--useCudaGraph": True, "--noCudaGraph": False}
_TYPES = "types are those of the model (qdqtune tune converts it: --precision)"
# What a version that removed an option does anyway, or has other means for.
_LEFT_OUT = {**dict.fromkeys(PRECISION_FLAGS, _TYPES), "--explicitBatch": "it is always so"}
_INSTEAD = {
    "--batch": "say --shapes",
    "--heuristic": "say --builderOptimizationLevel=2",
    "--nvtxMode": "say --profilingVerbosity",
    "--staticPlugins": "say --plugins",
    _POOLS: "say --workspace",
}


@dataclass(frozen=True)
class Asked:
    """What a user's arguments come to.

    Attributes:
        arguments: Those that are said to trtexec.
        device: Number of the GPU; None if they don't say.
        cuda_graph: Whether timed runs are launched as a CUDA graph; None if they don't say.
        notes: What of them is said in another way, or not at all, and why.
    """

    arguments: tuple[str, ...]
    device: int | None
    cuda_graph: bool | None
    notes: tuple[str, ...]


def asked_by(words: Sequence[str], version: Version) -> Asked:
    """Reads arguments that the user gives.

    Raises:
        ValueError: If they contradict each other, are ours to say, or mean something that this
            version can't do.
    """
    kept, notes, workspace = [], [], ""
    for word in words:
        name, _, value = word.partition("=")
        why = lacks(version, name)
        if name in _OURS:
            raise ValueError(f"args has {name}, which qdqtune says to trtexec itself: leave it out")
        if name == _DEVICE or name in _CUDA_GRAPH:
            continue
        if not why:
            kept.append(word)
        elif name == _WORKSPACE:
            workspace = value
            notes.append(f"trtexec {version} has no {name}: {_POOLS}=workspace:{value} is said")
        elif name in _LEFT_OUT and is_removed(version, name):
            notes.append(f"trtexec {version} has no {name}, it is left out: {_LEFT_OUT[name]}")
        else:
            instead = _INSTEAD.get(name, "leave it out")
            raise ValueError(
                f"args has {name}, which trtexec {version} doesn't know: {why}; {instead}"
            )
    if {"--int8", "--fp8"} <= set(map(name_of, kept)):
        raise ValueError("args has --int8 and --fp8, but trtexec takes only one of them")
    if workspace:
        kept = with_workspace(kept, workspace)
    return Asked(tuple(kept), _device(words), _cuda_graph(words), tuple(notes))


def workspace_in(arguments: Sequence[str]) -> str:
    """The argument that limits the memory for kernels; empty if there is none."""
    for argument in arguments:
        name, _, value = argument.partition("=")
        pools = [pool.partition(":")[0] for pool in value.split(",")]
        if name == _WORKSPACE or (name == _POOLS and "workspace" in pools):
            return argument
    return ""


def with_workspace(arguments: Sequence[str], size: str) -> list[str]:
    """Arguments with a limit for that memory, in the option that other pools have theirs in.

    Raises:
        ValueError: If there is one.
    """
    said = workspace_in(arguments)
    if said:
        raise ValueError(f"args has {said}, and {size} for the workspace, too: leave one out")
    pools = [each for each in arguments if name_of(each) == _POOLS] or [f"{_POOLS}="]
    limit = f"{pools[0]}{'' if pools[0].endswith('=') else ','}workspace:{size}"
    return [*(each for each in arguments if name_of(each) != _POOLS), limit]


def _device(words: Sequence[str]) -> int | None:
    said = [word.partition("=")[2] for word in words if name_of(word) == _DEVICE]
    if any(not number.isdecimal() for number in said):
        raise ValueError(f"args has {_DEVICE}={said[0]}; it is the number of a GPU")
    return int(said[-1]) if said else None


def _cuda_graph(words: Sequence[str]) -> bool | None:
    said = {_CUDA_GRAPH[name] for name in map(name_of, words) if name in _CUDA_GRAPH}
    if len(said) > 1:
        raise ValueError(f"args has {' and '.join(_CUDA_GRAPH)}: leave one out")
    return said.pop() if said else None
