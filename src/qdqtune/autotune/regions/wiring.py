"""Data flow by node position: computed in one pass over the index, and cached with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

import onnx_ir as ir

from qdqtune.autotune.regions.tokens import op_token, tensor_label
from qdqtune.graph.control_flow_bodies import has_body
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import is_standard
from qdqtune.records.errors import ModelError

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
        tokens: By node: number of its token in `labels`.
        commutative: By node: whether its inputs can be swapped.
        labels: Texts, numbered.
    """

    def __init__(self, index: GraphIndex) -> None:
        self.labels = Labels()
        made = {
            id(value): (position, output)
            for position, node in enumerate(index.nodes)
            for output, value in enumerate(node.outputs)
        }
        readers: list[list[list[int]]] = [[[] for _ in node.outputs] for node in index.nodes]
        self.reads: list[tuple[InputSource, ...]] = []
        self.tokens: list[int] = []
        self.commutative: list[bool] = []
        for position, node in enumerate(index.nodes):
            captured = tuple(_captured(index, node)) if has_body(node) else ()
            reads = tuple(_read(made, value) for value in (*node.inputs, *captured))
            for read in reads:
                if read.producer >= position:
                    raise ModelError(
                        f"The node {node.name!r} reads {read.tensor!r}, which is made after it.",
                        "Sort the nodes first: onnx_ir's Graph.sort().",
                    )
                if read.producer >= 0:
                    readers[read.producer][read.output].append(position)
            token = op_token(node) + (f"^{len(captured)}" if captured else "")
            self.reads.append(reads)
            self.tokens.append(self.labels.number(token))
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
        self._tensor_labels: dict[str, int] = {}

    def tensor_label(self, index: GraphIndex, tensor: str) -> int:
        """Return the label number of a tensor's type and shape."""
        if tensor not in self._tensor_labels:
            self._tensor_labels[tensor] = self.labels.number(tensor_label(index, tensor))
        return self._tensor_labels[tensor]


class Labels:
    """Numbered texts, with a hash that is the same in every process.

    Attributes:
        texts: Text by number.
        hashes: Hash by number.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.hashes: list[int] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text."""
        number = self._numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
            digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=7).digest()
            self.hashes.append(int.from_bytes(digest, "little"))
        return number


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


def _captured(index: GraphIndex, node: ir.Node) -> Iterator[ir.Value]:
    """Return what the bodies of a node read from the main graph, each value once."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        for attribute in waiting.pop().attributes.values():
            if attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                continue
            single = attribute.type == ir.AttributeType.GRAPH
            for body in [attribute.value] if single else attribute.value:
                inner = list(body)
                waiting.extend(inner)
                read = [value for each in inner for value in each.inputs]
                for value in (*read, *body.outputs):
                    known = value is not None and index.value.get(value.name or "") is value
                    if known and id(value) not in seen:
                        seen.add(id(value))
                        yield value


def _distinct(groups: Iterable[Iterable[int]]) -> tuple[int, ...]:
    return tuple(sorted({position for group in groups for position in group}))
