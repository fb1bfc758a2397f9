"""How the stand-in trtexec builds an engine. Brings onnx, which loading an engine does without."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.stand_ins.trtexec_kernels import Builder
from tests.stand_ins.trtexec_layers import layers_of
from tests.stand_ins.trtexec_network import BuildError, Network, ParseError, declared_inputs
from tests.stand_ins.trtexec_options import Options, Version

_FACTORS = {0: 1.3, 1: 1.1, 2: 1.05}
"""How much slower engines of low optimization levels are."""


class Builders:
    """A parser and a builder.

    Args:
        options: What was asked for.
        version: Of the TensorRT that is stood in for.
        info: Writes a line.
        warning: Writes a warning.
    """

    def __init__(
        self,
        options: Options,
        version: Version,
        info: Callable[[str], None],
        warning: Callable[[str], None],
    ) -> None:
        self._options = options
        self._version = version
        self._info = info
        self._warning = warning
        self._ranges: dict[str, dict[str, list[int]]] = {}

    def parse(self, path: str) -> Network | str:
        """The network, or what is wrong with it."""
        try:
            self._net = Network(path, self._version, plugins=bool(self._options.plugins))
        except ParseError as error:
            return str(error)
        return self._net

    def set_shapes(self) -> str:
        """Works out the ranges of all inputs; returns what is wrong."""
        given = self._options
        inputs = declared_inputs(self._net)
        requested = (given.min_shapes, given.opt_shapes, given.max_shapes, given.shapes)
        named = {name for shapes in requested for name in shapes}
        if named and all(-1 not in dims for dims in inputs.values()):
            return (
                "Static model does not take explicit shapes since the shape of inference tensors "
                "will be determined by the model itself"
            )
        for name in sorted(named - inputs.keys()):
            return (
                f'Cannot find input tensor with name "{name}" in the network inputs! Please make '
                "sure the input tensor names are correct."
            )
        for name, dims in inputs.items():
            wrong = self._set_range(name, list(dims))
            if wrong:
                return wrong
        opened = {
            name: tuple(range_["opt"])
            for name, range_ in self._ranges.items()
            if -1 in inputs[name]
        }
        try:
            self._net.set_shapes(opened)
        except ParseError as error:
            return f"Error[4]: IBuilder::buildSerializedNetwork: Error Code 4: {error}"
        return ""

    def build(self) -> dict[str, Any] | tuple[int, str]:
        """The engine, or an error code and what is wrong."""
        options, net = self._options, self._net
        strong = self._version >= (11,) or options.has("stronglyTyped")
        kinds = {
            net.kinds.get(node.output[0])
            for node in net.model.graph.node
            if node.op_type == "QuantizeLinear"
        }
        kinds |= {
            net.kinds.get(node.input[0])
            for node in net.model.graph.node
            if node.op_type == "DequantizeLinear"
        }
        for kind, flag in (("Int8", "int8"), ("FP8", "fp8")):
            if kind in kinds and not strong and not options.has(flag) and not options.has("best"):
                return 4, (
                    f"{kind} precision has been set for a layer or layer output, but {flag} is not "
                    "configured in the builder"
                )
        half = not strong and (options.has("fp16") or options.has("best"))
        try:
            kernels = Builder(net, half=half).build()
        except BuildError as error:
            return error.code, str(error)
        layers = layers_of([kernel.to_dict() for kernel in kernels], self._version)
        factor = _FACTORS.get(int(options.number("builderOptimizationLevel", 3)), 1.0)
        without = os.environ.get("STAND_IN_TRT_NO_INT8", "")
        for layer in layers:
            layer["work_ms"] *= factor
            low = [kind for _, kind in layer["inputs"] if kind == "Int8"]
            if low and without and without in layer["name"].split(" + "):
                return 10, f"Could not find any implementation for node {layer['name']}."
        return self._engine(layers)

    def _engine(self, layers: list[dict[str, Any]]) -> dict[str, Any]:
        net = self._net
        shown = {name for layer in layers for name, _ in (*layer["inputs"], *layer["outputs"])}
        inputs = [
            {
                "name": value.name,
                "kind": self._bound(net.kinds[value.name]),
                "model_kind": net.kinds[value.name],
                "dims": list(net.dims[value.name]),
                **self._ranges[value.name],
            }
            for value in net.inputs
        ]
        outputs = [
            {
                "name": value.name,
                "kind": self._bound(net.kinds[value.name]),
                "dims": list(net.dims[value.name]),
            }
            for value in net.model.graph.output
        ]
        return {
            "stand_in": "trtexec",
            "version": list(self._version),
            "model": os.path.basename(net.path),
            "folder": os.path.dirname(os.path.abspath(net.path)),
            "digest": f"{zlib.crc32(Path(net.path).read_bytes()):08x}",
            "verbosity": self._options.text("profilingVerbosity", "layer_names_only"),
            "inputs": inputs,
            "outputs": outputs,
            "layers": layers,
            "dims": {name: list(net.dims[name]) for name in shown if name in net.dims},
            "shapes": {name: list(net.shapes[name]) for name in shown if name in net.shapes},
        }

    def _bound(self, kind: str) -> str:
        """The type of an input or output; int64 is one since version 10."""
        return "Int32" if kind == "Int64" and self._version < (10,) else kind

    def _set_range(self, name: str, dims: list[int]) -> str:
        given = self._options
        if -1 not in dims:
            self._ranges[name] = {"min": dims, "opt": dims, "max": dims}
            return ""
        known = [
            shapes[name]
            for shapes in (given.opt_shapes, given.max_shapes, given.min_shapes, given.shapes)
            if name in shapes
        ]
        if not known:
            ones = [max(dim, 1) for dim in dims]
            self._warning(
                f"Dynamic dimensions required for input: {name}, but no shapes were provided. "
                f"Automatically overriding shape to: {'x'.join(map(str, ones))}"
            )
            self._ranges[name] = {"min": ones, "opt": ones, "max": ones}
            return ""
        ends = {
            "min": list(given.min_shapes.get(name, known[0])),
            "opt": list(known[0]),
            "max": list(given.max_shapes.get(name, known[0])),
        }
        for end, shape in ends.items():
            fits = len(shape) == len(dims) and all(
                dim in (-1, size) for dim, size in zip(dims, shape, strict=True)
            )
            if not fits:
                return (
                    f"Error[4]: IBuilder::buildSerializedNetwork: Error Code 4: Internal Error "
                    f"({name}: k{end.upper()} dimensions in profile 0 are {shape} but input has "
                    f"static dimensions {dims}.)"
                )
        if not all(
            low <= usual <= high
            for low, usual, high in zip(ends["min"], ends["opt"], ends["max"], strict=True)
        ):
            return f"Invalid optimization profile for input {name}: min, opt and max don't grow"
        self._ranges[name] = ends
        return ""
