"""Fuses ops into kernels.

A plan doesn't depend on the order and the names of the nodes: where two ops could both fuse a third
one, the one further down the graph does, then the one with more work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from qdqtune.engines.simulated.low_precision import LowPrecision
from qdqtune.engines.simulated.profiles import Profile
from qdqtune.engines.simulated.wiring import Op, Wiring
from qdqtune.engines.simulated.work import MOVES, POINTWISE, REDUCTIONS, is_free, macs
from qdqtune.graph.op_classes import DEQUANTIZE, QUANTIZE, WEIGHTED_OPS

_ROW_OPS = POINTWISE | REDUCTIONS
# Longer than the chain of any activation or normalization; keeps the search linear.
_LONGEST_CHAIN = 24


@dataclass(frozen=True)
class Group:
    """Ops that run as one kernel.

    Attributes:
        ops: In the file's order.
        lead: The op that the kernel is named after, and whose precision it has.
    """

    ops: tuple[Op, ...]
    lead: Op


def group_ops(wiring: Wiring, low: LowPrecision, profile: Profile) -> list[Group]:
    """Groups all ops except Q, DQ, passthrough ops, and ops that cost nothing."""
    return _Fuser(wiring, low, profile).groups()


class _Fuser:
    def __init__(self, wiring: Wiring, low: LowPrecision, profile: Profile) -> None:
        self._wiring = wiring
        self._low = low
        self._profile = profile
        outside = MOVES | {QUANTIZE, DEQUANTIZE}
        self._left = {
            op: None for op in wiring.ops if op.op_type not in outside and not is_free(wiring, op)
        }
        self._groups: list[Group] = []

    def groups(self) -> list[Group]:
        """Finds the groups, the most specific ones first."""
        if self._profile.fuses:
            self._take_normalizations()
            if self._profile.fuses_pointwise:
                self._take_clusters()
            else:
                self._take_known_patterns()
        else:
            self._take_units()
        for op in list(self._left):
            self._take([op], op)
        return self._groups

    def _take(self, ops: Iterable[Op], lead: Op) -> None:
        members = sorted(ops, key=lambda op: op.position)
        for op in members:
            del self._left[op]
        self._groups.append(Group(tuple(members), lead))

    def _weighted_ops(self) -> list[Op]:
        """Return the remaining weighted ops, in the order in which they may fuse others."""
        weighted = [op for op in self._left if op.op_type in WEIGHTED_OPS]
        return sorted(weighted, key=self._rank, reverse=True)

    def _rank(self, op: Op) -> tuple[float, ...]:
        wiring = self._wiring
        shape = wiring.shape(op.inputs[1])
        return (wiring.depth[op], macs(wiring, op), op in self._low.kernels, *shape)

    # Normalizations and activations that the exporter has decomposed.

    def _take_normalizations(self) -> None:
        """Fuses chains up to the first tensor that a reduction in them reads."""
        if not any(op.op_type in REDUCTIONS for op in self._left):
            return
        for end in self._ends():
            best: list[Op] = []
            seen = 0
            for chain in self._chains(end, _ROW_OPS) if end in self._left else ():
                reduces = any(op.op_type in REDUCTIONS for op in chain[seen:])
                if best and not reduces:
                    break
                best = chain if reduces else best
                seen = len(chain)
            if best:
                self._take(best, end)

    def _take_activations(self) -> None:
        for end in self._ends():
            if end in self._left:
                *_, longest = [[end], *self._chains(end, POINTWISE)]
                self._take(longest, end)

    def _ends(self) -> list[Op]:
        """Return ops that may end a chain, deepest first, as it may include others."""
        ends = [op for op in self._left if op.op_type in POINTWISE and op not in self._low.kernels]
        return sorted(ends, key=lambda op: -self._wiring.depth[op])

    def _chains(self, end: Op, kinds: frozenset[str]) -> Iterator[list[Op]]:
        """Yield ever longer chains that compute a result from a single tensor of its size."""
        chain = [end]
        sources = self._sources(end)
        while len(chain) < _LONGEST_CHAIN:
            names = sorted(sources)
            if len(names) == 1 and self._same_size(names[0], end.outputs[0]):
                yield list(chain)
            makers = [self._wiring.producer.get(name) for name in names]
            fitting = [op for op in makers if op is not None and self._joins(op, chain, kinds)]
            if not fitting:
                return
            deepest = max(fitting, key=lambda op: self._wiring.depth[op])
            chain.append(deepest)
            sources = (sources - set(deepest.outputs)) | self._sources(deepest)

    def _joins(self, op: Op, chain: list[Op], kinds: frozenset[str]) -> bool:
        if op not in self._left or op.op_type not in kinds or op in self._low.kernels:
            return False
        return not self._wiring.leaves(op) and all(
            reader in chain for reader in self._wiring.readers_of(op)
        )

    def _sources(self, op: Op) -> set[str]:
        return {tensor for tensor in op.inputs if tensor} - self._wiring.constant

    def _take_units(self) -> None:
        """Fuses only ops that are quantized as one with the op before them, also in float."""
        for op in list(self._left):
            if op in self._left and self._low.has_kernel(op):
                activation = self._low.fused_activation(op)
                taken = [activation] if activation in self._left and activation is not None else []
                self._take([op, *taken], op)

    # Fusion on a machine that knows a list of patterns.

    def _take_known_patterns(self) -> None:
        for op in [*self._weighted_ops(), *self._low.kernels]:
            if op in self._left:
                self._take([op, *self._epilogue(op)], op)
        self._take_activations()

    def _epilogue(self, op: Op) -> list[Op]:
        if op in self._low.kernels:
            activation = self._low.fused_activation(op)
            return [activation] if activation in self._left and activation is not None else []
        taken: list[Op] = []
        for matches in (_is_batchnorm, self._is_bias, self._is_residual, self._is_activation):
            tensor = (taken[-1] if taken else op).outputs[0]
            reader = self._wiring.only_reader(tensor)
            if reader in self._left and reader is not None and matches(reader, tensor):
                taken.append(reader)
        return taken

    def _is_bias(self, op: Op, tensor: str) -> bool:
        return op.op_type == "Add" and _others(op, tensor) <= self._wiring.constant

    def _is_residual(self, op: Op, tensor: str) -> bool:
        if op.op_type != "Add" or op in self._low.kernels:
            return False
        return all(self._same_size(other, tensor) for other in _others(op, tensor))

    def _is_activation(self, op: Op, tensor: str) -> bool:
        if op in self._low.kernels or op.inputs[0] != tensor:
            return False
        return op.op_type in self._profile.epilogues

    # Fusion of any pointwise ops, on a machine that generates its kernels.

    def _take_clusters(self) -> None:
        """Fuses pointwise ops whose results all lead to one end, with a weighted op before them."""
        end_of: dict[Op, Op] = {}
        for op in reversed(self._left):
            if op.op_type in POINTWISE:
                end_of[op] = self._end(op, end_of) or op
        clusters: dict[Op, list[Op]] = {}
        for op, end in end_of.items():
            clusters.setdefault(end, []).append(op)
        for op in self._weighted_ops():
            reached = self._end(op, end_of)
            if reached is not None and reached in clusters:
                self._take([op, *clusters.pop(reached)], op)
        for end, members in clusters.items():
            self._take(members, end)

    def _end(self, op: Op, end_of: dict[Op, Op]) -> Op | None:
        """Return the end of the cluster that reads all results of an op; None if others do, too."""
        if self._wiring.leaves(op):
            return None
        ends = {end_of.get(reader) for reader in self._wiring.readers_of(op)}
        end = ends.pop() if len(ends) == 1 else None
        if end is None or not self._same_size(op.outputs[0], end.outputs[0]):
            return None
        return end

    def _same_size(self, one: str, other: str) -> bool:
        return self._wiring.size(one) == self._wiring.size(other)


def _is_batchnorm(op: Op, tensor: str) -> bool:
    return op.op_type == "BatchNormalization" and op.inputs[0] == tensor


def _others(op: Op, tensor: str) -> set[str]:
    return {name for name in op.inputs if name and name != tensor}
