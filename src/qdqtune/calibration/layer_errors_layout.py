"""Nodes that say how far pairs of tensors are apart, a few numbers each.

Why they stand where they do, backwards and in blocks that are joined one after the other, is said
in `calibration.reductions`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import onnx
import onnx_ir as ir
from onnx.helper import make_node, make_tensor, make_tensor_value_info

OUTPUT = "qdqtune_errors"

#: What comes of every pair: sums of the squares of the float tensor, of the difference and of the
#: other tensor, then the difference's largest magnitude, and the float tensor's extremes.
NUMBERS = 6

# Beyond this a number is a mask, whose square no float32 holds.
_LARGEST = 1e15
_BLOCK = 32
_BOUND, _FLAT, _ZERO = f"{OUTPUT}_bound", f"{OUTPUT}_flat", f"{OUTPUT}_zero"

# A tensor's name and type.
_Tensor = tuple[str, "ir.DataType | None"]


class ComparisonLayout:
    """Puts nodes behind each other: those of a model, and those that compare.

    Args:
        masked: Of which pairs, by name, huge float values are left out.

    Attributes:
        nodes: The nodes so far.
        order: The names of the pairs in the order of the numbers.
    """

    def __init__(self, masked: Collection[str]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.order: list[str] = []
        self._masked = frozenset(masked)
        self._waiting: list[tuple[str, list[_Tensor]]] = []
        self._joined = 0
        self._results: list[str] = []

    def compare(self, name: str, *tensors: _Tensor) -> None:
        """Have two tensors compared, sooner or later.

        Args:
            name: What to call the pair.
            tensors: The float model's tensor and the other one, and their types.
        """
        self._waiting.append((name, list(tensors)))
        if len(self._waiting) >= _BLOCK:
            self._add_block()

    def finish(self) -> None:
        """Have everything compared, and the numbers in the output."""
        self._add_block()
        self._join(OUTPUT)

    @staticmethod
    def constants() -> list[onnx.TensorProto]:
        """The constants that the nodes read."""
        return [
            make_tensor(_FLAT, onnx.TensorProto.INT64, [1], [-1]),
            make_tensor(_BOUND, onnx.TensorProto.FLOAT, [], [_LARGEST]),
            make_tensor(_ZERO, onnx.TensorProto.FLOAT, [], [0.0]),
        ]

    def output(self) -> onnx.ValueInfoProto:
        """The output with all numbers."""
        shape = [len(self.order) * NUMBERS]
        return make_tensor_value_info(OUTPUT, onnx.TensorProto.FLOAT, shape)

    def _add_block(self) -> None:
        first = len(self.order)
        results = []
        for position, (name, tensors) in reversed(list(enumerate(self._waiting, first))):
            results += self._numbers(f"{OUTPUT}_{position}", tensors, name in self._masked)
            self.order.append(name)
        self._waiting.clear()
        if self._results:
            self._join(f"{OUTPUT}_joined_{self._joined}")
        self._results += results

    def _numbers(self, label: str, tensors: list[_Tensor], is_masked: bool) -> list[str]:
        before, after = (
            self._flat(f"{label}_{number}", *tensor) for number, tensor in enumerate(tensors)
        )
        if is_masked:
            size = self._add("Abs", [before], f"{label}_size")
            ordinary = self._add("Less", [size, _BOUND], f"{label}_ordinary")
            before, after = (
                self._add("Where", [ordinary, tensor, _ZERO], f"{tensor}_ordinary")
                for tensor in (before, after)
            )
        off = self._add("Sub", [after, before], f"{label}_difference")
        off = self._add("Abs", [off], f"{label}_off")
        reductions = (
            ("ReduceSumSquare", before), ("ReduceSumSquare", off), ("ReduceSumSquare", after),
            ("ReduceMax", off), ("ReduceMax", before), ("ReduceMin", before),
        )  # fmt: skip
        return [
            self._add(op_type, [tensor], f"{label}_number{number}", keepdims=1)
            for number, (op_type, tensor) in enumerate(reductions)
        ]

    def _flat(self, label: str, tensor: str, dtype: ir.DataType | None) -> str:
        """A tensor as a vector of float32, whatever its rank and type."""
        if dtype != ir.DataType.FLOAT:
            tensor = self._add("Cast", [tensor], f"{label}_float", to=onnx.TensorProto.FLOAT)
        return self._add("Reshape", [tensor, _FLAT], f"{label}_flat")

    def _join(self, name: str) -> None:
        """Join the results that are waiting; what was joined already comes first."""
        self._joined += 1
        self._results = [self._add("Concat", self._results, name, axis=0)]

    def _add(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(make_node(op_type, inputs, [output], name=output, **attributes))
        return output
