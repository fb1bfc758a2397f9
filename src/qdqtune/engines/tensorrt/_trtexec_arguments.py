"""The arguments of trtexec: those of each version, of the user, and for builds and runs."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._options import ShapeArguments
from qdqtune.engines._signature import read_signature
from qdqtune.engines.tensorrt._settings import (
    COMMON,
    STRONG,
    WEAK,
    Settings,
    Shape,
    ShapeRange,
    ShapeRequest,
    Shapes,
    float_type_of,
    parse_shapes,
    quoted,
    settings_of,
    shapes_text,
)
from qdqtune.engines.tensorrt._trtexec_program import (
    NOT_WHEN_SAFE,
    PROGRAM,
    Version,
    find_program,
    name_of,
    version_of,
)
from qdqtune.records._measurement import EngineInfo

Ranges = Mapping[str, ShapeRange]
"""What inputs with open dims may look like, by input."""

PLUGIN_FLAGS = frozenset(
    {"--staticPlugins", "--plugins", "--dynamicPlugins", "--setPluginsToSerialize"}
)
"""Options that name a library each; they may be said more than once."""
_FLOAT_FLAGS = ("--fp16", "--bf16", "--best")
# What a builder may choose from in a weakly typed network.
_PRECISION_FLAGS = (*_FLOAT_FLAGS, "--int8", "--fp8", "--int4")
# Types that Q and DQ convert to, by the option that a weakly typed build needs for them.
_LOW = {
    "--int8": frozenset({"int8", "uint8"}),
    "--fp8": frozenset({"float8_e4m3fn"}),
    "--int4": frozenset({"int4", "uint4"}),
}
_PROFILES = frozenset({"--dumpProfile", "--exportProfile"})
_PLAN = "model.engine"

_ALWAYS, _NEVER = Version(0), Version(1 << 30)
_V8_2, _V8_4, _V8_6, _V9 = Version(8, 2), Version(8, 4), Version(8, 6), Version(9)
_V10, _V10_1, _V11 = Version(10), Version(10, 1), Version(11)

# From which version on, and before which, options are what one says; from which on they are errors.
# In between, another option says the same, or it means nothing.
_LIVES = {
    flag: (since, before, removed)
    for since, before, removed, flags in (
        (_ALWAYS, _V8_4, _V10, "--workspace"),
        (_ALWAYS, _V8_6, _V8_6, "--buildOnly"),
        (_ALWAYS, _V8_6, _NEVER, "--plugins"),
        (_ALWAYS, _V10, _V10, "--explicitBatch --batch --nvtxMode --heuristic --minTiming"),
        (_ALWAYS, _V11, _V11, "--fp16 --int8 --best"),
        (_ALWAYS, _V11, _NEVER, "--useCudaGraph --noDataTransfers --useSpinWait"),
        (_ALWAYS, _V11, _NEVER, "--separateProfileRun"),
        (_V8_6, _V11, _V11, "--fp8"),
        (_V9, _V11, _V11, "--bf16"),
        (_V9, _V11, _NEVER, "--stronglyTyped"),
        (_V10_1, _V11, _V11, "--int4"),
        (_V8_2, _NEVER, _NEVER, "--exportLayerInfo --dumpLayerInfo --profilingVerbosity"),
        (_V8_4, _NEVER, _NEVER, "--memPoolSize"),
        (_V8_6, _NEVER, _NEVER, "--skipInference --builderOptimizationLevel"),
        (_V8_6, _NEVER, _NEVER, "--staticPlugins --dynamicPlugins --setPluginsToSerialize"),
        (Version(10, 4), _NEVER, _NEVER, "--maxTactics"),
        (Version(10, 8), _NEVER, _NEVER, "--tilingOptimizationLevel"),
        (Version(10, 13), _NEVER, _NEVER, "--remoteAutoTuningConfig"),
        (Version(10, 15), _NEVER, _NEVER, "--cpuOnly"),
        (_V11, _NEVER, _NEVER, "--noCudaGraph --includeDataTransfers --noSpinWait"),
        (Version(11, 1), _NEVER, _NEVER, "--tuneBuildRoutes --setBuildRoute"),
    )
    for flag in flags.split()
}
_IN_ALL = (_ALWAYS, _NEVER, _NEVER)

_OURS = frozenset(
    {
        "--buildOnly", "--exportLayerInfo", "--exportOutput", "--exportProfile", "--exportTimes",
        "--help", "--loadEngine", "--loadInputs", "--onnx", "--saveEngine", "--skipInference", "-h",
    }
)  # fmt: skip
_DEVICE, _WORKSPACE, _POOLS = "--device", "--workspace", "--memPoolSize"
_CUDA_GRAPH = {"--useCudaGraph": True, "--noCudaGraph": False}
_TYPES = "types are those of the model (qdqtune tune converts it: --precision)"
# What a version that removed an option does anyway, or has other means for.
_LEFT_OUT = {**dict.fromkeys(_PRECISION_FLAGS, _TYPES), "--explicitBatch": "it is always so"}
_INSTEAD = {
    "--batch": "say --shapes",
    "--heuristic": "say --builderOptimizationLevel=2",
    "--nvtxMode": "say --profilingVerbosity",
    "--staticPlugins": "say --plugins",
    _POOLS: "say --workspace",
}

_OWN_OPTIONS = ("path", "args", "warmup_ms")
_REMOTE, _SAFE, _NO_TF32 = "--remoteAutoTuningConfig", "--safe", "--noTF32"
_WARMUP_MS = 200


def takes(version: Version, flag: str) -> bool:
    """Whether an option is the one to say in a version; one that isn't listed is in all."""
    since, before, _ = _LIVES.get(flag, _IN_ALL)
    return since <= version < before


def _lacks(version: Version, flag: str) -> str:
    """Why an option is an error in a version: since or until when there is one; empty if not."""
    since, _, removed = _LIVES.get(flag, _IN_ALL)
    if version < since:
        return f"it came with {since.major}.{since.minor}"
    return f"{removed.major}.{removed.minor} removed it" if version >= removed else ""


def require(version: Version, flag: str, purpose: str) -> None:
    """Make sure that there is an option.

    Raises:
        ValueError: If there isn't; it says since or until when there is.
    """
    why = _lacks(version, flag)
    if why:
        raise ValueError(f"trtexec {version} has no {flag}, which {purpose} needs: {why}")


def joined(ours: Iterable[str], given: Sequence[str]) -> list[str]:
    """Our arguments and the user's; what the user says isn't said twice, which is an error."""
    said = {name_of(argument) for argument in given} - PLUGIN_FLAGS
    return [argument for argument in ours if name_of(argument) not in said] + list(given)


@dataclass(frozen=True)
class TrtexecSettings:
    """How trtexec is called.

    Attributes:
        version: The version of its TensorRT.
        settings: How models are opened.
        typing: Whether types are those of the model, or the builder's choice.
        given: Arguments that the user wants to be said.
        warmup_ms: How long runs go on before the timed ones.
        notes: What of the user's arguments is said in another way, or not at all, and why.
    """

    version: Version
    settings: Settings
    typing: str
    given: tuple[str, ...] = ()
    warmup_ms: int = _WARMUP_MS
    notes: tuple[str, ...] = ()

    @property
    def is_safe(self) -> bool:
        """Whether engines are built for the safety runtime, which tells nothing of layers."""
        return _SAFE in self.given

    @property
    def info_options(self) -> Mapping[str, str]:
        """What a record says about it."""
        return {**self.settings.given, "typing": self.typing}

    def float_type(self, capability: str) -> str:
        """What float32 is computed in on a GPU; empty if unknown."""
        names = set(map(name_of, self.given))
        precision = self.settings.precision
        if names.intersection(_PRECISION_FLAGS):
            said = [flag for flag in _FLOAT_FLAGS if flag in names]
            precision = said[0].removeprefix("--").replace("best", "fp16") if said else ""
        return float_type_of(self.typing, precision, capability, tf32=_NO_TF32 not in names)

    def known(self, *arguments: str) -> list[str]:
        """Those of our arguments that there are in this version, and that `--safe` allows."""
        forbidden = NOT_WHEN_SAFE if self.is_safe else frozenset()
        names = zip(arguments, map(name_of, arguments), strict=True)
        return [each for each, n in names if takes(self.version, n) and n not in forbidden]


def path_option(options: SessionOptions) -> str:
    """Where the user says that the program is; empty if nowhere."""
    return options.engine_options.get("path", "")


def notes_on(options: Mapping[str, str]) -> tuple[str, ...]:
    """What a user should know about the engine's options before it runs.

    Raises:
        ValueError: If they can't be read, or the program isn't there.
    """
    asked = SessionOptions(engine_options=options)
    return trtexec_settings(asked, version_of(find_program(path_option(asked)))).notes


def trtexec_settings(options: SessionOptions, version: Version) -> TrtexecSettings:
    """Reads the options of the engine, with the user's own arguments for the program.

    Raises:
        ValueError: If one can't be read, is ours to say, contradicts another one, or means
            something that this version can't do.
    """
    settings = settings_of(options, _OWN_OPTIONS)
    try:
        words = ShapeArguments.found_in(shlex.split(settings.given.get("args", "")))
    except ValueError as error:
        raise ValueError(f"args can't be read: {error}") from None
    given, notes = _translated(words.others, version)
    names = {name_of(argument) for argument in given}
    if _REMOTE in names and _SAFE not in names:
        given.append(_SAFE)
    limit_mib = settings.workspace_mib
    if limit_mib is not None and _workspace_in(given):
        notes.append(f"args has {_workspace_in(given)}: workspace_mib is not used")
        limit_mib = None
    elif limit_mib is not None and _POOLS in names:
        given = _with_workspace(given, str(limit_mib))
    warmup_ms = settings.given.get("warmup_ms", str(_WARMUP_MS))
    if not warmup_ms.isdecimal():
        raise ValueError(f"warmup_ms is '{warmup_ms}'; it is a number of milliseconds")
    return TrtexecSettings(
        version=version,
        settings=replace(
            settings,
            workspace_mib=limit_mib,
            device=_device(settings, words.others),
            cuda_graph=_cuda_graph(settings, words.others),
            shapes=_with_shapes(settings.shapes, words),
        ),
        typing=_typing(version, settings.typing, names),
        given=tuple(given),
        warmup_ms=int(warmup_ms),
        notes=tuple(notes),
    )


def _translated(words: Sequence[str], version: Version) -> tuple[list[str], list[str]]:
    """The user's arguments as this version takes them, and notes on those that had to change."""
    kept, notes, workspace = [], [], ""
    for word in words:
        name, _, value = word.partition("=")
        why = _lacks(version, name)
        if name in _OURS:
            raise ValueError(f"args has {name}, which qdqtune says to trtexec itself: leave it out")
        if name == _DEVICE or name in _CUDA_GRAPH:
            continue
        if not why:
            kept.append(word)
        elif name == _WORKSPACE:
            workspace = value
            notes.append(f"trtexec {version} has no {name}: {_POOLS}=workspace:{value} is said")
        elif name in _LEFT_OUT and version >= _LIVES[name][2]:
            notes.append(f"trtexec {version} has no {name}, it is left out: {_LEFT_OUT[name]}")
        else:
            instead = _INSTEAD.get(name, "leave it out")
            raise ValueError(
                f"args has {name}, which trtexec {version} doesn't know: {why}; {instead}"
            )
    if {"--int8", "--fp8"} <= set(map(name_of, kept)):
        raise ValueError("args has --int8 and --fp8, but trtexec takes only one of them")
    return _with_workspace(kept, workspace) if workspace else kept, notes


def _workspace_in(arguments: Sequence[str]) -> str:
    """The argument that limits the memory for kernels; empty if there is none."""
    for argument in arguments:
        name, _, value = argument.partition("=")
        pools = [pool.partition(":")[0] for pool in value.split(",")]
        if name == _WORKSPACE or (name == _POOLS and "workspace" in pools):
            return argument
    return ""


def _with_workspace(arguments: Sequence[str], size: str) -> list[str]:
    """Arguments with a limit for that memory, in the option that other pools have theirs in."""
    if said := _workspace_in(arguments):
        raise ValueError(f"args has {said}, and {size} for the workspace, too: leave one out")
    pools = [each for each in arguments if name_of(each) == _POOLS] or [f"{_POOLS}="]
    limit = f"{pools[0]}{'' if pools[0].endswith('=') else ','}workspace:{size}"
    return [*(each for each in arguments if name_of(each) != _POOLS), limit]


def _device(settings: Settings, words: Sequence[str]) -> int:
    """The GPU to measure on; there is one, whoever names it."""
    said = [word.partition("=")[2] for word in words if name_of(word) == _DEVICE]
    if any(not number.isdecimal() for number in said):
        raise ValueError(f"args has {_DEVICE}={said[0]}; it is the number of a GPU")
    device = int(said[-1]) if said else settings.device
    if "device" in settings.given and device != settings.device:
        raise ValueError(f"device is '{settings.device}', but args has --device={device}")
    return device


def _cuda_graph(settings: Settings, words: Sequence[str]) -> bool | None:
    """Whether timed runs are launched as a CUDA graph; what arguments say goes first."""
    said = {_CUDA_GRAPH[name] for name in map(name_of, words) if name in _CUDA_GRAPH}
    if len(said) > 1:
        raise ValueError(f"args has {' and '.join(_CUDA_GRAPH)}: leave one out")
    return said.pop() if said else settings.cuda_graph


def _with_shapes(requested: ShapeRequest, said: ShapeArguments) -> ShapeRequest:
    """Shapes are ours to say, because a model without open dims may not be given any."""
    return ShapeRequest(
        {**parse_shapes(",".join(said.least)), **requested.least},
        {**parse_shapes(",".join(said.built_for)), **requested.usual},
        {**parse_shapes(",".join(said.most)), **requested.most},
    )


def _typing(version: Version, requested: str, names: set[str]) -> str:
    usual = STRONG if version >= _V10 else WEAK
    if requested == WEAK:
        require(version, "--fp16", "weak typing")
    if requested == STRONG and usual == WEAK:
        require(version, "--stronglyTyped", "strong typing")
    said = STRONG if "--stronglyTyped" in names else ""
    if not said and names.intersection(_PRECISION_FLAGS) and takes(version, "--fp16"):
        said = WEAK
    if requested and said and requested != said:
        raise ValueError(f"typing is '{requested}', but args ask for {said} typing")
    return requested or said or usual


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
    settings = usage.settings
    ours = _precision(usage, low_types)
    if settings.level is not None:
        require(usage.version, "--builderOptimizationLevel", "level")
        ours.append(f"--builderOptimizationLevel={settings.level}")
    if (size := settings.workspace_mib) is not None:
        ours += usage.known(f"{_POOLS}=workspace:{size}", f"{_WORKSPACE}={size}")
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
    skip = usage.known("--skipInference", "--buildOnly")
    ours = [f"--onnx={model}", f"--saveEngine={plan}", *skip, *_layer_list(usage, layers)]
    return joined([*ours, *timing_cache_arguments(usage)], built_from)


def timing_cache_arguments(usage: TrtexecSettings) -> list[str]:
    """The file that a build takes what is known of kernels from; trtexec locks and merges it."""
    file = usage.settings.timing_cache
    return [f"--timingCacheFile={file}"] if file else []


def load_arguments(usage: TrtexecSettings, plan: Path) -> list[str]:
    """Runs with an engine that was built before; only a build can be done remotely."""
    given = [argument for argument in usage.given if name_of(argument) != _REMOTE]
    return joined([f"--loadEngine={plan}", *_everywhere(usage)], given)


def rebuild_arguments(usage: TrtexecSettings, model: str, built_from: Sequence[str]) -> list[str]:
    """Runs with an engine that is built once more, for a program that loads none."""
    return joined([f"--onnx={model}", *timing_cache_arguments(usage)], built_from)


def time_arguments(usage: TrtexecSettings, runs: int, times: Path) -> list[str]:
    """Times runs; the time of each goes to `times`."""
    graph = [flag for flag, on in _CUDA_GRAPH.items() if on is usage.settings.cuda_graph]
    ours = usage.known("--noDataTransfers", "--useSpinWait", *graph)
    if not _PROFILES.isdisjoint(map(name_of, usage.given)):
        ours += usage.known("--separateProfileRun")  # else there is no summary
    return [*_runs(runs, usage.warmup_ms), *ours, f"--exportTimes={times}"]


def profile_arguments(usage: TrtexecSettings, runs: int, profile: Path, layers: Path) -> list[str]:
    """Times layers into `profile`, and lists them in `layers`."""
    ours = [*_runs(runs, usage.warmup_ms), f"--exportProfile={profile}"]
    return [*ours, *_layer_list(usage, layers), *usage.known("--separateProfileRun")]


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


def _precision(usage: TrtexecSettings, low_types: Collection[str]) -> list[str]:
    given = {name_of(argument) for argument in usage.given}
    if usage.typing == STRONG:
        return usage.known("--stronglyTyped")
    flags = []
    if not given.intersection(_PRECISION_FLAGS) and usage.settings.precision != "fp32":
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
            what = "the precision" if flag in _FLOAT_FLAGS else "Q/DQ of the model"
            require(usage.version, flag, what)
    return flags


def _layer_list(usage: TrtexecSettings, layers: Path) -> list[str]:
    return usage.known("--profilingVerbosity=detailed", f"--exportLayerInfo={layers}")


def _everywhere(usage: TrtexecSettings) -> list[str]:
    """What a process needs whether it builds or runs."""
    flags = usage.known("--staticPlugins", "--plugins")
    plugins = [f"{flag}={path}" for path in usage.settings.plugins for flag in flags]
    return plugins + ([f"--device={usage.settings.device}"] if usage.settings.device else [])


def _runs(runs: int, warmup_ms: int) -> list[str]:
    """So many runs, and no more: the number is a floor under the duration in seconds."""
    return [f"--iterations={runs}", "--duration=0", f"--warmUp={warmup_ms}", f"--avgRuns={runs}"]


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
    known = {key: value for key, value in info.options.items() if key in (*COMMON, *_OWN_OPTIONS)}
    numbers = [int(part) for part in info.version.split(".")[:3] if part.isdecimal()]
    if not numbers:
        raise ValueError(f"'{info.version}' is not a version")
    usage = trtexec_settings(SessionOptions(engine_options=known), Version(*numbers))
    signature = read_signature(file)
    ranges = {
        each: range_
        for each in signature.open_inputs
        if (range_ := usage.settings.shapes.range_of(each, shapes.get(each))) is not None
    }
    arguments = build_arguments(usage, signature.low_types, ranges)
    return shlex.join([PROGRAM, f"--onnx={name}", f"--saveEngine={_PLAN}", *arguments])
