"""How trtexec is to be used: options of the engine, and what the user says to trtexec itself."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.shape_arguments import ShapeArguments
from qdqtune.engines.tensorrt.settings import (
    STRONG,
    WEAK,
    Settings,
    float_type_of,
    settings_of,
)
from qdqtune.engines.tensorrt.shapes import ShapeRequest, parse_shapes
from qdqtune.engines.trtexec.arguments import Asked, asked_by, with_workspace, workspace_in
from qdqtune.engines.trtexec.flags import FLOAT_FLAGS, PRECISION_FLAGS, name_of, require, takes
from qdqtune.engines.trtexec.version import Version, find_program, version_of

OWN_OPTIONS = ("path", "args", "warmup_ms")
"""Beside those that every form of TensorRT has."""

_REMOTE, _SAFE = "--remoteAutoTuningConfig", "--safe"
_NO_TF32 = "--noTF32"
_WARMUP_MS = 200
_FIRST_STRONG = Version(10)


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
