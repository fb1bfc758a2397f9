"""Settings of trtexec: options of the engine, and the user's own arguments for the program."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._options import ShapeArguments
from qdqtune.engines.tensorrt._settings import (
    STRONG,
    WEAK,
    Settings,
    ShapeRequest,
    float_type_of,
    parse_shapes,
    settings_of,
)
from qdqtune.engines.tensorrt._trtexec_version import (
    FLOAT_FLAGS,
    PRECISION_FLAGS,
    Version,
    find_program,
    is_removed,
    lacks,
    name_of,
    require,
    takes,
    version_of,
)

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
_LEFT_OUT = {**dict.fromkeys(PRECISION_FLAGS, _TYPES), "--explicitBatch": "it is always so"}
_INSTEAD = {
    "--batch": "say --shapes",
    "--heuristic": "say --builderOptimizationLevel=2",
    "--nvtxMode": "say --profilingVerbosity",
    "--staticPlugins": "say --plugins",
    _POOLS: "say --workspace",
}

OWN_OPTIONS = ("path", "args", "warmup_ms")
"""Beside those that every form of TensorRT has."""
_REMOTE, _SAFE = "--remoteAutoTuningConfig", "--safe"
_NO_TF32 = "--noTF32"
_WARMUP_MS = 200
_FIRST_STRONG = Version(10)


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


@dataclass(frozen=True)
class TrtexecSettings:
    """How trtexec is called.

    Attributes:
        version: The version of its TensorRT.
        settings: How models are opened.
        typing: Whether types are those of the model, or the builder's choice.
        given: Arguments that the user wants to be said.
        warmup_ms: How long runs go on before the timed ones.
        timing_cache: File with what is known of kernels; empty for none.
        notes: What of the user's arguments is said in another way, or not at all, and why.
    """

    version: Version
    settings: Settings
    typing: str
    given: tuple[str, ...] = ()
    warmup_ms: int = _WARMUP_MS
    timing_cache: str = ""
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
        if names.intersection(PRECISION_FLAGS):
            said = [flag for flag in FLOAT_FLAGS if flag in names]
            precision = said[0].removeprefix("--").replace("best", "fp16") if said else ""
        return float_type_of(self.typing, precision, capability, tf32=_NO_TF32 not in names)

    @property
    def given_to_run(self) -> tuple[str, ...]:
        """The user's arguments without those that only a build can obey."""
        return tuple(argument for argument in self.given if name_of(argument) != _REMOTE)


def path_option(options: SessionOptions) -> str:
    """Where the user says that the program is; empty if nowhere."""
    return options.engine_options.get("path", "")


def trtexec_settings(options: SessionOptions, version: Version) -> TrtexecSettings:
    """Reads the options of the engine.

    Raises:
        ValueError: If one can't be, or this version can't do it.
    """
    settings = settings_of(options, OWN_OPTIONS)
    shapes = ShapeArguments.found_in(_split(settings.given.get("args", "")))
    asked = asked_by(shapes.others, version)
    given, notes = asked.arguments, asked.notes
    names = {name_of(argument) for argument in given}
    if _REMOTE in names and _SAFE not in names:
        given += (_SAFE,)
    settings = _with_arguments(settings, asked)
    if settings.workspace_mib is not None and workspace_in(given):
        notes += (f"args has {workspace_in(given)}: workspace_mib is not used",)
        settings = dataclasses.replace(settings, workspace_mib=None)
    elif settings.workspace_mib is not None and "--memPoolSize" in names:
        given = tuple(with_workspace(given, str(settings.workspace_mib)))
    return TrtexecSettings(
        version=version,
        settings=dataclasses.replace(settings, shapes=_with_shapes(settings.shapes, shapes)),
        typing=_typing(version, settings.typing, names),
        given=given,
        warmup_ms=_warmup(settings.given),
        notes=notes,
    )


def notes_on(options: Mapping[str, str]) -> tuple[str, ...]:
    """What a user should know about the engine's options before it runs.

    Raises:
        ValueError: If they can't be read, or the program isn't there.
    """
    asked = SessionOptions(engine_options=options)
    return trtexec_settings(asked, version_of(find_program(path_option(asked)))).notes


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"args can't be read: {error}") from None


def _with_arguments(settings: Settings, asked: Asked) -> Settings:
    """What arguments say goes first, but there is one GPU to measure on."""
    device = settings.device if asked.device is None else asked.device
    if "device" in settings.given and device != settings.device:
        raise ValueError(f"device is '{settings.device}', but args has --device={device}")
    graph = settings.cuda_graph if asked.cuda_graph is None else asked.cuda_graph
    return dataclasses.replace(settings, device=device, cuda_graph=graph)


def _with_shapes(requested: ShapeRequest, said: ShapeArguments) -> ShapeRequest:
    """Shapes are ours to say, because a model without open dims may not be given any."""
    return ShapeRequest(
        {**parse_shapes(",".join(said.least)), **requested.least},
        {**parse_shapes(",".join(said.built_for)), **requested.usual},
        {**parse_shapes(",".join(said.most)), **requested.most},
    )


def _typing(version: Version, requested: str, names: set[str]) -> str:
    if requested == WEAK:
        require(version, "--fp16", "weak typing")
    if requested == STRONG and version < _FIRST_STRONG:
        require(version, "--stronglyTyped", "strong typing")
    said = STRONG if "--stronglyTyped" in names else ""
    if not said and names.intersection(PRECISION_FLAGS) and takes(version, "--fp16"):
        said = WEAK
    if requested and said and requested != said:
        raise ValueError(f"typing is '{requested}', but args ask for {said} typing")
    return requested or said or (STRONG if version >= _FIRST_STRONG else WEAK)


def _warmup(given: Mapping[str, str]) -> int:
    text = given.get("warmup_ms", str(_WARMUP_MS))
    if not text.isdecimal():
        raise ValueError(f"warmup_ms is '{text}'; it is a number of milliseconds")
    return int(text)
