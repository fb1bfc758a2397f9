"""Static view of a model: its regions, and which tensors can be quantized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from qdqtune.records._results import Result


@dataclass(frozen=True)
class RegionRecord:
    """A region of the tree.

    Attributes:
        id: Its number.
        type: ``LEAF``, ``COMPOSITE`` or ``ROOT``.
        level: Its depth; regions without a parent are at 0.
        parent: The enclosing region, if any.
        children: The regions inside it.
        nodes: Names of its own nodes, in graph order.
        op_types: Their op types.
        size: Number of nodes, including those of its descendants.
        inputs: Tensors that it reads but does not produce, except constants.
        outputs: Tensors that are read outside it.
        pattern: Number of its pattern; None if it has children.
        quantizable: Whether it or a descendant has a node with an insertion point.
    """

    id: int
    type: str
    level: int
    parent: int | None
    children: tuple[int, ...]
    nodes: tuple[str, ...]
    op_types: tuple[str, ...]
    size: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    pattern: int | None
    quantizable: bool


@dataclass(frozen=True)
class PatternRecord:
    """The common structure of several leaf regions.

    Attributes:
        number: Its number, in order of appearance.
        signature: Its structure as text.
        hash: Short hash of the signature.
        regions: Number of regions that match it.
        op_types: Op types of its nodes, in canonical order.
        points: Number of insertion points.
        variants: Number of patterns it splits into if types and shapes count; 1 if they already do.
    """

    number: int
    signature: str
    hash: str
    regions: int
    op_types: tuple[str, ...]
    points: int
    variants: int


@dataclass(frozen=True)
class TensorPlace:
    """A producer or reader of a tensor, and whether a Q/DQ pair can be inserted there.

    Attributes:
        node: The node; empty for the graph's own input or output.
        op_type: Its op type.
        position: Index among its outputs or inputs.
        reason: Why it is not an insertion point; empty if it is.
        dialect_reason: Why the dialect can't quantize the node; empty if it can, or if no reason
            applies.
        with_op: Whether the dialect quantizes the tensor here when it quantizes the node.
    """

    node: str
    op_type: str
    position: int
    reason: str
    dialect_reason: str = ""
    with_op: bool = False

    @property
    def is_point(self) -> bool:
        """Whether it is an insertion point."""
        return not self.reason


@dataclass(frozen=True)
class TensorAnswer:
    """The places where a tensor can be quantized, and why it can't be elsewhere.

    Attributes:
        tensor: Its name.
        dtype: Its element type, if known.
        dims: Its sizes, None for those not known; None if the rank isn't.
        constant: Whether it is a constant.
        maker: Where it is produced.
        readers: Where it is read.
    """

    tensor: str
    dtype: str
    dims: tuple[int | None, ...] | None
    constant: bool
    maker: TensorPlace
    readers: tuple[TensorPlace, ...]


@dataclass(frozen=True, repr=False)
class Inspection(Result):
    """Regions, patterns and insertion points that the search would use for a model.

    Attributes:
        model: The file.
        dialect: The dialect whose kernels were considered.
        quant_type: The quantized type that was considered.
        nodes: Number of ops after folding.
        pairs: Number of DequantizeLinear nodes that were removed first.
        by_shape: Whether types and shapes are part of a pattern.
        regions: The tree, each region before its children.
        patterns: Patterns of the leaf regions, the most frequent first.
        quantizable: By op type: the number of quantizable ops, and of all ops.
        fused: Number of ops that are fused into the op before them.
        left_float: The ops that can't be quantized, by reason.
        why: The answer to a query about a tensor.
        converted_from: The half-precision type of the file, if the model is inspected in float32
            because there are no integer kernels for that type.
    """

    KIND: ClassVar[str] = "inspection"

    model: str
    dialect: str
    quant_type: str
    nodes: int
    pairs: int
    by_shape: bool
    regions: tuple[RegionRecord, ...]
    patterns: tuple[PatternRecord, ...]
    quantizable: Mapping[str, tuple[int, int]]
    fused: int
    left_float: Mapping[str, tuple[str, ...]]
    why: TensorAnswer | None = None
    converted_from: str = ""

    @property
    def leaf_sizes(self) -> list[int]:
        """Number of nodes in each leaf region."""
        return [region.size for region in self.regions if not region.children]

    @property
    def covered(self) -> int:
        """Number of ops that are in a region."""
        return sum(len(region.nodes) for region in self.regions)

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        can = sum(quantizable for quantizable, _ in self.quantizable.values())
        return (
            f"{self.model}: {can} of {self.nodes} ops quantizable to {self.quant_type} in "
            f"{self.dialect}, {len(self.regions)} regions, {len(self.patterns)} patterns"
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        counts = {op_type: {"can": can, "all": n} for op_type, (can, n) in self.quantizable.items()}
        return {**super().to_dict(), "quantizable": counts}
