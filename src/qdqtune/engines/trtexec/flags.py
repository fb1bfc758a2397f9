"""Which options trtexec takes in which version, as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qdqtune.engines.trtexec.version import Version

_ALWAYS, _NEVER = Version(0), Version(1 << 30)
_V8_2, _V8_4, _V8_6 = Version(8, 2), Version(8, 4), Version(8, 6)
_V9, _V10_1, _V10_13, _V11 = Version(9), Version(10, 1), Version(10, 13), Version(11)

# From which version on, and before which.
_LIVES = {
    "--stronglyTyped": (_V9, _V11),  # later ones take it, and it means nothing
    "--fp16": (_ALWAYS, _V11),
    "--bf16": (_V9, _V11),
    "--int8": (_ALWAYS, _V11),
    "--fp8": (_V8_6, _V11),
    "--int4": (_V10_1, _V11),
    "--best": (_ALWAYS, _V11),
    "--skipInference": (_V8_6, _NEVER),
    "--buildOnly": (_ALWAYS, _V8_6),
    "--useCudaGraph": (_ALWAYS, _V11),
    "--noCudaGraph": (_V11, _NEVER),
    "--noDataTransfers": (_ALWAYS, _V11),
    "--useSpinWait": (_ALWAYS, _V11),
    "--separateProfileRun": (_ALWAYS, _V11),
    "--exportLayerInfo": (_V8_2, _NEVER),
    "--profilingVerbosity": (_V8_2, _NEVER),
    "--staticPlugins": (_V8_6, _NEVER),
    "--plugins": (_ALWAYS, _V8_6),
    "--memPoolSize": (_V8_4, _NEVER),
    "--workspace": (_ALWAYS, _V8_4),
    "--builderOptimizationLevel": (_V8_6, _NEVER),
    "--remoteAutoTuningConfig": (_V10_13, _NEVER),
}

DISPENSABLE = frozenset(
    {
        "--exportProfile",
        "--exportLayerInfo",
        "--profilingVerbosity",
        "--separateProfileRun",
        "--dumpProfile",
        "--dumpLayerInfo",
        "--loadInputs",
        "--exportOutput",
        "--exportTimes",
    }
)
"""Options without which models can still be built and timed."""

NOT_WHEN_SAFE = frozenset(
    {
        "--exportProfile",
        "--exportLayerInfo",
        "--profilingVerbosity",
        "--separateProfileRun",
        "--dumpProfile",
        "--dumpLayerInfo",
    }
)
"""What `--safe` forbids."""

_REPEATABLE = frozenset({"--staticPlugins", "--plugins"})

FLOAT_FLAGS = ("--fp16", "--bf16", "--best")
PRECISION_FLAGS = (*FLOAT_FLAGS, "--int8", "--fp8", "--int4")
"""What a builder may choose from in a weakly typed network."""


def takes(version: Version, flag: str) -> bool:
    """Whether an option has a meaning in a version; one that isn't listed has in all."""
    since, before = _LIVES.get(flag, (_ALWAYS, _NEVER))
    return since <= version < before


def require(version: Version, flag: str, purpose: str) -> None:
    """Make sure that there is an option.

    Raises:
        ValueError: If there isn't; it says since or until when there is.
    """
    if takes(version, flag):
        return
    since, before = _LIVES[flag]
    when = f"it came with {_short(since)}" if version < since else f"{_short(before)} removed it"
    raise ValueError(f"trtexec {version} has no {flag}, which {purpose} needs: {when}")


def name_of(argument: str) -> str:
    """The option that an argument is about: `--iterations` of `--iterations=10`."""
    return argument.partition("=")[0]


def joined(ours: Iterable[str], given: Sequence[str]) -> list[str]:
    """Our arguments and the user's; what the user says isn't said twice, which is an error."""
    said = {name_of(argument) for argument in given} - _REPEATABLE
    return [argument for argument in ours if name_of(argument) not in said] + list(given)


def _short(version: Version) -> str:
    return f"{version.major}.{version.minor}"
