"""Which options trtexec takes in which version, as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qdqtune.engines.trtexec.version import Version

_ALWAYS, _NEVER = Version(0), Version(1 << 30)
_V8_2, _V8_4, _V8_6, _V9 = Version(8, 2), Version(8, 4), Version(8, 6), Version(9)
_V10, _V10_1, _V10_13 = Version(10), Version(10, 1), Version(10, 13)
_V11, _V11_1 = Version(11), Version(11, 1)

# From which version on, and before which, it is what one says.
_LIVES = {
    "--stronglyTyped": (_V9, _V11),
    "--fp16": (_ALWAYS, _V11),
    "--bf16": (_V9, _V11),
    "--int8": (_ALWAYS, _V11),
    "--fp8": (_V8_6, _V11),
    "--int4": (_V10_1, _V11),
    "--best": (_ALWAYS, _V11),
    "--explicitBatch": (_ALWAYS, _V10),
    "--batch": (_ALWAYS, _V10),
    "--skipInference": (_V8_6, _NEVER),
    "--buildOnly": (_ALWAYS, _V8_6),
    "--useCudaGraph": (_ALWAYS, _V11),
    "--noCudaGraph": (_V11, _NEVER),
    "--noDataTransfers": (_ALWAYS, _V11),
    "--includeDataTransfers": (_V11, _NEVER),
    "--useSpinWait": (_ALWAYS, _V11),
    "--noSpinWait": (_V11, _NEVER),
    "--separateProfileRun": (_ALWAYS, _V11),
    "--exportLayerInfo": (_V8_2, _NEVER),
    "--dumpLayerInfo": (_V8_2, _NEVER),
    "--profilingVerbosity": (_V8_2, _NEVER),
    "--nvtxMode": (_ALWAYS, _V10),
    "--staticPlugins": (_V8_6, _NEVER),
    "--dynamicPlugins": (_V8_6, _NEVER),
    "--setPluginsToSerialize": (_V8_6, _NEVER),
    "--plugins": (_ALWAYS, _V8_6),
    "--memPoolSize": (_V8_4, _NEVER),
    "--workspace": (_ALWAYS, _V8_4),
    "--builderOptimizationLevel": (_V8_6, _NEVER),
    "--heuristic": (_ALWAYS, _V10),
    "--minTiming": (_ALWAYS, _V10),
    "--maxTactics": (Version(10, 4), _NEVER),
    "--tilingOptimizationLevel": (Version(10, 8), _NEVER),
    "--remoteAutoTuningConfig": (_V10_13, _NEVER),
    "--cpuOnly": (Version(10, 15), _NEVER),
    "--tuneBuildRoutes": (_V11_1, _NEVER),
    "--setBuildRoute": (_V11_1, _NEVER),
}
# Before which version it is still taken, though another says the same or it means nothing.
_TOLERATED = {
    "--stronglyTyped": _NEVER,
    "--useCudaGraph": _NEVER,
    "--noDataTransfers": _NEVER,
    "--useSpinWait": _NEVER,
    "--separateProfileRun": _NEVER,
    "--plugins": _NEVER,
    "--workspace": _V10,
}

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
DISPENSABLE = NOT_WHEN_SAFE | {"--loadInputs", "--exportOutput", "--exportTimes"}
"""Options without which models can still be built and timed."""

PLUGIN_FLAGS = frozenset(
    {"--staticPlugins", "--plugins", "--dynamicPlugins", "--setPluginsToSerialize"}
)
"""Options that name a library each; they may be said more than once."""

FLOAT_FLAGS = ("--fp16", "--bf16", "--best")
PRECISION_FLAGS = (*FLOAT_FLAGS, "--int8", "--fp8", "--int4")
"""What a builder may choose from in a weakly typed network."""


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
