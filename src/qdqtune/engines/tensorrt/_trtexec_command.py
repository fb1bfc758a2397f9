"""The arguments of trtexec for builds and runs, and the command that builds what was measured."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._signature import read_signature
from qdqtune.engines.tensorrt._settings import (
    COMMON,
    STRONG,
    Shape,
    ShapeRange,
    Shapes,
    quoted,
    shapes_text,
)
from qdqtune.engines.tensorrt._trtexec_settings import (
    OWN_OPTIONS,
    TrtexecSettings,
    trtexec_settings,
)
from qdqtune.engines.tensorrt._trtexec_version import (
    FLOAT_FLAGS,
    NOT_WHEN_SAFE,
    PRECISION_FLAGS,
    Version,
    joined,
    name_of,
    require,
    takes,
)
from qdqtune.records._measurement import EngineInfo

Ranges = Mapping[str, ShapeRange]
"""What inputs with open dims may look like, by input."""

_DETAILED = "--profilingVerbosity=detailed"
# Types that Q and DQ convert to, by the option that a weakly typed build needs for them.
_LOW = {
    "--int8": frozenset({"int8", "uint8"}),
    "--fp8": frozenset({"float8_e4m3fn"}),
    "--int4": frozenset({"int4", "uint4"}),
}
_PROFILES = ("--dumpProfile", "--exportProfile")

_PLAN = "model.engine"


def build_arguments(
    usage: TrtexecSettings, low_types: Collection[str], ranges: Ranges
) -> list[str]:
    """What an engine depends on beside the model: all but the names of files.

    Args:
        usage: How.
        low_types: Types that Q and DQ of the model convert to.
        ranges: Of inputs with open dims.

    Raises:
        ValueError: If this version can't do it.
    """
    settings, version = usage.settings, usage.version
    ours = _precision(usage, low_types)
    if settings.level is not None:
        require(version, "--builderOptimizationLevel", "level")
        ours.append(f"--builderOptimizationLevel={settings.level}")
    if settings.workspace_mib is not None:
        pools = takes(version, "--memPoolSize")
        name = "--memPoolSize=workspace:" if pools else "--workspace="
        ours.append(f"{name}{settings.workspace_mib}")
    for name, field in (("min", "least"), ("opt", "usual"), ("max", "most")):
        if ranges:
            shapes = {key: getattr(range_, field) for key, range_ in ranges.items()}
            ours.append(f"--{name}Shapes={shapes_text(shapes)}")
    return joined([*ours, *_everywhere(usage)], usage.given)


def build_command(
    usage: TrtexecSettings, model: str, plan: Path, layers: Path, built_from: Sequence[str]
) -> list[str]:
    """Builds an engine.

    Args:
        usage: How.
        model: The model file.
        plan: Where the engine goes.
        layers: Where a list of its layers goes.
        built_from: As `build_arguments` returns them.
    """
    skip = "--skipInference" if takes(usage.version, "--skipInference") else "--buildOnly"
    ours = [f"--onnx={model}", f"--saveEngine={plan}", skip, *_layer_list(usage, layers)]
    return joined([*ours, *timing_cache_arguments(usage)], built_from)


def timing_cache_arguments(usage: TrtexecSettings) -> list[str]:
    """The file that a build takes what is known of kernels from; trtexec locks and merges it."""
    return [f"--timingCacheFile={usage.timing_cache}"] if usage.timing_cache else []


def load_arguments(usage: TrtexecSettings, plan: Path) -> list[str]:
    """Runs with an engine that was built before."""
    return joined([f"--loadEngine={plan}", *_everywhere(usage)], usage.given_to_run)


def rebuild_arguments(usage: TrtexecSettings, model: str, built_from: Sequence[str]) -> list[str]:
    """Runs with an engine that is built once more, for a program that loads none."""
    return joined([f"--onnx={model}", *timing_cache_arguments(usage)], built_from)


def time_arguments(usage: TrtexecSettings, runs: int, times: Path) -> list[str]:
    """Times runs; the time of each goes to `times`."""
    ours = _runs(runs, usage.warmup_ms)
    ours += [flag for flag in ("--noDataTransfers", "--useSpinWait") if takes(usage.version, flag)]
    ours += _cuda_graph(usage)
    if any(name_of(argument) in _PROFILES for argument in usage.given):
        ours += _separate_profile(usage)  # else there is no summary
    return [*ours, f"--exportTimes={times}"]


def profile_arguments(usage: TrtexecSettings, runs: int, profile: Path, layers: Path) -> list[str]:
    """Times layers into `profile`, and lists them in `layers`."""
    ours = [*_runs(runs, usage.warmup_ms), f"--exportProfile={profile}"]
    return [*ours, *_layer_list(usage, layers), *_separate_profile(usage)]


def output_arguments(outputs: Path) -> list[str]:
    """Runs once; the results go to `outputs`."""
    return [*_runs(1, 0), f"--exportOutput={outputs}"]


def feed_arguments(inputs: Mapping[str, Path], shapes: Shapes) -> list[str]:
    """Runs on inputs from files.

    Args:
        inputs: Files by input.
        shapes: Of inputs with open dims.
    """
    said = [f"--shapes={shapes_text(shapes)}"] if shapes else []
    if inputs:
        files = (f"{quoted(name)}:{path}" for name, path in inputs.items())
        said.append(f"--loadInputs={','.join(files)}")
    return said


def _separate_profile(usage: TrtexecSettings) -> list[str]:
    return ["--separateProfileRun"] if takes(usage.version, "--separateProfileRun") else []


def _precision(usage: TrtexecSettings, low_types: Collection[str]) -> list[str]:
    version, given = usage.version, {name_of(argument) for argument in usage.given}
    if usage.typing == STRONG:
        return ["--stronglyTyped"] if takes(version, "--stronglyTyped") else []
    flags = []
    if not given.intersection(PRECISION_FLAGS) and usage.settings.precision != "fp32":
        flags.append(f"--{usage.settings.precision}")
    if "--best" not in given:
        flags += [flag for flag, types in _LOW.items() if not types.isdisjoint(low_types)]
    if "--fp8" in flags and "--int8" in flags:  # trtexec takes only one of them
        flags.remove("--int8")
    for said, other in (("--int8", "--fp8"), ("--fp8", "--int8")):
        if said in given and other in flags:
            raise ValueError(
                f"args has {said}, but the model needs {other}, and trtexec takes only one of them"
            )
    for flag in flags:
        if flag not in given:
            what = "the precision" if flag in FLOAT_FLAGS else "Q/DQ of the model"
            require(version, flag, what)
    return flags


def _layer_list(usage: TrtexecSettings, layers: Path) -> list[str]:
    wanted = [_DETAILED, f"--exportLayerInfo={layers}"]
    forbidden = NOT_WHEN_SAFE if usage.is_safe else frozenset()
    return [
        argument
        for argument in wanted
        if takes(usage.version, name_of(argument)) and name_of(argument) not in forbidden
    ]


def _everywhere(usage: TrtexecSettings) -> list[str]:
    """What a process needs whether it builds or runs."""
    flag = "--staticPlugins" if takes(usage.version, "--staticPlugins") else "--plugins"
    plugins = [f"{flag}={path}" for path in usage.settings.plugins]
    return plugins + ([f"--device={usage.settings.device}"] if usage.settings.device else [])


def _runs(runs: int, warmup_ms: int) -> list[str]:
    """So many runs, and no more: the number is a floor under the duration in seconds."""
    return [f"--iterations={runs}", "--duration=0", f"--warmUp={warmup_ms}", f"--avgRuns={runs}"]


def _cuda_graph(usage: TrtexecSettings) -> list[str]:
    requested = usage.settings.cuda_graph
    flag = {True: "--useCudaGraph", False: "--noCudaGraph", None: ""}[requested]
    return [flag] if flag and takes(usage.version, flag) else []


def build_line(info: EngineInfo, file: Path, shapes: Mapping[str, Shape], name: str) -> str:
    """A command line of trtexec, with the options that the version needs for this model.

    Args:
        info: What measured it.
        file: The model.
        shapes: Those that it was measured at, by input.
        name: What the file is called in the command.

    Raises:
        ValueError: If the options can't be read.
    """
    known = {key: value for key, value in info.options.items() if key in (*COMMON, *OWN_OPTIONS)}
    usage = trtexec_settings(SessionOptions(engine_options=known), _version(info.version))
    signature = read_signature(file)
    ranges = {
        each: range_
        for each in signature.open_inputs
        if (range_ := usage.settings.shapes.range_of(each, shapes.get(each))) is not None
    }
    arguments = build_arguments(usage, signature.low_types, ranges)
    return shlex.join(["trtexec", f"--onnx={name}", f"--saveEngine={_PLAN}", *arguments])


def _version(text: str) -> Version:
    numbers = [int(part) for part in text.split(".")[:3] if part.isdecimal()]
    if not numbers:
        raise ValueError(f"'{text}' is no version")
    return Version(*numbers)
