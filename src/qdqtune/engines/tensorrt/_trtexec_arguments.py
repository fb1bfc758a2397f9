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
"""Ranges of shapes, by input with open dims."""

PLUGIN_FLAGS = frozenset(
    {"--staticPlugins", "--plugins", "--dynamicPlugins", "--setPluginsToSerialize"}
)
"""Options that name one library each, and may be repeated."""
_FLOAT_FLAGS = ("--fp16", "--bf16", "--best")
# Types that the builder may choose from in a weakly typed network.
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

# The versions of options: the first that has it, the first where it is no longer preferred, and the
# first that rejects it. In between, another option replaces it, or it has no effect.
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
# Options that later versions removed because their behaviour is the default, or set otherwise.
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
    """Whether an option is the preferred one in a version; an unlisted option is in all."""
    since, before, _ = _LIVES.get(flag, _IN_ALL)
    return since <= version < before


def _lacks(version: Version, flag: str) -> str:
    """Return why a version rejects an option: since or until when it exists; empty if accepted."""
    since, _, removed = _LIVES.get(flag, _IN_ALL)
    if version < since:
        return f"it came with {since.major}.{since.minor}"
    return f"{removed.major}.{removed.minor} removed it" if version >= removed else ""


def require(version: Version, flag: str, purpose: str) -> None:
    """Make sure that a version has an option.

    Raises:
        ValueError: If it doesn't; the message says since or until when it exists.
    """
    why = _lacks(version, flag)
    if why:
        raise ValueError(f"trtexec {version} has no {flag}, which {purpose} needs: {why}")


def joined(ours: Iterable[str], given: Sequence[str]) -> list[str]:
    """Join our arguments and the user's; the user's replace ours, since repetition is an error."""
    said = {name_of(argument) for argument in given} - PLUGIN_FLAGS
    return [argument for argument in ours if name_of(argument) not in said] + list(given)


@dataclass(frozen=True)
class TrtexecSettings:
    """How trtexec is called.

    Attributes:
        version: The version of its TensorRT.
        settings: How models are opened.
        typing: Whether types come from the model, or are chosen by the builder.
        given: The user's arguments.
        warmup_ms: Duration of the runs before the timed ones.
        notes: Which of the user's arguments were replaced or left out, and why.
    """

    version: Version
    settings: Settings
    typing: str
    given: tuple[str, ...] = ()
    warmup_ms: int = _WARMUP_MS
    notes: tuple[str, ...] = ()

    @property
    def is_safe(self) -> bool:
        """Whether engines are built for the safety runtime, which reports no layers."""
        return _SAFE in self.given

    @property
    def info_options(self) -> Mapping[str, str]:
        """The options for a record."""
        return {**self.settings.given, "typing": self.typing}

    def float_type(self, capability: str) -> str:
        """Return the type that float32 is computed in on a GPU; empty if unknown."""
        names = set(map(name_of, self.given))
        precision = self.settings.precision
        if names.intersection(_PRECISION_FLAGS):
            said = [flag for flag in _FLOAT_FLAGS if flag in names]
            precision = said[0].removeprefix("--").replace("best", "fp16") if said else ""
        return float_type_of(self.typing, precision, capability, tf32=_NO_TF32 not in names)

    def known(self, *arguments: str) -> list[str]:
        """Return those of our arguments that this version has and that `--safe` allows."""
        forbidden = NOT_WHEN_SAFE if self.is_safe else frozenset()
        names = zip(arguments, map(name_of, arguments), strict=True)
        return [each for each, n in names if takes(self.version, n) and n not in forbidden]


def path_option(options: SessionOptions) -> str:
    """Return the user's path of the program; empty if not set."""
    return options.engine_options.get("path", "")


def notes_on(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return what a user should know about the engine's options before it runs.

    Raises:
        ValueError: If they can't be parsed, or the program is missing.
    """
    asked = SessionOptions(engine_options=options)
    return trtexec_settings(asked, version_of(find_program(path_option(asked)))).notes


def trtexec_settings(options: SessionOptions, version: Version) -> TrtexecSettings:
    """Parses the options of the engine, with the user's own arguments for the program.

    Raises:
        ValueError: If one can't be parsed, is reserved for us, contradicts another, or requests
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
    """Return the user's arguments in this version's form, and notes on those that had to change."""
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
    """Return the argument that limits the memory for kernels; empty if there is none."""
    for argument in arguments:
        name, _, value = argument.partition("=")
        pools = [pool.partition(":")[0] for pool in value.split(",")]
        if name == _WORKSPACE or (name == _POOLS and "workspace" in pools):
            return argument
    return ""


def _with_workspace(arguments: Sequence[str], size: str) -> list[str]:
    """Return arguments with a limit for that memory, in the option that also limits other pools."""
    if said := _workspace_in(arguments):
        raise ValueError(f"args has {said}, and {size} for the workspace, too: leave one out")
    pools = [each for each in arguments if name_of(each) == _POOLS] or [f"{_POOLS}="]
    limit = f"{pools[0]}{'' if pools[0].endswith('=') else ','}workspace:{size}"
    return [*(each for each in arguments if name_of(each) != _POOLS), limit]


def _device(settings: Settings, words: Sequence[str]) -> int:
    """Return the GPU to measure on, from the option or the arguments; they must agree."""
    said = [word.partition("=")[2] for word in words if name_of(word) == _DEVICE]
    if any(not number.isdecimal() for number in said):
        raise ValueError(f"args has {_DEVICE}={said[0]}; it is the number of a GPU")
    device = int(said[-1]) if said else settings.device
    if "device" in settings.given and device != settings.device:
        raise ValueError(f"device is '{settings.device}', but args has --device={device}")
    return device


def _cuda_graph(settings: Settings, words: Sequence[str]) -> bool | None:
    """Whether timed runs are launched as a CUDA graph; arguments take precedence."""
    said = {_CUDA_GRAPH[name] for name in map(name_of, words) if name in _CUDA_GRAPH}
    if len(said) > 1:
        raise ValueError(f"args has {' and '.join(_CUDA_GRAPH)}: leave one out")
    return said.pop() if said else settings.cuda_graph


def _with_shapes(requested: ShapeRequest, said: ShapeArguments) -> ShapeRequest:
    """Merge shapes from arguments: we pass them, since a model without open dims takes none."""
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
    """Return everything that an engine depends on besides the model, except for file names.

    Args:
        usage: How trtexec is called.
        low_types: Types that Q and DQ of the model convert to.
        ranges: Shape ranges of inputs with open dims.

    Raises:
        ValueError: If this version lacks an option.
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
    """Return the arguments that build an engine.

    Args:
        usage: How trtexec is called.
        model: The model file.
        plan: Where to write the engine.
        layers: Where to write the list of its layers.
        built_from: The result of `build_arguments`.
    """
    skip = usage.known("--skipInference", "--buildOnly")
    ours = [f"--onnx={model}", f"--saveEngine={plan}", *skip, *_layer_list(usage, layers)]
    return joined([*ours, *timing_cache_arguments(usage)], built_from)


def timing_cache_arguments(usage: TrtexecSettings) -> list[str]:
    """Return the arguments for the timing cache of a build; trtexec locks and merges the file."""
    file = usage.settings.timing_cache
    return [f"--timingCacheFile={file}"] if file else []


def load_arguments(usage: TrtexecSettings, plan: Path) -> list[str]:
    """Return the arguments that load an engine; only builds can be done remotely."""
    given = [argument for argument in usage.given if name_of(argument) != _REMOTE]
    return joined([f"--loadEngine={plan}", *_everywhere(usage)], given)


def rebuild_arguments(usage: TrtexecSettings, model: str, built_from: Sequence[str]) -> list[str]:
    """Return the arguments that build an engine again, for a program that can't load one."""
    return joined([f"--onnx={model}", *timing_cache_arguments(usage)], built_from)


def time_arguments(usage: TrtexecSettings, runs: int, times: Path) -> list[str]:
    """Return the arguments that time runs; the time of each goes to `times`."""
    graph = [flag for flag, on in _CUDA_GRAPH.items() if on is usage.settings.cuda_graph]
    ours = usage.known("--noDataTransfers", "--useSpinWait", *graph)
    if not _PROFILES.isdisjoint(map(name_of, usage.given)):
        ours += usage.known("--separateProfileRun")  # otherwise there is no summary
    return [*_runs(runs, usage.warmup_ms), *ours, f"--exportTimes={times}"]


def profile_arguments(usage: TrtexecSettings, runs: int, profile: Path, layers: Path) -> list[str]:
    """Return the arguments that time layers into `profile`, and list them in `layers`."""
    ours = [*_runs(runs, usage.warmup_ms), f"--exportProfile={profile}"]
    return [*ours, *_layer_list(usage, layers), *usage.known("--separateProfileRun")]


def output_arguments(outputs: Path) -> list[str]:
    """Return the arguments that write the results of a run to `outputs`."""
    return [*_runs(1, 0), f"--exportOutput={outputs}"]


def feed_arguments(inputs: Mapping[str, Path], shapes: Shapes) -> list[str]:
    """Return the arguments that read inputs from files.

    Args:
        inputs: Files by input.
        shapes: Shapes of inputs with open dims.
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
    if "--fp8" in flags and "--int8" in flags:  # trtexec accepts only one of them
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
    """Return arguments that both builds and runs need."""
    flags = usage.known("--staticPlugins", "--plugins")
    plugins = [f"{flag}={path}" for path in usage.settings.plugins for flag in flags]
    return plugins + ([f"--device={usage.settings.device}"] if usage.settings.device else [])


def _runs(runs: int, warmup_ms: int) -> list[str]:
    """Return arguments for exactly this many runs: the count is a minimum, the duration is zero."""
    return [f"--iterations={runs}", "--duration=0", f"--warmUp={warmup_ms}", f"--avgRuns={runs}"]


def build_line(info: EngineInfo, file: Path, shapes: Mapping[str, Shape], name: str) -> str:
    """Return a trtexec command, with the options that the version needs for this model.

    Args:
        info: The engine that measured it.
        file: The model.
        shapes: The shapes at which it was measured, by input.
        name: Name of the file in the command.

    Raises:
        ValueError: If the options can't be parsed.
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
