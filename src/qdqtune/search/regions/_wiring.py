"""Data flow by node position, with ops and tensors as short text; computed once per index."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from qdqtune.graph._fingerprint import tensor_digest
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import is_standard
from qdqtune.records._errors import ModelError

_PLAIN_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_DIGEST_BYTES = 8
_KIND_OF_LIST = {
    ir.AttributeType[f"{kind}S"]: ir.AttributeType[kind]
    for kind in ("FLOAT", "GRAPH", "INT", "STRING", "TENSOR")
}


def op_token(node: ir.Node) -> str:
    """Format an op with domain and attributes, such as `Conv[kernel_shape=3x3,pads=1x1x1x1]`."""
    name = _word(node.op_type)
    if not is_standard(node):
        name = f"{_word(node.domain)}::{name}"
    if node.overload:
        name += f"/{_word(node.overload)}"
    if not node.attributes:
        return name
    attributes = sorted(node.attributes.values(), key=lambda attribute: attribute.name)
    return f"{name}[{','.join(f'{_word(a.name)}={_attribute(a)}' for a in attributes)}]"


def tensor_label(index: GraphIndex, tensor: str) -> str:
    """Format the type and shape of a tensor, such as `float16[1x64x?x?]`."""
    dtype, shape = index.dtype(tensor), index.shape(tensor)
    kind = dtype.name.lower() if dtype is not None else "?"
    if shape is None:
        return f"{kind}[*]"
    return f"{kind}[{'x'.join('?' if dim is None else str(dim) for dim in shape)}]"


def _word(text: str) -> str:
    """Quote text so that it can't be confused with its surroundings."""
    return text if _PLAIN_WORD.fullmatch(text) else repr(text)


def _attribute(attribute: ir.Attr) -> str:
    if attribute.is_ref():
        return f"@{_word(attribute.ref_attr_name or '')}"
    kind = _KIND_OF_LIST.get(attribute.type, attribute.type)
    values = [attribute.value] if kind == attribute.type else attribute.value
    if kind == ir.AttributeType.GRAPH:
        return f"#{_digest(_body_lines(values))}"
    return "x".join(_attribute_value(kind, value) for value in values)


def _attribute_value(kind: ir.AttributeType, value: Any) -> str:
    match kind:
        case ir.AttributeType.TENSOR:
            return f"#{tensor_digest(value)}"
        case ir.AttributeType.STRING:
            return _word(_decoded(value))
        case ir.AttributeType.FLOAT:
            return str(np.float32(value))
        case ir.AttributeType.INT:
            return str(value)
    return f"#{_digest([str(value)])}"


def _decoded(text: object) -> str:
    return text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else str(text)


def _digest(lines: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for line in lines:
        digest.update(line.encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _body_lines(graphs: Iterable[ir.Graph]) -> Iterable[str]:
    """Format bodies line by line, with values numbered in order of appearance."""
    numbers: dict[int, int] = {}

    def number(value: ir.Value | None) -> str:
        return "-" if value is None else str(numbers.setdefault(id(value), len(numbers)))

    for graph in graphs:
        yield f"in {[(number(v), str(v.dtype), str(v.shape)) for v in graph.inputs]}"
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield f"constant {number(value)} {tensor_digest(value.const_value)}"
        for node in graph:
            ins, outs = [number(v) for v in node.inputs], [number(v) for v in node.outputs]
            yield f"{op_token(node)} {ins} {outs}"
        yield f"out {[number(v) for v in graph.outputs]}"


#: Ops whose operands may change places.
COMMUTATIVE_OPS = frozenset(
    {
        "Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Max", "Mean", "Min", "Mul",
        "Or", "Sum", "Xor",
    }
)  # fmt: skip

ABSENT, CONSTANT, OUTSIDE = -1, -2, -3


class InputSource(NamedTuple):
    """The source of one input of a node.

    Attributes:
        producer: Position of the producing node; else ABSENT for an omitted input, CONSTANT, or
            OUTSIDE for an input of the graph.
        output: The output of that node.
        tensor: Its name.
    """

    producer: int
    output: int
    tensor: str


class OutputUse(NamedTuple):
    """One output of a node.

    Attributes:
        tensor: Its name; empty for an omitted output.
        readers: Positions of the nodes that read it, once per read.
        leaves: Whether it is an output of the graph, or unused.
    """

    tensor: str
    readers: tuple[int, ...]
    leaves: bool


class Wiring:
    """The data flow of a graph. The node that owns a body reads whatever the body reads.

    Attributes:
        reads: By node: its inputs, then what its bodies capture.
        makes: By node: its outputs.
        successors: By node: the nodes that read it, each once, ascending.
        predecessors: By node: the nodes that it reads, each once, ascending.
        tokens: By node: its op and attributes, as text.
        commutative: By node: whether its inputs can be swapped.
    """

    def __init__(self, index: GraphIndex) -> None:
        made = {
            id(value): (position, output)
            for position, node in enumerate(index.nodes)
            for output, value in enumerate(node.outputs)
        }
        readers: list[list[list[int]]] = [[[] for _ in node.outputs] for node in index.nodes]
        self.reads: list[tuple[InputSource, ...]] = []
        self.tokens: list[str] = []
        self.commutative: list[bool] = []
        for position, node in enumerate(index.nodes):
            captured = index.captured(node)
            reads = tuple(_read(made, value) for value in (*node.inputs, *captured))
            for read in reads:
                if read.producer >= position:
                    raise ModelError(
                        f"The node {node.name!r} reads {read.tensor!r}, which is made after it.",
                        "Sort the nodes first: onnx_ir's Graph.sort().",
                    )
                if read.producer >= 0:
                    readers[read.producer][read.output].append(position)
            self.reads.append(reads)
            self.tokens.append(op_token(node) + (f"^{len(captured)}" if captured else ""))
            self.commutative.append(node.op_type in COMMUTATIVE_OPS and is_standard(node))
        outputs = {id(value) for value in index.model.graph.outputs}
        self.makes = [
            tuple(
                OutputUse(value.name or "", tuple(who), not who or id(value) in outputs)
                for value, who in zip(node.outputs, by_output, strict=True)
            )
            for node, by_output in zip(index.nodes, readers, strict=True)
        ]
        self.successors = [_distinct(made.readers for made in makes) for makes in self.makes]
        self.predecessors = [
            _distinct([[read.producer for read in reads if read.producer >= 0]])
            for reads in self.reads
        ]
        self._labels: dict[str, str] = {}

    def tensor_label(self, index: GraphIndex, tensor: str) -> str:
        """Return the type and shape of a tensor as text."""
        if tensor not in self._labels:
            self._labels[tensor] = tensor_label(index, tensor)
        return self._labels[tensor]


_WIRINGS: WeakKeyDictionary[GraphIndex, Wiring] = WeakKeyDictionary()


def wiring_of(index: GraphIndex) -> Wiring:
    """Return the wiring of an index, computed once."""
    wiring = _WIRINGS.get(index)
    if wiring is None:
        wiring = _WIRINGS[index] = Wiring(index)
    return wiring


def _read(made: dict[int, tuple[int, int]], value: ir.Value | None) -> InputSource:
    if value is None:
        return InputSource(ABSENT, 0, "")
    name = value.name or ""
    source = made.get(id(value))
    if source is not None:
        return InputSource(*source, name)
    constant = value.is_initializer() and value.const_value is not None
    return InputSource(CONSTANT if constant else OUTSIDE, 0, name)


def _distinct(groups: Iterable[Iterable[int]]) -> tuple[int, ...]:
    return tuple(sorted({position for group in groups for position in group}))
