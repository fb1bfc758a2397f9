"""The model that calibration runs: the base, and a few numbers of every tensor that is watched.

Where the nodes stand in the file decides what they cost. ONNX Runtime runs the inputs of a node
from the last to the first one in the file: what is reduced late keeps its memory to the end. And
when it opens a model, it holds the nodes that could be next in a list, sorted by their place in the
file: if all reductions stand at the end, they are all in it, and 4,000 nodes take minutes. So the
reductions of a few neighbours stand right behind them, backwards, and each few are joined to those
before: everything ends in one output.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx.helper import make_node, make_tensor, make_tensor_value_info

from qdqtune.graph.index import GraphIndex
from qdqtune.graph.prepared_model import PreparedModel, constant_part, node_part

OUTPUT = "qdqtune_extremes"

# The engine's minimum and maximum pass NaN over unless it comes first. A sum of absolute values is
# NaN if and only if one of them is, also where it overflows; it makes runs 6 to 13 % longer.
REDUCTIONS = ("ReduceMin", "ReduceMax", "ReduceL1")

_BLOCK = 32
_ALL_VALUES = 1 << 20
_VALUES_PER_TENSOR = (256, 4096)
_END = np.iinfo(np.int64).max

Array = npt.NDArray[Any]


def with_reductions(
    base: PreparedModel, tensors: Collection[str], *, with_values: bool = False
) -> tuple[onnx.ModelProto, list[str]]:
    """The base with one output, `OUTPUT`, which `parted` takes apart.

    Args:
        base: The model.
        tensors: Float tensors of its main graph.
        with_values: Whether some thousand values of each come along, evenly spread.

    Returns:
        The model, and its tensors in the order of the output.
    """
    count = int(np.clip(_ALL_VALUES // max(len(tensors), 1), *_VALUES_PER_TENSOR))
    layout = _Layout(base.index, count if with_values else 0)
    wanted = frozenset(tensors)
    waiting = [name for name in tensors if base.index.value[name].producer() is None]
    for node, part in zip(base.index.nodes, base.node_parts, strict=True):
        layout.parts.append(part)
        waiting += [value.name for value in node.outputs if value.name in wanted]
        if len(waiting) >= _BLOCK:
            layout.reduce(waiting)
            waiting = []
    layout.reduce(waiting)
    layout.join(last=True)
    constants = [
        constant_part(make_tensor(name, onnx.TensorProto.INT64, [1], [number]))
        for number, name in layout.numbers.items()
    ]
    parts = (*base.constant_parts.values(), *constants)
    proto: onnx.ModelProto = onnx.ModelProto.FromString(base.assemble(layout.parts, parts))
    del proto.graph.output[:]
    output = make_tensor_value_info(OUTPUT, onnx.TensorProto.FLOAT, [None])
    proto.graph.output.append(output)
    return proto, layout.order


def parted(output: Array, tensors: int, *, with_values: bool = False) -> Iterator[Array]:
    """Take the output of a run apart.

    Returns:
        First an array with a row of `REDUCTIONS` per tensor; then, of each tensor, the values.
    """
    head = len(REDUCTIONS)
    if not with_values:
        yield output.reshape(tensors, head)
        return
    starts, at = [], 0
    for _ in range(tensors):
        starts.append(at)
        at += head + 1 + int(output[at + head])
    yield output[np.array(starts)[:, None] + np.arange(head)]
    for start in starts:
        first = start + head + 1
        yield output[first : first + int(output[start + head])]


class _Layout:
    """Puts nodes behind each other.

    Args:
        index: Of the base.
        count: About how many values of each tensor are wanted.

    Attributes:
        parts: The nodes so far, serialized.
        order: The tensors reduced so far.
        numbers: Constants that the nodes read, and their names.
    """

    def __init__(self, index: GraphIndex, count: int) -> None:
        self.parts: list[bytes] = []
        self.order: list[str] = []
        self.numbers: dict[int, str] = {}
        self._index = index
        self._count = count
        self._joined = 0
        self._results: list[str] = []

    def reduce(self, tensors: Sequence[str]) -> None:
        """Add the reductions of a block of tensors; the block before it is joined behind them."""
        results: list[str] = []
        for position, tensor in reversed(list(enumerate(tensors, len(self.order)))):
            results += self._reduce_one(tensor, f"{OUTPUT}_{position}")
        self.order += reversed(tensors)
        self.join()
        self._results += results

    def _reduce_one(self, tensor: str, name: str) -> list[str]:
        source = tensor
        if self._index.dtype(tensor) != ir.DataType.FLOAT:
            source = self._add("Cast", [tensor], f"{name}_cast", to=onnx.TensorProto.FLOAT)
        flat = self._add("Reshape", [source, self._number(-1)], f"{name}_flat")
        # Of no elements: inf, -inf and 0, which change nothing.
        results = [
            self._add(op_type, [flat], f"{name}_{op_type}", keepdims=1) for op_type in REDUCTIONS
        ]
        if self._count:
            first, step = self._number(0), self._step(tensor, flat, name)
            ends = [first, self._number(_END), first, step]
            values = self._add("Slice", [flat, *ends], f"{name}_values")
            size = self._add("Shape", [values], f"{name}_size")
            results.append(self._add("Cast", [size], f"{name}_real", to=onnx.TensorProto.FLOAT))
            results.append(values)
        return results

    def _step(self, tensor: str, flat: str, name: str) -> str:
        """How far the values are apart; an even step would pass over half of most channels."""
        shape = self._index.shape(tensor)
        known = [dim for dim in shape or () if dim is not None]
        if shape is not None and len(known) == len(shape):
            return self._number(even_step(known, self._count))
        size = self._add("Shape", [flat], f"{name}_elements")
        times = self._add("Div", [size, self._number(2 * self._count)], f"{name}_times")
        even = self._add("Mul", [times, self._number(2)], f"{name}_even")
        return self._add("Add", [even, self._number(1)], f"{name}_step")

    def join(self, *, last: bool = False) -> None:
        """Join the results that are waiting; what was joined already comes first."""
        if self._results:
            self._joined += 1
            name = OUTPUT if last else f"{OUTPUT}_joined_{self._joined}"
            self._results = [self._add("Concat", self._results, name, axis=0)]

    def _number(self, number: int) -> str:
        return self.numbers.setdefault(number, f"{OUTPUT}_number_{len(self.numbers)}")

    def _add(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.parts.append(node_part(make_node(op_type, inputs, [output], **attributes)))
        return output


def even_step(shape: Sequence[int], count: int) -> int:
    """The step that takes about this many values of a tensor, from all of its channels alike."""
    size = math.prod(shape)
    step = max(-(-size // count), 1)
    # With a step that shares no factor with any dim, no row, column or channel is passed over.
    while math.gcd(step, size) != 1 and step < size:
        step += 1
    return step
