"""Builds a graph node by node; every value knows its shape and its estimated distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qdqtune.zoo._marginals import Marginal, SeededWeights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

OPSET = 17
IR_VERSION = 8
STANDARD_NORMAL = Marginal.normal(0.0, 1.0)


@dataclass(frozen=True)
class Value:
    """A tensor of the graph under construction.

    Attributes:
        name: Its name in the graph; empty for an input left out.
        shape: Its static shape.
        marginal: What its values look like.
    """

    name: str
    shape: tuple[int, ...]
    marginal: Marginal = STANDARD_NORMAL


NO_VALUE = Value("", ())


class GraphBuilder:
    """Collects nodes and initializers.

    Args:
        name: The graph's name.
        seed: What the weights are drawn from.
        folded: Whether BatchNormalization is folded into the convolution before it.
        branches: The number of residual branches that there will be in a row.
        open_batch: Whether the leading dim of inputs and outputs is the symbol N.

    Attributes:
        branch_gain: The spread of what a branch adds to a stream that starts with about 1. The
            more branches, the less each: BatchNorm makes a stack of them chaotic, so errors of the
            estimated statistics would grow with every block.
    """

    def __init__(
        self,
        name: str,
        seed: int,
        *,
        folded: bool = False,
        branches: int = 1,
        open_batch: bool = False,
    ) -> None:
        self.weights = SeededWeights(seed)
        self.folded = folded
        self.branch_gain = min(0.5, 1.5 * branches**-0.5)
        self._name = name
        self._open_batch = open_batch
        self._inputs: list[onnx.ValueInfoProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}

    def input(
        self, name: str, shape: Sequence[int], elem_type: int = onnx.TensorProto.FLOAT
    ) -> Value:
        """Adds a graph input; floats are expected to be N(0, 1)."""
        self._inputs.append(helper.make_tensor_value_info(name, elem_type, shape))
        return Value(name, tuple(shape))

    def initializer(self, name: str, array: NDArray[Any]) -> Value:
        """Adds a constant tensor under a name of its own."""
        if name in self._initializers:
            raise ValueError(f"initializer {name!r} exists already")
        self._initializers[name] = numpy_helper.from_array(array, name)
        return Value(name, array.shape)

    def parameters(self, name: str, **arrays: NDArray[Any]) -> list[Value]:
        """Adds the constants of a layer: `<name>.weight`, `<name>.bias` and so on."""
        return [self.initializer(f"{name}.{key}", array) for key, array in arrays.items()]

    def integers(self, name: str, numbers: Sequence[int]) -> Value:
        """Adds a constant vector of int64: a shape, axes, sizes."""
        return self.initializer(name, np.array(numbers, np.int64))

    def shared_scalar(self, name: str, number: float) -> Value:
        """Returns the one constant of that name, made at its first use."""
        if name in self._initializers:
            return Value(name, ())
        return self.initializer(name, np.array(number, np.float32))

    def node(
        self,
        op_type: str,
        name: str,
        inputs: Sequence[Value],
        *,
        shape: Sequence[int] | None = None,
        marginal: Marginal | None = None,
        **attributes: Any,
    ) -> Value:
        """Adds a node with one output.

        Args:
            op_type: The ONNX operator.
            name: The node's name; its output is called `<name>_output`.
            inputs: What it reads.
            shape: The output's shape; the first input's unless given.
            marginal: The output's distribution; the first input's unless given.
            **attributes: The operator's attributes.
        """
        output = Value(
            f"{name}_output",
            inputs[0].shape if shape is None else tuple(shape),
            inputs[0].marginal if marginal is None else marginal,
        )
        names = [value.name for value in inputs]
        self._nodes.append(helper.make_node(op_type, names, [output.name], name=name, **attributes))
        return output

    def split(self, name: str, x: Value, sizes: Sequence[int], *, axis: int) -> list[Value]:
        """Adds a Split into parts of the given sizes."""
        is_channels = len(x.marginal.points) == x.shape[axis]
        parts = []
        first = 0
        for index, size in enumerate(sizes):
            shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
            marginal = x.marginal.channels(first, first + size) if is_channels else x.marginal
            parts.append(Value(f"{name}_output_{index}", shape, marginal))
            first += size
        inputs = [x.name, self.integers(f"{name}.sizes", sizes).name]
        outputs = [part.name for part in parts]
        self._nodes.append(helper.make_node("Split", inputs, outputs, name=name, axis=axis))
        return parts

    def reshape(
        self, name: str, x: Value, shape: Sequence[int], marginal: Marginal | None = None
    ) -> Value:
        """Adds a Reshape to a static shape."""
        target = self.integers(f"{name}.shape", shape)
        return self.node("Reshape", name, [x, target], shape=shape, marginal=marginal)

    def transpose(self, name: str, x: Value, perm: Sequence[int]) -> Value:
        """Adds a Transpose."""
        return self.node("Transpose", name, [x], shape=[x.shape[axis] for axis in perm], perm=perm)

    def model(self, outputs: Mapping[str, Value]) -> onnx.ModelProto:
        """Finishes the model.

        Args:
            outputs: The graph outputs, by the name they shall have.
        """
        names = {value.name: name for name, value in outputs.items()}
        for node in self._nodes:
            for field in (node.input, node.output):
                for index, name in enumerate(field):
                    field[index] = names.get(name, name)
        infos = [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, value.shape)
            for name, value in outputs.items()
        ]
        for info in (*self._inputs, *infos) if self._open_batch else ():
            info.type.tensor_type.shape.dim[0].dim_param = "N"
        graph = helper.make_graph(
            self._nodes, self._name, self._inputs, infos, list(self._initializers.values())
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="qdqtune.zoo",
        )
