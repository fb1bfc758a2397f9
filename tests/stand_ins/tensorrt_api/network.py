"""Networks and the parser that fills them from ONNX files."""

from __future__ import annotations

import os
import re
from typing import Any

import onnx  # noqa: F401 - all of it, before the stand-in trtexec takes parts of it

from tests.stand_ins.tensorrt_api.bindings import Dims
from tests.stand_ins.tensorrt_api.enums import NetworkDefinitionCreationFlag, Severity
from tests.stand_ins.tensorrt_api.situation import VERSION, strikes
from tests.stand_ins.trtexec_network import Network, ParseError, declared_inputs

_NODE = re.compile(r'node number (\d+) .*?name: "(.*?)" op_type: "(.*?)"', re.DOTALL)
_CODE = re.compile(r"\[\d+\] (?:[A-Z_]+: )?(.*)", re.DOTALL)
# Where an op reads sizes or places, by the number of the input.
_DECIDING = {
    "Reshape": {1}, "Expand": {1}, "Tile": {1}, "ConstantOfShape": {0}, "Pad": {1},
    "Range": {0, 1, 2}, "Slice": {1, 2, 4}, "Resize": {2, 3}, "TopK": {1}, "OneHot": {1},
}  # fmt: skip
_PASSING = {
    "Identity", "Cast", "Concat", "Gather", "Mul", "Add", "Sub", "Div", "Unsqueeze", "Squeeze",
    "Slice",
}  # fmt: skip


class Tensor:
    """A tensor of a network."""

    __slots__ = ("is_shape_tensor", "name", "shape")

    def __init__(self, name: str, shape: tuple[int, ...], is_shape_tensor: bool) -> None:
        self.name = name
        self.shape = Dims(shape)
        self.is_shape_tensor = is_shape_tensor


class NetworkDefinition:
    """What a builder builds; `stand_in` is for the stand-in alone."""

    __slots__ = ("__weakref__", "stand_in")

    def __init__(self, flags: int) -> None:
        self.stand_in = _Parsed(flags)

    @property
    def num_inputs(self) -> int:
        """How many inputs there are."""
        return len(self.stand_in.inputs)

    def get_input(self, place: int) -> Tensor:
        """One of them."""
        return self.stand_in.inputs[place]

    def get_flag(self, flag: Any) -> bool:
        """Whether it was created with a flag."""
        return bool(self.stand_in.flags >> int(flag) & 1)


class _Parsed:
    def __init__(self, flags: int) -> None:
        self.flags = flags
        self.network: Network | None = None
        self.inputs: list[Tensor] = []

    @property
    def is_strong(self) -> bool:
        flag = getattr(NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        return VERSION >= (11,) or (flag is not None and bool(self.flags >> int(flag) & 1))

    @property
    def has_explicit_batch(self) -> bool:
        return VERSION >= (10,) or bool(
            self.flags >> int(NetworkDefinitionCreationFlag.EXPLICIT_BATCH) & 1
        )


class ParserError:
    """Why a model could not be read; from 10 on it has the node's name, too."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._node = _NODE.search(text)

    def desc(self) -> str:
        """What is wrong."""
        found = _CODE.search(self._text.splitlines()[-1])
        return f"In function importNode: {found[1]}" if found else self._text

    def node(self) -> int:
        """The number of the node."""
        return int(self._node[1]) if self._node else -1

    def code(self) -> int:
        """What kind of error it is."""
        return 8

    if VERSION >= (10,):

        def node_name(self) -> str:
            """The node."""
            return self._node[2] if self._node else ""

        def node_operator(self) -> str:
            """Its op type."""
            return self._node[3] if self._node else ""


class OnnxParser:
    """Reads ONNX files."""

    __slots__ = ("_errors", "_log", "_network")

    def __init__(self, network: NetworkDefinition, logger: Any) -> None:
        self._network = network
        self._log = logger
        self._errors: list[ParserError] = []

    @property
    def num_errors(self) -> int:
        """How many errors there are."""
        return len(self._errors)

    def get_error(self, place: int) -> ParserError:
        """One of them."""
        return self._errors[place]

    def parse_from_file(self, path: str) -> bool:
        """Fills the network; False if there are errors."""
        parsed = self._network.stand_in
        if not parsed.has_explicit_batch:
            return self._fail("[4] This parser only supports networks with an explicit batch")
        if parsed.network is not None:
            return self._fail("[4] Parse was called with a non-empty network definition")
        if strikes("parse_fails", os.path.basename(path)):
            return self._fail(_failure(0, "n0", "Strange", "y", "No importer registered for op"))
        try:
            network = Network(path, VERSION)
            _check_windows(network)
        except ParseError as error:
            return self._fail(str(error))
        deciding = _deciding_inputs(network)
        parsed.network = network
        parsed.inputs = [
            Tensor(name, dims, name in deciding) for name, dims in declared_inputs(network).items()
        ]
        return True

    def _fail(self, text: str) -> bool:
        self._errors.append(ParserError(text))
        for line in text.splitlines():
            self._log.log(Severity.ERROR, line.removeprefix("[TRT] "))
        return False


def _failure(number: int, name: str, op: str, output: str, text: str) -> str:
    return (
        f'ModelImporter.cpp:771: While parsing node number {number} [{op} -> "{output}"]:\n'
        f'name: "{name}" op_type: "{op}"\n'
        f"ModelImporter.cpp:777: ERROR: builtin_op_importers.cpp:636 In function import{op}:\n"
        f"[8] {text}"
    )


def _check_windows(network: Network) -> None:
    """Seen in 8.6: the window of a Conv is read off its weight only if that is a constant."""
    if VERSION >= (10,):
        return
    for number, node in enumerate(network.model.graph.node):
        is_conv = node.op_type in ("Conv", "ConvTranspose")
        told = any(attribute.name == "kernel_shape" for attribute in node.attribute)
        if is_conv and not told and node.input[1] not in network.weights:
            text = "Assertion failed: checkSpatialDims(kernel_tensor_ptr->getDimensions())"
            raise ParseError(_failure(number, node.name, node.op_type, node.output[0], text))


def _deciding_inputs(network: Network) -> set[str]:
    """Inputs whose values decide shapes, over ops that only compute with sizes."""
    wanted: set[str] = set()
    for node in reversed(network.nodes):
        if node.op_type in _PASSING and any(name in wanted for name in node.output):
            wanted.update(node.input)
        places = _DECIDING.get(node.op_type, ())
        wanted.update(name for place, name in enumerate(node.input) if place in places)
    return {
        value.name
        for value in network.inputs
        if value.name in wanted and len(network.dims[value.name]) < 2
    }
