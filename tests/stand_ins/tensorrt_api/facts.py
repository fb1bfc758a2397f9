"""Prints what the stand-in does in the version that it is told, as JSON, for tests of it.

Run as `python -m tests.stand_ins.tensorrt_api.facts FOLDER`; the folder has the models `open.onnx`
(with an open dim), `int8.onnx` (Q/DQ) and `window.onnx` (a Conv that leaves its window out).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.stand_ins.tensorrt_api import building, contexts, enums, network, running, tensorrt

_CLASSES = {
    "Builder": building.Builder,
    "IBuilderConfig": building.BuilderConfig,
    "IOptimizationProfile": building.OptimizationProfile,
    "INetworkDefinition": network.NetworkDefinition,
    "ITensor": network.Tensor,
    "OnnxParser": network.OnnxParser,
    "ParserError": network.ParserError,
    "Runtime": running.Runtime,
    "ICudaEngine": running.CudaEngine,
    "IExecutionContext": contexts.ExecutionContext,
    "EngineInspector": running.EngineInspector,
}
_ENUMS = (
    "BuilderFlag", "NetworkDefinitionCreationFlag", "DataType", "TacticSource", "TensorIOMode",
    "ProfilingVerbosity", "LayerInformationFormat", "MemoryPoolType",
)  # fmt: skip


class _Log(tensorrt.ILogger):
    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def log(self, severity: Any, text: str) -> None:
        if severity <= tensorrt.ILogger.ERROR:
            self.errors.append(text)


def _members(kind: type) -> list[str]:
    ours = ("has", "fits")  # for the stand-in alone
    return [n for n in dir(kind) if not n.startswith(("_", "stand_in")) and n not in ours]


def _outcome(path: Path, flags: int, *precisions: str, shape: tuple[int, ...] = ()) -> str:
    """What comes of a model: `built`, or the last error."""
    log = _Log()
    builder = tensorrt.Builder(log)
    made = builder.create_network(flags)
    if made is None:
        return log.errors[-1]
    if not tensorrt.OnnxParser(made, log).parse_from_file(str(path)):
        return log.errors[-1]
    config = builder.create_builder_config()
    for name in precisions:
        config.set_flag(tensorrt.BuilderFlag[name])
    if shape:
        profile = builder.create_optimization_profile()
        profile.set_shape("x", shape, shape, shape)
        config.add_optimization_profile(profile)
    return "built" if builder.build_serialized_network(made, config) else log.errors[-1]


def _flags(*names: str) -> int:
    known = tensorrt.NetworkDefinitionCreationFlag.__members__
    return sum(1 << int(known[name]) for name in names if name in known)


def main(folder: Path) -> None:
    """Prints them."""
    usual, strong = _flags("EXPLICIT_BATCH"), _flags("EXPLICIT_BATCH", "STRONGLY_TYPED")
    low = [name for name in ("INT8",) if name in tensorrt.BuilderFlag.__members__]
    facts = {
        "members": {name: _members(kind) for name, kind in _CLASSES.items()},
        "enums": {
            name: {key: int(value) for key, value in getattr(enums, name).__members__.items()}
            for name in _ENUMS
        },
        "no flags": _outcome(folder / "open.onnx", 0, shape=(2, 8)),
        "unknown flags": _outcome(folder / "open.onnx", 1 << 9),
        "no profile": _outcome(folder / "open.onnx", usual),
        "profile": _outcome(folder / "open.onnx", usual, shape=(2, 8)),
        "wrong profile": _outcome(folder / "open.onnx", usual, shape=(2, 9)),
        "int8": _outcome(folder / "int8.onnx", usual, *low),
        "int8 without its flag": _outcome(folder / "int8.onnx", usual),
        "strong int8": _outcome(folder / "int8.onnx", strong),
        "strong with a flag": _outcome(folder / "int8.onnx", strong, *low),
        "no window": _outcome(folder / "window.onnx", strong, *low if strong == usual else ()),
    }
    sys.stdout.write(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
