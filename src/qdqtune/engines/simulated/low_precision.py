"""Ops that compute in low precision, determined from the Q and DQ around them."""

from __future__ import annotations

import math
from typing import NamedTuple

import onnx_ir as ir

from qdqtune.engines.simulated.profiles import Profile
from qdqtune.engines.simulated.wiring import Op, Wiring
from qdqtune.engines.simulated.work import MOVES, is_free
from qdqtune.graph.op_classes import DEQUANTIZE, FLOAT_TYPES, QUANTIZE
from qdqtune.qdq.dialect import Dialect, OpRule, Output
from qdqtune.qdq.dialects import dialect_named


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
        available: Tensors available in quantized form, with the type: results of DQ, also moved.
        wanted: Tensors read only by Q of one form, also moved; with that form.
        kernels: Ops that compute in low precision, with the type of their activations.
    """

    def __init__(self, wiring: Wiring, profile: Profile) -> None:
        self._wiring = wiring
        self._profile = profile
        self._dialect: Dialect = dialect_named(profile.dialect)
        self.available: dict[str, ir.DataType] = {}
        self.wanted: dict[str, Form] = {}
        self._find_available()
        self._find_wanted()
        self.kernels: dict[Op, ir.DataType] = {}
        for op in wiring.ops:
            dtype = self._kernel_type(op)
            if dtype is not None:
                self.kernels[op] = dtype
        if not profile.fuses:  # what low-precision kernels make is quantized, whoever reads it
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
            if not op.inputs or not op.inputs[0]:
                continue
            if op.op_type == DEQUANTIZE:
                dtype: ir.DataType | None = self._wiring.dtype(op.inputs[0])
                if dtype in FLOAT_TYPES or dtype not in self._profile.units:
                    continue
            elif op.op_type in MOVES:
                dtype = self.available.get(op.inputs[0])
            else:
                continue
            if dtype is not None:
                self.available.update((tensor, dtype) for tensor in op.outputs)

    def _find_wanted(self) -> None:
        for op in reversed(self._wiring.ops):
            for tensor in op.outputs:
                forms = {self._wanted_form(*reader) for reader in self._wiring.readers(tensor)}
                if len(forms) != 1 or tensor in self._wiring.outputs:
                    continue
                form = forms.pop()
                if form is not None:
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
        activation = self.fused_activation(op)
        return (activation or op).outputs[0]
