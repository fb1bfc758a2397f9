"""What TensorRT-RTX accepts: it builds engines without a GPU, and says what each kernel reads.

It never runs one here, so nothing in this module measures anything. Whether a model parses, builds
and gets low-precision kernels is known all the same; that needs no GPU.

`build` calls a native library in this process. `build_in_child` does it in another one, where a
crash or a hang is an error like any other. By hand:
`python -m benchmarks.rtx_builds MODEL.onnx`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from qdqtune.engines.layers._tensorrt_layers import Layer, operand_types, parse_layers
from qdqtune.engines.tensorrt._builder import (
    BuildError,
    Library,
    ModelToBuild,
    ParseError,
    PlanBuilder,
    ShapesMissing,
    check_capability,
)
from qdqtune.engines.tensorrt._settings import Settings, ShapeRange
from qdqtune.engines.tensorrt._signature import read_signature
from qdqtune.records._errors import EngineError, QdqtuneError, UsageError

DEFAULT_CAPABILITY = "sm89"
"""Ada: the oldest GPUs with float8."""

_INSTALL = "Install it: pip install 'qdqtune[tensorrt-rtx]' (Linux on x86-64)."


@dataclass(frozen=True)
class BuildReport:
    """What came of a build.

    Attributes:
        parsed: Whether the ONNX parser took the model.
        ok: Whether an engine was built.
        error: Why not; empty if it was.
        layers: The engine's kernels in order of execution.
        engine_bytes: Size of the engine.
        compute_capability: What it was built for.
        version: TensorRT-RTX's version.
    """

    parsed: bool = False
    ok: bool = False
    error: str = ""
    layers: tuple[Layer, ...] = ()
    engine_bytes: int = 0
    compute_capability: str = DEFAULT_CAPABILITY
    version: str = ""

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> BuildReport:
        """Reads what `dataclasses.asdict` wrote."""
        return cls(**{**body, "layers": tuple(map(Layer.from_dict, body["layers"]))})


def build(
    path: str | os.PathLike[str],
    *,
    compute_capability: str = DEFAULT_CAPABILITY,
) -> BuildReport:
    """Builds an engine for a model, in this process, and throws it away.

    Open dims are taken as 1. A model that can't be parsed or built is a report, not an exception.

    Args:
        path: The model file.
        compute_capability: The kind of GPU to build for, such as `sm89`.

    Raises:
        EngineError: If TensorRT-RTX is not installed.
        UsageError: If it can't build for such a GPU.
    """
    library = _import_tensorrt_rtx()
    report = BuildReport(compute_capability=compute_capability.lower(), version=library.version)
    try:
        check_capability(library.api, compute_capability)
    except ValueError as error:
        raise UsageError(
            f"TensorRT-RTX {library.version} doesn't build for {compute_capability!r}.", f"{error}."
        ) from None
    try:
        signature = read_signature(path)
        ones = {name: _smallest(dims) for name, dims in signature.dims.items() if None in dims}
        model = ModelToBuild(os.fspath(path), signature.low_types, ones, {})
        builder = PlanBuilder(library, Settings(compute_capability=compute_capability))
        plan = builder.build(model)
        layers = parse_layers(plan.layer_list)
    except (ParseError, OSError) as error:
        return _failed(report, [str(error)])
    except (BuildError, ShapesMissing, ValueError) as error:
        return _failed(replace(report, parsed=True), [str(error)])
    size = len(plan.content)
    return replace(report, parsed=True, ok=True, layers=layers, engine_bytes=size)


def build_in_child(
    path: str | os.PathLike[str],
    *,
    compute_capability: str = DEFAULT_CAPABILITY,
    timeout_s: float = 600.0,
) -> BuildReport:
    """Builds an engine in a process of its own; a crash or a hang is a failed build.

    Args:
        path: The model file.
        compute_capability: The kind of GPU to build for.
        timeout_s: After this long the build is given up.

    Raises:
        EngineError: If TensorRT-RTX is not installed, or can't build for such a GPU.
    """
    command = [sys.executable, "-m", "benchmarks.rtx_builds", "--format", "json"]
    command += ["--compute-capability", compute_capability, "--", os.path.abspath(path)]
    nothing = BuildReport(compute_capability=compute_capability.lower())
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return _failed(nothing, [f"the build took longer than {timeout_s:g} s"])
    if child.returncode == 2:
        raise EngineError(child.stderr.strip(), _INSTALL)
    try:
        return BuildReport.from_dict(json.loads(child.stdout))
    except (ValueError, TypeError, KeyError):
        last = "\n".join(child.stderr.splitlines()[-5:])
        return _failed(nothing, [f"the build ended with exit code {child.returncode}", last])


def quantized_inputs(report: BuildReport, node_names: Iterable[str]) -> dict[str, set[str]]:
    """Finds, for each node, the types of what the engine multiplies to execute it.

    Args:
        report: A build that worked.
        node_names: Nodes of the model that should be quantized.

    Returns:
        Types by node, such as `{"Int8"}`; empty if no kernel says that it executes the node.
        `layers.not_low_precision` picks out those that are not quantized.
    """
    return operand_types(report.layers, node_names)


def _import_tensorrt_rtx() -> Library:
    try:
        return Library("tensorrt_rtx")
    except ImportError as error:
        raise EngineError(f"TensorRT-RTX can't be imported: {error}.", _INSTALL) from None


def _smallest(dims: Iterable[int | None]) -> ShapeRange:
    shape = tuple(1 if dim is None else dim for dim in dims)
    return ShapeRange(shape, shape, shape)


def _failed(report: BuildReport, messages: list[str]) -> BuildReport:
    text = "\n".join(message for message in messages if message)
    return replace(report, error=text or "TensorRT-RTX gave no reason")


def _as_text(report: BuildReport) -> str:
    if not report.ok:
        return f"{'not built' if report.parsed else 'not parsed'}: {report.error}\n"
    lines = [f"TensorRT-RTX {report.version}, {report.compute_capability}: built, never run"]
    for layer in report.layers:
        types = ", ".join(tensor.dtype for tensor in layer.inputs) or "nothing"
        results = ", ".join(tensor.dtype for tensor in layer.outputs) or "nothing"
        lines.append(f"{layer.kind:16} {types} -> {results}  {layer.name}")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Builds one model; 0 if that worked, 1 if not, 2 if it could not be tried."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rtx_builds")
    parser.add_argument("model", help="the ONNX file")
    parser.add_argument("--compute-capability", default=DEFAULT_CAPABILITY, metavar="SM")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    try:
        report = build(options.model, compute_capability=options.compute_capability)
    except QdqtuneError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    as_json = options.format == "json"
    sys.stdout.write(json.dumps(asdict(report)) + "\n" if as_json else _as_text(report))
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
