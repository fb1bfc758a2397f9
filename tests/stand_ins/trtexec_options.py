"""The arguments of the stand-in trtexec: which there are in a version, and what they say."""

from __future__ import annotations

import re
from collections.abc import Sequence

Version = tuple[int, ...]
Shapes = dict[str, tuple[int, ...]]

# Since which version, before which version; a name that ends in "=" takes a value.
_ALWAYS: tuple[Version, Version] = ((0,), (99,))
_BEFORE_11: tuple[Version, Version] = ((0,), (11,))
_BEFORE_10: tuple[Version, Version] = ((0,), (10,))
_FLAGS: dict[tuple[Version, Version], str] = {
    _ALWAYS: """
        onnx= saveEngine= loadEngine= minShapes= optShapes= maxShapes= shapes= timingCacheFile=
        noBuilderCache exportLayerInfo= dumpLayerInfo profilingVerbosity= exportProfile= dumpProfile
        separateProfileRun exportTimes= exportOutput= dumpOutput dumpRawBindingsToFile loadInputs=
        warmUp= duration= iterations= avgRuns= percentile= useCudaGraph noDataTransfers useSpinWait
        skipInference memPoolSize= plugins= safe device= verbose streams= infStreams= sleepTime=
        idleTime= threads noTF32 inputIOFormats= outputIOFormats= refit sparsity= exposeDMA
        tacticSources= directIO maxAuxStreams= timeDeserialize persistentCacheRatio= help
        useDLACore= allowGPUFallback""",
    _BEFORE_11: """
        fp16 int8 best calib= precisionConstraints= layerPrecisions= layerOutputTypes=""",
    _BEFORE_10: """
        explicitBatch workspace= buildOnly minTiming= nvtxMode= heuristic batch= uff= deploy=
        model= output=""",
    ((8, 6), (99,)): """
        builderOptimizationLevel= staticPlugins= dynamicPlugins= setPluginsToSerialize= useRuntime=
        versionCompatible excludeLeanRuntime hardwareCompatibilityLevel= dumpOptimizationProfile
        useProfile= previewFeatures= tempdir= tempfileControls= ignoreParsedPluginLibs""",
    ((8, 6), (11,)): "fp8",
    ((9,), (11,)): "bf16",
    ((9,), (99,)): "stronglyTyped profile= stripWeights weightless errorOnTimingCacheMiss",
    ((10, 1), (11,)): "int4",
    ((10, 1), (99,)): """
        weightStreamingBudget= allowWeightStreaming runtimePlatform= saveDebugTensors=""",
    ((10, 4), (99,)): "maxTactics=",
    ((10, 8), (99,)): "tilingOptimizationLevel= l2LimitForTiling= saveAllDebugTensors=",
    ((10, 13), (99,)): "remoteAutoTuningConfig=",
    ((10, 15), (99,)): "cpuOnly",
    ((11,), (99,)): "noCudaGraph includeDataTransfers noSpinWait",
    ((11, 1), (99,)): "tuneBuildRoutes setBuildRoute= helpBuildRoute",
}  # fmt: skip
_REPEATED = {"staticPlugins", "dynamicPlugins", "setPluginsToSerialize", "plugins"}
_NUMBERS = {
    "warmUp", "duration", "iterations", "avgRuns", "streams", "infStreams", "device",
    "builderOptimizationLevel", "maxAuxStreams", "maxTactics", "tilingOptimizationLevel",
}  # fmt: skip
_VERBOSITIES = ("layer_names_only", "detailed", "none")
NO_OPS_11 = {
    "stronglyTyped": "--stronglyTyped is the only mode and needs not be given.",
    "useCudaGraph": "--useCudaGraph has been deprecated: CUDA graphs are used by default.",
    "noDataTransfers": "--noDataTransfers has been deprecated: it is the default.",
    "useSpinWait": "--useSpinWait has been deprecated: it is the default.",
    "separateProfileRun": "--separateProfileRun has been deprecated: it is always separate.",
}
"""Options without a meaning in version 11, and what is said about them."""


class ArgumentError(Exception):
    """What is wrong with the arguments, a line each."""


class Options:
    """What was asked for.

    Args:
        arguments: All behind the program's name.
        version: Of the TensorRT that is stood in for.
        without: Names of options that this build of it doesn't know.

    Raises:
        ArgumentError: If they can't be understood.
    """

    def __init__(
        self, arguments: Sequence[str], version: Version, without: Sequence[str] = ()
    ) -> None:
        known = _known(version)
        for name in without:
            known.pop(name.lstrip("-"), None)
        self.given: dict[str, str] = {}
        self.plugins: list[str] = []
        unknown = []
        for argument in arguments:
            option, _, value = argument.partition("=")
            name = option.removeprefix("--")
            if not option.startswith("--") or name not in known or (value and not known[name]):
                unknown.append(f"Unknown option: {option} {value}")
            elif name in _REPEATED:
                self.plugins.append(value)
            else:
                self.given[name] = value
        if unknown:  # they come from a hash table, in no order that would mean anything
            raise ArgumentError("\n".join(sorted(unknown, key=len, reverse=True)))
        self._check(version)
        self.min_shapes = self._shapes("minShapes")
        self.opt_shapes = self._shapes("optShapes")
        self.max_shapes = self._shapes("maxShapes")
        self.shapes = self._shapes("shapes")

    def has(self, name: str) -> bool:
        """Whether an option was given."""
        return name in self.given

    def text(self, name: str, default: str = "") -> str:
        """The value of an option."""
        return self.given.get(name, default)

    def number(self, name: str, default: float) -> float:
        """The value of an option as a number."""
        return float(self.given.get(name, default))

    def loaded_inputs(self) -> dict[str, str]:
        """Files by input."""
        found = {}
        for item in _items(self.text("loadInputs")):
            name, _, path = _named(item)
            found[name] = path
        return found

    def _check(self, version: Version) -> None:
        if not self.has("onnx") and not self.has("loadEngine"):
            raise ArgumentError("Model missing or format not recognized")
        if self.has("saveEngine") and self.has("loadEngine"):
            raise ArgumentError("Incompatible load and save engine options selected")
        verbosity = self.text("profilingVerbosity", _VERBOSITIES[0])
        if verbosity not in _VERBOSITIES:
            raise ArgumentError(f"Unknown profilingVerbosity: {verbosity}")
        for name in _NUMBERS & self.given.keys():
            if not re.fullmatch(r"-?\d+(\.\d+)?", self.given[name]):
                raise ArgumentError(f"Cannot convert argument {name} to a number: stoi")
        if self.has("fp8") and self.has("int8"):
            raise ArgumentError(
                "Invalid usage, fp8 and int8 aren't allowed to be enabled together."
            )
        reports = {"dumpProfile", "exportProfile", "dumpLayerInfo", "exportLayerInfo"}
        if self.has("safe") and reports & self.given.keys():
            raise ArgumentError("Safe mode does not support profiles or layer information.")
        if self.has("remoteAutoTuningConfig") and not self.has("safe"):
            raise ArgumentError(
                "Remote auto tuning is not supported in standard build. Use --safe flag to enable "
                "it."
            )
        if self.has("best") and self.has("stronglyTyped") and version >= (10, 8):
            raise ArgumentError("--best and --stronglyTyped can't be used together.")

    def _shapes(self, name: str) -> Shapes:
        found = {}
        for item in _items(self.text(name)):
            tensor, colon, sizes = _named(item)
            if not colon or not re.fullmatch(r"(scalar|\d+(x\d+)*|)", sizes):
                raise ArgumentError(
                    f"{name} conversion failure: failed to parse minShapes/optShapes/maxShapes. "
                    "Please double check your input string."
                )
            digits = "" if sizes == "scalar" else sizes
            found[tensor] = tuple(int(size) for size in digits.split("x") if size)
        return found


def help_text(version: Version) -> str:
    """About as long as the real one, and with every option."""
    lines = ["=== Model Options ==="]
    for name, takes_value in _known(version).items():
        option = f"--{name}=<value>" if takes_value else f"--{name}"
        lines.append(f"  {option:<44}{'This is the help of a stand-in. ' * 6}")
    return "\n".join(lines)


def _known(version: Version) -> dict[str, bool]:
    found = {}
    for (since, before), names in _FLAGS.items():
        if since <= version < before:
            found.update((name.rstrip("="), name.endswith("=")) for name in names.split())
    return found


def _items(text: str) -> list[str]:
    """Parts between commas that are not inside of quotes."""
    return [item for item in re.findall(r"(?:'[^']*'|[^,'])+", text) if item]


def _named(item: str) -> tuple[str, str, str]:
    quoted = re.fullmatch(r"'([^']*)'(:)(.*)", item)
    if quoted:
        return quoted[1], quoted[2], quoted[3]
    name, colon, rest = item.partition(":")
    return name, colon, rest
