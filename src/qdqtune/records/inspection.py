"""What can be seen in a model without running it: its regions, and what could be quantized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from qdqtune.records.result import Result

SCHEMA = 1


@dataclass(frozen=True)
class RegionRecord:
    """A region of the tree.

    Attributes:
        id: Its number.
        type: ``LEAF``, ``COMPOSITE`` or ``ROOT``.
        level: Its depth; regions without a parent are at 0.
        parent: The region that it lies in, if it does.
        children: The regions that lie in it.
        nodes: Names of its own nodes, in the graph's order.
        op_types: Their op types.
        size: How many nodes it has, regions below included.
        inputs: Tensors that it reads and doesn't make, constants left out.
        outputs: Tensors that others see.
        pattern: Number of its pattern; None if it has children.
        quantizable: Whether an input of a node in it, or below it, is an insertion point.
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
    """What some regions without children have in common.

    Attributes:
        number: Its number, in order of appearance.
        signature: Its structure as text.
        hash: The same, short.
        regions: How many regions have it.
        op_types: Op types of its nodes, in canonical order.
        points: How many insertion points it has.
        variants: How many patterns it is if types and shapes count; 1 if they do already.
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
    """Where a tensor is made or read, and whether a Q/DQ pair can stand there.

    Attributes:
        node: The node; empty for the graph's own input or output.
        op_type: Its op type.
        position: Which of its outputs, or inputs.
        reason: Why it is no insertion point; empty if it is one.
        dialect_reason: Why the dialect can't quantize the node; empty if it can, or if there is
            nothing to say.
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
    """Where a tensor could be quantized, and why not elsewhere.

    Attributes:
        tensor: Its name.
        dtype: Its element type, if known.
        dims: Its sizes, None for those not known; None if the rank isn't.
        constant: Whether it is one.
        maker: Where it is made.
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
    """A model as the search sees it.

    Attributes:
        model: The file.
        dialect: Whose kernels were looked for.
        quant_type: For which type.
        nodes: How many ops it has, folded.
        pairs: How many DequantizeLinear were taken out of it first.
        by_shape: Whether types and shapes are part of a pattern.
        regions: The tree, each region before its children.
        patterns: Of the regions without children, the most frequent first.
        quantizable: By op type: how many ops can be quantized, and how many there are.
        fused: How many ops become part of the one before them.
        left_float: By reason: the ops that can't be quantized.
        why: What was asked about a tensor.
        converted_from: The half float type of the file, if the model is looked at in float32 for
            want of integer kernels for it.
    """

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
        """How many nodes each region without children has."""
        return [region.size for region in self.regions if not region.children]

    @property
    def covered(self) -> int:
        """How many ops are in a region."""
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
        value = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            "kind": "inspection",
            "schema": SCHEMA,
            **value,
            "regions": [asdict(region) for region in self.regions],
            "patterns": [asdict(pattern) for pattern in self.patterns],
            "quantizable": {
                op_type: {"can": can, "all": all_}
                for op_type, (can, all_) in self.quantizable.items()
            },
            "left_float": {reason: list(nodes) for reason, nodes in self.left_float.items()},
            "why": asdict(self.why) if self.why is not None else None,
        }
