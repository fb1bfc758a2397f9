"""Report of a model optimization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtune.records.result import Result


@dataclass(frozen=True)
class OptimizeCounts:
    """Node and weight counts before and after; control-flow bodies and functions are included.

    Attributes:
        before: Number of nodes of each op type before; Constant nodes don't count.
        after: Number of nodes of each op type after.
        no_ops: Removed nodes that passed their input on unchanged.
        duplicate_nodes: Removed nodes that computed the same as another one.
        duplicate_weights: Removed weights with the same values as another one.
        unused_functions: Removed functions that were never called.
        qdq: Number of quantization ops, which does not change.
    """

    before: Mapping[str, int]
    after: Mapping[str, int]
    no_ops: int = 0
    duplicate_nodes: int = 0
    duplicate_weights: int = 0
    unused_functions: int = 0
    qdq: int = 0

    @property
    def folded(self) -> int:
        """Nodes that were folded, absorbed (BatchNorms, biases), or removed as unused."""
        gone = sum(self.before.values()) - sum(self.after.values())
        return gone - self.no_ops - self.duplicate_nodes

    @property
    def changed(self) -> Mapping[str, tuple[int, int]]:
        """Op types whose number changed, with both numbers."""
        found = {
            op_type: (self.before.get(op_type, 0), self.after.get(op_type, 0))
            for op_type in sorted({*self.before, *self.after})
        }
        return {op_type: counts for op_type, counts in found.items() if counts[0] != counts[1]}


@dataclass(frozen=True, repr=False)
class OptimizeReport(Result):
    """Report of an optimized model.

    Attributes:
        output: The file written.
        counts: What changed.
        bytes_before: Size of the weights before.
        bytes_after: Size of the weights after.
    """

    output: Path
    counts: OptimizeCounts
    bytes_before: int
    bytes_after: int

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        before, after = sum(self.counts.before.values()), sum(self.counts.after.values())
        return f"{before} nodes before, {after} now, output {self.output}"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        counts = self.counts
        return {
            "kind": "optimization",
            "schema": 1,
            "output": str(self.output),
            "nodes_before": dict(sorted(counts.before.items())),
            "nodes_after": dict(sorted(counts.after.items())),
            "folded": counts.folded,
            "no_ops": counts.no_ops,
            "duplicate_nodes": counts.duplicate_nodes,
            "duplicate_weights": counts.duplicate_weights,
            "unused_functions": counts.unused_functions,
            "qdq_nodes": counts.qdq,
            "weight_bytes_before": self.bytes_before,
            "weight_bytes_after": self.bytes_after,
        }
