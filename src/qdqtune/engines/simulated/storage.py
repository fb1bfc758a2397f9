"""The form in which each tensor is stored: float, quantized, or quantized in a Conv's layout."""

from __future__ import annotations

from qdqtune.engines.simulated.fusion import Group
from qdqtune.engines.simulated.low_precision import LowPrecision
from qdqtune.engines.simulated.profiles import Profile
from qdqtune.engines.simulated.wiring import Op, Wiring
from qdqtune.engines.simulated.work import MOVES, POINTWISE
from qdqtune.graph.op_classes import DEQUANTIZE, QUANTIZE

_CONVS = frozenset({"Conv", "ConvTranspose"})
_IMAGE_RANK = 4


class Storage:
    """Determines which Q and DQ are fused into kernels, and which remain as passes over memory.

    Args:
        wiring: The graph.
        low: Its low-precision kernels.
        groups: Its kernels.
        profile: The machine.
    """

    def __init__(
        self, wiring: Wiring, low: LowPrecision, groups: list[Group], profile: Profile
    ) -> None:
        self._wiring = wiring
        self._low = low
        self._profile = profile
        self._last = {group.ops[-1]: group for group in groups}
        self._group = {op: group for group in groups for op in group.ops}
        self._reads = {group.lead: _reads(group) for group in groups}
        self._takes = {group.lead: self._taken(group) for group in groups}
        self._needed: set[str] = set()
        self._needed_by_conv: set[str] = set()
        self._quantized: set[str] = set()
        self._blocked: set[str] = set()
        self._find_needed(groups)
        self._find_quantized()

    def reads(self, group: Group) -> dict[str, Op]:
        """Return the tensors that a kernel reads, each with an op in it that does."""
        return self._reads[group.lead]

    def takes(self, group: Group, tensor: str) -> bool:
        """Whether a kernel reads a tensor in its quantized form."""
        return tensor in self._takes[group.lead]

    def is_quantized(self, tensor: str) -> bool:
        """Whether a float tensor is stored in quantized form."""
        return tensor in self._quantized

    def float_too(self, tensor: str) -> bool:
        """Whether a tensor stored in quantized form is needed as float as well."""
        if tensor in self._wiring.outputs:
            return True
        return any(self._as_float(op, tensor) for op, _ in self._wiring.readers(tensor))

    def absorbed(self, quantize: Op) -> bool:
        """Whether a Q is fused into the kernel that produces its input."""
        tensor = quantize.inputs[0]
        maker = self._wiring.producer.get(tensor)
        return tensor in self._quantized and maker is not None and maker.op_type != DEQUANTIZE

    def reformats_before(self, quantize: Op) -> bool:
        """Whether the result of a Q is converted to the layout of a low-precision Conv."""
        back = (op for op, _ in self._wiring.readers(quantize.outputs[0]))
        wanted = any(not self._needed_by_conv.isdisjoint(op.outputs) for op in back)
        return wanted and self._is_image(quantize.inputs[0])

    def reformats_after(self, tensor: str) -> bool:
        """Whether a tensor is converted from the layout of a low-precision Conv."""
        return tensor in self._blocked and self._is_image(tensor)

    def _taken(self, group: Group) -> set[str]:
        """Return what a kernel reads in quantized form, including a residual if it can."""
        low, lead = self._low, group.lead
        taken = {
            tensor
            for op in group.ops
            if op in low.kernels
            for position, tensor in enumerate(op.inputs)
            if low.reads_quantized(op, position)
        }
        if lead in low.kernels:
            others = self._reads[lead].keys() - set(lead.inputs)
            taken.update(tensor for tensor in others if tensor in low.available)
        return taken

    def _find_needed(self, groups: list[Group]) -> None:
        """Find tensors that low-precision kernels read in quantized form, also moved."""
        for group in groups:
            taken = self._takes[group.lead]
            self._needed.update(taken)
            if group.lead.op_type in _CONVS:
                self._needed_by_conv.update(taken)
        for op in reversed(self._wiring.ops):
            if op.op_type in MOVES:
                for needed in (self._needed, self._needed_by_conv):
                    if not needed.isdisjoint(op.outputs):
                        needed.add(op.inputs[0])

    def _find_quantized(self) -> None:
        for op in self._wiring.ops:
            source = op.inputs[0] if op.inputs else ""
            blocked = source in self._blocked
            results: list[str] = []
            if op in self._last:
                results = self._results(self._last[op])
                blocked = bool(results) and self._is_blocked(self._last[op])
            elif op.op_type == DEQUANTIZE and op.outputs[0] in self._low.available:
                results = list(op.outputs)
            elif op.op_type in MOVES and source in self._quantized:
                useful = not self._needed.isdisjoint(op.outputs)
                if useful or all(tensor in self._low.wanted for tensor in op.outputs):
                    results = list(op.outputs)
            elif op.op_type == QUANTIZE and blocked:
                self._blocked.update(op.outputs)
            self._quantized.update(results)
            if blocked:
                self._blocked.update(results)

    def _results(self, group: Group) -> list[str]:
        """Return what a kernel writes in quantized form."""
        results = [t for op in group.ops for t in op.outputs if t in self._low.wanted]
        profile = self._profile
        if group.lead in self._low.kernels:
            return results if profile.fuses else list(group.ops[-1].outputs)
        if profile.fuses and profile.fuses_pointwise and group.lead.op_type in POINTWISE:
            return [tensor for tensor in results if self._comes_to_use(tensor)]
        return []

    def _is_blocked(self, group: Group) -> bool:
        if group.lead not in self._low.kernels:
            return False
        if group.lead.op_type in _CONVS:
            return True
        return not self._blocked.isdisjoint(self._takes[group.lead])

    def _comes_to_use(self, tensor: str) -> bool:
        """Whether a low-precision kernel reads the quantized form of a tensor."""
        for op, _ in self._wiring.readers(tensor):
            if op.op_type == QUANTIZE:
                back = (reader for reader, _ in self._wiring.readers(op.outputs[0]))
                if any(not self._needed.isdisjoint(reader.outputs) for reader in back):
                    return True
            elif any(map(self._comes_to_use, op.outputs)):
                return True
        return False

    def _as_float(self, op: Op, tensor: str) -> bool:
        """Whether an op reads a tensor as float although it is stored in quantized form."""
        if op in self._group:
            return not self.takes(self._group[op], tensor)
        if op.op_type == QUANTIZE:
            return not self.absorbed(op)
        if op.op_type in MOVES:
            return op.inputs[0] != tensor or not self._quantized.issuperset(op.outputs)
        return False  # DQ has no float input, and ops that cost nothing only look at shapes

    def _is_image(self, tensor: str) -> bool:
        if not self._profile.has_layouts:
            return False
        shape = self._wiring.shape(tensor)
        return len(shape) >= _IMAGE_RANK and shape[1] > 1 and max(shape[2:]) > 1


def _reads(group: Group) -> dict[str, Op]:
    made = {tensor for op in group.ops for tensor in op.outputs}
    return {t: op for op in group.ops for t in op.inputs if t and t not in made}
