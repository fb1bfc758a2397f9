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
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from qdqtune.engines._signature import read_signature
from qdqtune.engines.tensorrt._builder import (
    BuildError,
    Library,
    ParseError,
    PlanBuilder,
    ShapesMissing,
    check_capability,
)
from qdqtune.engines.tensorrt._layer_info import Layer, LayerTensor, parse_layers
from qdqtune.engines.tensorrt._settings import Settings, ShapeRange
from qdqtune.records._errors import EngineError, QdqtuneError, UsageError

DEFAULT_CAPABILITY = "sm89"
"""Ada: the oldest GPUs with float8."""

_INSTALL = "Install it: pip install 'qdqtune[tensorrt-rtx]' (Linux on x86-64)."
# TensorRT's names of the types that a quantized op reads.
_LOW_PRECISION = frozenset({"Int8", "FP8"})
# Kernels that multiply and add; everything else moves, scales or reduces.
_PRODUCT_KINDS = frozenset({"correlation", "deconv", "gemm", "runtime_fusion"})
# Parts of the names of such kinds, where TensorRT has kernels from a library.
_LIBRARY_PRODUCTS = ("Convolution", "ConvActPool", "MatrixMultiply", "FullyConnected")
_ATTENTION = "_gemm_mha"
# How generated kernels (`__myl_MulCastCorrMul_myl0_3`) spell the products fused into them.
_PRODUCT_TOKENS = ("Corr", "Deco", "Fc", "Gemm")


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
        return cls(**{**body, "layers": tuple(map(_layer_from_dict, body["layers"]))})


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
        builder = PlanBuilder(library, Settings(compute_capability=compute_capability))
        plan = builder.build(os.fspath(path), signature.low_types, ones, {})
        layers = parse_layers(library.log.layer_list)
    except (ParseError, OSError) as error:
        return _failed(report, [str(error)])
    except (BuildError, ShapesMissing, ValueError) as error:
        return _failed(replace(report, parsed=True), [str(error)])
    size = len(plan)
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


def operand_types(layers: Iterable[Layer], nodes: Iterable[str]) -> dict[str, set[str]]:
    """Finds, for each ONNX node, the types of what the kernels that execute it multiply.

    A node is in the Metadata of many kernels: those that prepare its inputs, its scales, its
    bias. Only the ones that do its products count, and all of those do.

    Args:
        layers: The kernels of the engine.
        nodes: Names of Conv, Gemm or MatMul nodes (in general: of ops that multiply).

    Returns:
        Types by node, such as `{"Int8"}`; empty if no kernel says that it executes the node.
    """
    found: dict[str, set[str]] = {name: set() for name in nodes}
    for layer in layers:
        if multiplies(layer):
            for name in found.keys() & set(layer.nodes):
                found[name].update(tensor.dtype for tensor in _operands(layer))
    return found


def not_low_precision(types_of: Mapping[str, set[str]]) -> list[str]:
    """The nodes of `operand_types` that read something else than 8-bit values, or nothing."""
    return [name for name, types in types_of.items() if not types or not types <= _LOW_PRECISION]


def multiplies(layer: Layer) -> bool:
    """Whether matrix products or convolutions happen in a kernel."""
    if layer.kind in _PRODUCT_KINDS or _is_library_product(layer):
        return True
    if layer.name.startswith(_ATTENTION):
        return True
    operations = layer.name.removeprefix("__myl_").partition("_")[0]
    tokens = re.findall("[A-Z][a-z]*", operations) if layer.name.startswith("__myl_") else ()
    return any(token in _PRODUCT_TOKENS for token in tokens)


def _operands(layer: Layer) -> tuple[LayerTensor, ...]:
    """What is multiplied: not the residual that is added, nor scales and biases."""
    if layer.name.startswith(_ATTENTION):
        # q, k, whatever is added to the scores (a mask), v.
        return (*layer.inputs[:2], *layer.inputs[2:][-1:])
    if _is_library_product(layer):
        return (*layer.inputs[:1], *layer.constants) if layer.constants else layer.inputs[:2]
    if layer.kind not in ("correlation", "deconv", "gemm"):
        return layer.inputs  # which of them are multiplied can't be told
    # A weight that is part of the kernel comes first; scalars and vectors are scales.
    weight = layer.constants[:1] if layer.constants and len(layer.constants[0].dims) > 1 else ()
    return (*layer.inputs[:1], *weight) if weight else layer.inputs[:2]


def _is_library_product(layer: Layer) -> bool:
    return any(part.lower() in layer.kind.lower() for part in _LIBRARY_PRODUCTS)


def _layer_from_dict(body: Mapping[str, Any]) -> Layer:
    tensors: dict[str, Any] = {
        role: tuple(LayerTensor(t["name"], t["dtype"], tuple(t["dims"])) for t in body[role])
        for role in ("inputs", "outputs", "constants")
    }
    return Layer(**{**body, **tensors, "nodes": tuple(body["nodes"])})


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
