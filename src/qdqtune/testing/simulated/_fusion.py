"""Fuses ops into kernels, and determines the form in which each tensor is stored."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx_ir as ir

from qdqtune.graph._op_classes import (
    DEQUANTIZE,
    DYNAMIC_QUANTIZE,
    FLOAT_TYPES,
    QUANTIZE,
    WEIGHTED_OPS,
)
from qdqtune.qdq._dialect import OpRule, Output
from qdqtune.qdq.dialects import dialect_named
from qdqtune.testing.simulated._machine import Profile
from qdqtune.testing.simulated._wiring import (
    CONVS,
    INTEGER_PRODUCT,
    MOVES,
    POINTWISE,
    REDUCTIONS,
    Op,
    Wiring,
    is_free,
    macs,
)

_ROW_OPS = POINTWISE | REDUCTIONS
_IMAGE_RANK = 4
# Longer than the chain of any activation or normalization; keeps the search linear.
_LONGEST_CHAIN = 24


class Form(NamedTuple):
    """How a tensor is stored when it is quantized.

    Attributes:
        dtype: The type.
        scale: Values, or else names, of scale and zero point.
    """

    dtype: ir.DataType
    scale: tuple[str | bytes, ...]


class LowPrecision:
    """The low-precision kernels of a graph.

    An op has one if its inputs come from DQ and, where its dialect's rule requires it, all readers
    of its result are Q. Passthrough ops in between don't matter: Q can be moved up through them, DQ
    down.

    Args:
        wiring: The graph.
        profile: The machine.

    Attributes:
        available: Tensors available in quantized form, with the type: results of DQ, including
            moved ones.
        wanted: Tensors read only by Q of one form, including moved ones, with that form.
        kernels: Ops that compute in low precision, with the type of their activations.
    """

    def __init__(self, wiring: Wiring, profile: Profile) -> None:
        self._wiring = wiring
        self._profile = profile
        self._dialect = dialect_named(profile.dialect)
        self.available: dict[str, ir.DataType] = {}
        self.wanted: dict[str, Form] = {}
        self._find_available()
        self._find_wanted()
        self.kernels: dict[Op, ir.DataType] = {}
        for op in wiring.ops:
            if (dtype := self._kernel_type(op)) is not None:
                self.kernels[op] = dtype
        if not profile.fuses:  # their results are quantized, whatever reads them
            self.available.update((self._result(op), dtype) for op, dtype in self.kernels.items())

    def has_kernel(self, op: Op) -> bool:
        """Whether such ops have a low-precision kernel that computes something."""
        return op.op_type in self._dialect.rules and op.op_type not in MOVES

    def fused_activation(self, op: Op) -> Op | None:
        """Return the activation that is fused into a low-precision kernel."""
        reader = self._wiring.only_reader(op.outputs[0]) if len(op.outputs) == 1 else None
        if reader is None or reader.op_type not in self._dialect.fused_activations:
            return None
        return reader

    def reads_quantized(self, op: Op, position: int) -> bool:
        """Whether a low-precision kernel reads this input in its stored form."""
        if op not in self.kernels or op.inputs[position] not in self.available:
            return False
        rule = self._dialect.rules[op.op_type]
        return rule.inputs is None or position in rule.inputs

    def _find_available(self) -> None:
        for op in self._wiring.ops:
            source = op.inputs[0] if op.inputs else ""
            dtype = self.available.get(source) if op.op_type in MOVES else None
            if op.op_type == DEQUANTIZE and source:
                stored = self._wiring.dtype(source)
                if stored not in FLOAT_TYPES and stored in self._profile.units:
                    dtype = stored
            if dtype is not None:
                self.available.update(dict.fromkeys(op.outputs, dtype))

    def _find_wanted(self) -> None:
        for op in reversed(self._wiring.ops):
            for tensor in op.outputs:
                forms = {self._wanted_form(*reader) for reader in self._wiring.readers(tensor)}
                form = forms.pop() if len(forms) == 1 else None
                if form is not None and tensor not in self._wiring.outputs:
                    self.wanted[tensor] = form

    def _wanted_form(self, op: Op, position: int) -> Form | None:
        """Return the form in which a reader would read a tensor, if it is not float."""
        if position != 0:
            return None
        if op.op_type == QUANTIZE:
            dtype = self._wiring.dtype(op.outputs[0])
            scale = tuple(map(self._wiring.value_of, op.inputs[1:]))
            return Form(dtype, scale) if dtype in self._profile.units else None
        if op.op_type in MOVES:
            forms = {self.wanted.get(tensor) for tensor in op.outputs}
            return forms.pop() if len(forms) == 1 else None
        return None

    def _kernel_type(self, op: Op) -> ir.DataType | None:
        rule = self._dialect.rules.get(op.op_type)
        if rule is None or not self.has_kernel(op) or is_free(self._wiring, op):
            return None
        positions = range(len(op.inputs)) if rule.inputs is None else rule.inputs
        if any(p >= len(op.inputs) for p in positions):
            return None
        types = [self._operand_type(op.inputs[p], rule) for p in positions]
        dtype = types[0]
        if dtype is None or None in types or not self._exists(op, rule, dtype):
            return None
        if rule.output is Output.REQUIRED and self._result(op) not in self.wanted:
            return None
        return dtype

    def _operand_type(self, tensor: str, rule: OpRule) -> ir.DataType | None:
        """Return the type in which a kernel can read an operand, if it is not float."""
        if tensor in self.available or self._profile.fuses or not rule.joins_producer:
            return self.available.get(tensor)
        maker = self._wiring.producer.get(tensor)
        alone = self._wiring.only_reader(tensor) is not None
        return self.kernels.get(maker) if maker is not None and alone else None

    def _exists(self, op: Op, rule: OpRule, dtype: ir.DataType) -> bool:
        if self._wiring.size(op.inputs[0]) < rule.least_elements:
            return False
        formats = self._dialect.formats.values()
        most_taps = [f.most_taps for f in formats if f.activation.dtype == dtype and f.most_taps]
        if op.op_type != "Conv" or not most_taps:
            return True
        return math.prod(self._wiring.shape(op.inputs[1])[2:]) <= max(most_taps)

    def _result(self, op: Op) -> str:
        return (self.fused_activation(op) or op).outputs[0]


@dataclass(frozen=True)
class Group:
    """Ops that run as one kernel.

    Attributes:
        ops: In the file's order.
        lead: The op that the kernel is named after, and whose precision it has.
    """

    ops: tuple[Op, ...]
    lead: Op

    @functools.cached_property
    def reads(self) -> dict[str, Op]:
        """The tensors that the kernel reads, each with an op in it that does."""
        made = {tensor for op in self.ops for tensor in op.outputs}
        return {t: op for op in self.ops for t in op.inputs if t and t not in made}


class Fuser:
    """Groups all ops except Q, DQ, passthrough ops, and ops that cost nothing.

    Args:
        wiring: The graph.
        low: Its low-precision kernels.
        profile: The machine.

    Attributes:
        groups: The kernels, the most specific ones first.
    """

    def __init__(self, wiring: Wiring, low: LowPrecision, profile: Profile) -> None:
        self._wiring = wiring
        self._low = low
        self._profile = profile
        outside = MOVES | {QUANTIZE, DEQUANTIZE}
        self._left = {
            op: None for op in wiring.ops if op.op_type not in outside and not is_free(wiring, op)
        }
        self.groups: list[Group] = []
        if profile.dynamic:
            self._take_dynamic()
        if not profile.fuses:
            self._take_units()
        else:
            self._take_normalizations()
            if profile.fuses_pointwise:
                self._take_clusters()
            else:
                self._take_known_patterns()
        for op in list(self._left):
            self._take([op], op)

    def _take(self, ops: Iterable[Op], lead: Op) -> None:
        members = sorted(ops, key=lambda op: op.position)
        for op in members:
            del self._left[op]
        self.groups.append(Group(tuple(members), lead))

    def _weighted_ops(self) -> list[Op]:
        """Return the remaining weighted ops, in the order in which they may fuse others."""
        wiring = self._wiring

        def rank(op: Op) -> tuple[float, ...]:
            shape = wiring.shape(op.inputs[1])
            return (wiring.depth[op], macs(wiring, op), op in self._low.kernels, *shape)

        weighted = [op for op in self._left if op.op_type in WEIGHTED_OPS]
        return sorted(weighted, key=rank, reverse=True)

    # Products whose input is quantized at run time.

    def _take_dynamic(self) -> None:
        """Fuses each with what scales its result, and with a bias."""
        for op in [each for each in self._left if each.op_type == INTEGER_PRODUCT]:
            quantizer = self._wiring.producer.get(op.inputs[0])
            cast = self._wiring.only_reader(op.outputs[0])
            scaled = self._wiring.only_reader(cast.outputs[0]) if cast is not None else None
            if quantizer is None or cast is None or scaled is None:
                continue
            factors = [self._wiring.producer.get(name) for name in scaled.inputs]
            scales = next((each for each in factors if each not in (None, cast)), None)
            kinds = [each.op_type if each else "" for each in (quantizer, cast, scaled, scales)]
            if scales is None or kinds != [DYNAMIC_QUANTIZE, "Cast", "Mul", "Mul"]:
                continue
            bias = self._wiring.only_reader(scaled.outputs[0])
            taken = [op, cast, scales, scaled]
            if bias in self._left and self._is_bias(bias, scaled.outputs[0]):
                taken.append(bias)
            if all(each in self._left for each in taken):
                self._take(taken, op)

    # Normalizations and activations that the exporter decomposed.

    def _take_normalizations(self) -> None:
        """Fuses chains up to the first tensor that a reduction in them reads."""
        if not any(op.op_type in REDUCTIONS for op in self._left):
            return
        for end in self._ends():
            best: list[Op] = []
            seen = 0
            for chain in self._chains(end, _ROW_OPS):
                reduces = any(op.op_type in REDUCTIONS for op in chain[seen:])
                if best and not reduces:
                    break
                best = chain if reduces else best
                seen = len(chain)
            if best:
                self._take(best, end)

    def _take_activations(self) -> None:
        for end in self._ends():
            *_, longest = [[end], *self._chains(end, POINTWISE)]
            self._take(longest, end)

    def _ends(self) -> Iterator[Op]:
        """Yield ops that may end a chain, deepest first, since a chain may include others."""
        ends = [op for op in self._left if op.op_type in POINTWISE and op not in self._low.kernels]
        for op in sorted(ends, key=lambda op: -self._wiring.depth[op]):
            if op in self._left:
                yield op

    def _chains(self, end: Op, kinds: frozenset[str]) -> Iterator[list[Op]]:
        """Yield increasingly long chains that compute a result from a single tensor of its size."""
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
        """Fuses only ops that are quantized together with the op before them, even in float."""
        for op in list(self._left):
            if op in self._left and self._low.has_kernel(op):
                self._take([op, *self._activation(op)], op)

    def _activation(self, op: Op) -> list[Op]:
        """Return the activation that the dialect quantizes with an op, if it is left."""
        activation = self._low.fused_activation(op)
        return [activation] if activation is not None and activation in self._left else []

    # Fusion on a machine with a fixed list of patterns.

    def _take_known_patterns(self) -> None:
        for op in [*self._weighted_ops(), *self._low.kernels]:
            if op in self._left:
                self._take([op, *self._epilogue(op)], op)
        self._take_activations()

    def _epilogue(self, op: Op) -> list[Op]:
        if op in self._low.kernels:
            return self._activation(op)
        taken: list[Op] = []
        for matches in (self._is_batchnorm, self._is_bias, self._is_residual, self._is_activation):
            tensor = (taken[-1] if taken else op).outputs[0]
            reader = self._wiring.only_reader(tensor)
            if reader is not None and reader in self._left and matches(reader, tensor):
                taken.append(reader)
        return taken

    def _is_batchnorm(self, op: Op, tensor: str) -> bool:
        return op.op_type == "BatchNormalization" and op.inputs[0] == tensor

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


def _others(op: Op, tensor: str) -> set[str]:
    return {name for name in op.inputs if name and name != tensor}


class Storage:
    """Determines which Q and DQ are fused into kernels, and which remain as passes over memory.

    Args:
        wiring: The graph.
        low: Its low-precision kernels.
        groups: Its kernels.
        profile: The machine.

    Attributes:
        takes: What each kernel reads in quantized form, by its lead; a residual, too, if it can.
        quantized: Float tensors that are stored in quantized form.
    """

    def __init__(
        self, wiring: Wiring, low: LowPrecision, groups: list[Group], profile: Profile
    ) -> None:
        self._wiring = wiring
        self._low = low
        self._profile = profile
        self._lead = {op: group.lead for group in groups for op in group.ops}
        self.takes = {group.lead: self._taken(group) for group in groups}
        # Tensors that low-precision kernels read in quantized form, including moved ones.
        self._needed, self._needed_by_conv = self._find_needed()
        self.quantized: set[str] = set()
        self._blocked: set[str] = set()
        self._find_quantized({group.ops[-1]: group for group in groups})

    def float_too(self, tensor: str) -> bool:
        """Whether a tensor stored in quantized form is needed as float as well."""
        if tensor in self._wiring.outputs:
            return True
        return any(self._as_float(op, tensor) for op, _ in self._wiring.readers(tensor))

    def absorbed(self, quantize: Op) -> bool:
        """Whether a Q is fused into the kernel that produces its input."""
        tensor = quantize.inputs[0]
        maker = self._wiring.producer.get(tensor)
        return tensor in self.quantized and maker is not None and maker.op_type != DEQUANTIZE

    def reformats_before(self, quantize: Op) -> bool:
        """Whether the result of a Q is converted to the layout of a low-precision Conv."""
        wanted = self._dequantized_in(quantize, self._needed_by_conv)
        return wanted and self._is_image(quantize.inputs[0])

    def reformats_after(self, tensor: str) -> bool:
        """Whether a tensor is converted from the layout of a low-precision Conv."""
        return tensor in self._blocked and self._is_image(tensor)

    def _taken(self, group: Group) -> set[str]:
        low, lead = self._low, group.lead
        taken = {
            tensor
            for op in group.ops
            for position, tensor in enumerate(op.inputs)
            if low.reads_quantized(op, position)
        }
        if lead in low.kernels:
            taken |= (group.reads.keys() - set(lead.inputs)) & low.available.keys()
        return taken

    def _find_needed(self) -> tuple[set[str], set[str]]:
        """Return the tensors that low-precision kernels read quantized, and those that Convs do."""
        everything = set[str]().union(*self.takes.values())
        convs = [taken for lead, taken in self.takes.items() if lead.op_type in CONVS]
        by_conv = set[str]().union(*convs)
        for op in reversed(self._wiring.ops):
            if op.op_type in MOVES:
                for needed in (everything, by_conv):
                    if not needed.isdisjoint(op.outputs):
                        needed.add(op.inputs[0])
        return everything, by_conv

    def _find_quantized(self, last: dict[Op, Group]) -> None:
        for op in self._wiring.ops:
            source = op.inputs[0] if op.inputs else ""
            blocked = source in self._blocked
            results: Sequence[str] = ()
            if op in last:
                results = self._results(last[op])
                blocked = self._is_blocked(last[op].lead)
            elif op.op_type == DEQUANTIZE and op.outputs[0] in self._low.available:
                results = op.outputs
            elif op.op_type in MOVES and source in self.quantized:
                useful = not self._needed.isdisjoint(op.outputs)
                if useful or all(tensor in self._low.wanted for tensor in op.outputs):
                    results = op.outputs
            elif op.op_type == QUANTIZE and blocked:
                self._blocked.update(op.outputs)
            self.quantized.update(results)
            if blocked:
                self._blocked.update(results)

    def _results(self, group: Group) -> Sequence[str]:
        """Return the tensors that a kernel writes in quantized form."""
        results = [t for op in group.ops for t in op.outputs if t in self._low.wanted]
        profile = self._profile
        if group.lead in self._low.kernels:
            return results if profile.fuses else group.ops[-1].outputs
        if profile.fuses and profile.fuses_pointwise and group.lead.op_type in POINTWISE:
            return [tensor for tensor in results if self._comes_to_use(tensor)]
        return ()

    def _is_blocked(self, lead: Op) -> bool:
        if lead not in self._low.kernels:
            return False
        return lead.op_type in CONVS or not self._blocked.isdisjoint(self.takes[lead])

    def _comes_to_use(self, tensor: str) -> bool:
        """Whether a low-precision kernel reads the quantized form of a tensor."""
        return any(
            self._dequantized_in(op, self._needed)
            if op.op_type == QUANTIZE
            else any(map(self._comes_to_use, op.outputs))
            for op, _ in self._wiring.readers(tensor)
        )

    def _dequantized_in(self, quantize: Op, tensors: set[str]) -> bool:
        """Whether the result of a Q, once dequantized, is among some tensors."""
        return any(not tensors.isdisjoint(op.outputs) for op in self._wiring.readers_of(quantize))

    def _as_float(self, op: Op, tensor: str) -> bool:
        """Whether an op reads a tensor as float although it is stored in quantized form."""
        if op in self._lead:
            return tensor not in self.takes[self._lead[op]]
        if op.op_type == QUANTIZE:
            return not self.absorbed(op)
        if op.op_type in MOVES:
            return op.inputs[0] != tensor or not self.quantized.issuperset(op.outputs)
        return False  # DQ has no float input, and free ops only read shapes

    def _is_image(self, tensor: str) -> bool:
        shape = self._wiring.shape(tensor)
        has_layout = self._profile.has_layouts and len(shape) >= _IMAGE_RANK
        return has_layout and shape[1] > 1 and max(shape[2:]) > 1
