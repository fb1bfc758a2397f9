"""What optimizing a model did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtune.records.result import Result


@dataclass(frozen=True)
class OptimizeCounts:
    """What there was, and what is left of it; bodies and functions are counted with the rest.

    Attributes:
        before: How many nodes of each op type there were; Constant nodes don't count.
        after: How many there are.
        no_ops: Nodes that handed on what they got, and are gone.
        duplicate_nodes: Nodes that computed what another one computes, and are gone.
        duplicate_weights: Weights that had the values of another one, and are gone.
        unused_functions: Functions that nobody called, and are gone.
        qdq: How many quantization ops there are, as many as there were.
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
        """Nodes that were computed, absorbed (BatchNorms, biases), or read by nobody."""
        gone = sum(self.before.values()) - sum(self.after.values())
        return gone - self.no_ops - self.duplicate_nodes

    @property
    def changed(self) -> Mapping[str, tuple[int, int]]:
        """Op types of which there are not as many as before, with both numbers."""
        found = {
            op_type: (self.before.get(op_type, 0), self.after.get(op_type, 0))
            for op_type in sorted({*self.before, *self.after})
        }
        return {op_type: counts for op_type, counts in found.items() if counts[0] != counts[1]}


@dataclass(frozen=True, repr=False)
class OptimizeReport(Result):
    """A model that was optimized.

    Attributes:
        output: The file written.
        counts: What was done.
        bytes_before: Size of the weights.
        bytes_after: Size of them now.
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
