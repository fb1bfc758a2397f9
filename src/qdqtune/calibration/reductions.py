"""The model that calibration runs: the base, and three numbers of every tensor that is watched.

Where the nodes stand in the file decides what they cost. ONNX Runtime runs the inputs of a node
from the last to the first one in the file: what is reduced late keeps its memory to the end. And
when it opens a model, it holds the nodes that could be next in a list, sorted by their place in the
file: if all reductions stand at the end, they are all in it, and 4,000 nodes take minutes. So the
reductions of a few neighbours stand right behind them, backwards, and each few are joined to those
before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

import onnx
import onnx_ir as ir
from onnx.helper import make_node, make_tensor, make_tensor_value_info

from qdqtune.graph.index import GraphIndex
from qdqtune.graph.prepared import PreparedModel, constant_part, node_part

OUTPUT = "qdqtune_extremes"

# The engine's minimum and maximum pass NaN over unless it comes first. A sum of absolute values is
# NaN if and only if one of them is, also where it overflows; it makes runs 6 to 13 % longer.
REDUCTIONS = ("ReduceMin", "ReduceMax", "ReduceL1")

_BLOCK = 32
_ONE, _FLAT = f"{OUTPUT}_one", f"{OUTPUT}_flat"


def with_reductions(
    base: PreparedModel, tensors: Collection[str]
) -> tuple[onnx.ModelProto, list[str]]:
    """The base with one output, `OUTPUT`: all `REDUCTIONS` of a tensor, then those of the next.

    Args:
        base: The model.
        tensors: Float tensors of its main graph.

    Returns:
        The model, and its tensors in the order of the output.
    """
    layout = _Layout(base.index)
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
    constants = [make_tensor(_ONE, onnx.TensorProto.INT64, [1], [1])]
    constants.append(make_tensor(_FLAT, onnx.TensorProto.INT64, [1], [-1]))
    parts = (*base.constant_parts.values(), *map(constant_part, constants))
    proto: onnx.ModelProto = onnx.ModelProto.FromString(base.assemble(layout.parts, parts))
    del proto.graph.output[:]
    shape = [len(layout.order) * len(REDUCTIONS)]
    output = make_tensor_value_info(OUTPUT, onnx.TensorProto.FLOAT, shape)
    proto.graph.output.append(output)
    return proto, layout.order


class _Layout:
    """Puts nodes behind each other.

    Attributes:
        parts: The nodes so far, serialized.
        order: The tensors reduced so far.
    """

    def __init__(self, index: GraphIndex) -> None:
        self.parts: list[bytes] = []
        self.order: list[str] = []
        self._index = index
        self._joined = 0
        self._results: list[str] = []

    def reduce(self, tensors: list[str]) -> None:
        """Add the reductions of a block of tensors; the block before it is joined behind them."""
        by_rank: dict[int, list[tuple[str, list[str]]]] = defaultdict(list)
        first = len(self.order)
        for position, tensor in reversed(list(enumerate(tensors, first))):
            rank = len(self._index.shape(tensor) or ())
            by_rank[rank].append((tensor, self._reduce_one(tensor, rank, f"{OUTPUT}_{position}")))
        results = []
        for rank, reduced in by_rank.items():
            self.order += (tensor for tensor, _ in reduced)
            flat = f"{OUTPUT}_{first}_rank{rank}"
            names = [name for _, group in reduced for name in group]
            self._add("Concat", names, f"{flat}_values", axis=0)
            self._add("Reshape", [f"{flat}_values", _FLAT], flat)
            results.append(flat)
        self.join()
        self._results += results

    def _reduce_one(self, tensor: str, rank: int, name: str) -> list[str]:
        source = tensor
        if self._index.dtype(tensor) != ir.DataType.FLOAT:
            source = f"{name}_cast"
            self._add("Cast", [tensor], source, to=onnx.TensorProto.FLOAT)
        results = []
        for op_type in REDUCTIONS:
            # Of no elements: inf, -inf and 0, which change nothing.
            reduced = f"{name}_{op_type}"
            self._add(op_type, [source], reduced, keepdims=1)
            if not rank:  # or an unknown one: only vectors can be joined
                self._add("Reshape", [reduced, _ONE], f"{reduced}_vector")
                reduced += "_vector"
            results.append(reduced)
        return results

    def join(self, *, last: bool = False) -> None:
        """Join the results that are waiting; what was joined already comes first."""
        if self._results:
            self._joined += 1
            name = OUTPUT if last else f"{OUTPUT}_joined_{self._joined}"
            self._add("Concat", self._results, name, axis=0)
            self._results = [name]

    def _add(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> None:
        self.parts.append(node_part(make_node(op_type, inputs, [output], **attributes)))
