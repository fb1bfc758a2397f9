"""The command that builds a model as it was measured."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.tensorrt.settings import COMMON
from qdqtune.engines.tensorrt.shapes import Shape
from qdqtune.engines.tensorrt.signature import read_signature
from qdqtune.engines.trtexec.command import build_arguments
from qdqtune.engines.trtexec.settings import OWN_OPTIONS, trtexec_settings
from qdqtune.engines.trtexec.version import Version
from qdqtune.records.measurement import EngineInfo

_PLAN = "model.engine"


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
