"""What a kind of dynamic op has to say: how it is written, and how it is found in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import onnx
import onnx_ir as ir

from qdqtune.qdq._encoding import Array, Encoding, ReadEncoding

# What `quantize_dynamic` appends to the names of ops.
_FOREIGN_SUFFIX = "_quant"
_QUANTIZED_SUFFIX = "_quantized"


@dataclass(frozen=True)
class StoredWeight:
    """A quantized weight in a file.

    Attributes:
        value: The stored weight.
        name: The name of the float weight.
        encoding: How it is quantized, by the axes of the float weight.
        is_turned: Whether the last two axes of the float weight are swapped.
    """

    value: ir.Value
    name: str
    encoding: ReadEncoding
    is_turned: bool

    def steps(self) -> ir.TensorProtocol:
        """The quantized values in the layout of the float weight."""
        stored = ir.convenience.get_const_tensor(self.value)
        assert stored is not None
        return (
            ir.Tensor(stored.numpy().swapaxes(-1, -2), stored.dtype) if self.is_turned else stored
        )


@dataclass(frozen=True)
class DynamicOp:
    """A dynamic op as found in a file, ours or another tool's.

    Attributes:
        name: The name of the float op.
        op_type: What it was; of a product, a Gemm if the file says so.
        inputs: What the float op reads.
        attributes: What the float op is told.
        nodes: All nodes of it; the first may serve others as well, the last writes the result.
    """

    name: str
    op_type: str
    inputs: tuple[ir.Value | StoredWeight | None, ...]
    attributes: tuple[ir.Attr, ...]
    nodes: tuple[ir.Node, ...]

    @property
    def weight(self) -> StoredWeight:
        """The weight, or the first of several."""
        return next(each for each in self.inputs if isinstance(each, StoredWeight))


@dataclass(frozen=True)
class Candidate:
    """What is known of a candidate while a dynamic op of it is written.

    Attributes:
        prefix: Returns what the names of new tensors for this one begin with.
        quantized: Tensors that are quantized at run time already; an op adds its own.
    """

    prefix: Callable[[str], str]
    quantized: set[str] = field(default_factory=set)


class DynamicForm(Protocol):
    """One kind of dynamic op.

    Attributes:
        op_types: The float ops that can be written so.
        opsets: Domains of the written nodes beside the standard one, with their versions.
    """

    op_types: frozenset[str]
    opsets: Mapping[str, int]

    def weights(self, node: ir.Node) -> Mapping[int, bool]:
        """Positions of the weights of an op, and whether their last two axes are swapped."""

    def constants(
        self, values: Array, encoding: Encoding
    ) -> Iterator[tuple[str, Array, ir.DataType]]:
        """Yield what is stored of a weight: the end of its name, values and type.

        Args:
            values: The quantized weight, its axes swapped if they are to be.
            encoding: How it is quantized.
        """

    def nodes(
        self,
        node: ir.Node,
        proto: onnx.NodeProto,
        stored: Sequence[Sequence[str]],
        around: Candidate,
    ) -> Iterator[onnx.NodeProto]:
        """Yield the nodes of an op.

        Args:
            node: The op in the float model.
            proto: The op with the inputs and outputs that it has in the candidate.
            stored: Names of the constants of each weight.
            around: The candidate.
        """

    def read(self, node: ir.Node) -> DynamicOp | None:
        """The op whose integer kernel a node of a file is, if it is one."""


def float_op_name(node: ir.Node) -> str:
    """The name of the float op that another tool made this node of."""
    return (node.name or "").removesuffix(_FOREIGN_SUFFIX)


def float_weight_name(weight: ir.Value) -> str:
    """The name of the float weight that another tool made this one of."""
    return (weight.name or "").removesuffix(_QUANTIZED_SUFFIX)
