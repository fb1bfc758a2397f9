"""How an engine wants quantization written, as data.

A dialect is chosen without its engine being installed. Placement (which tensors) is separate
from it; the dialect says what a chosen op needs around it and how each tensor is encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import onnx_ir as ir

from qdqtune.graph._op_classes import FLOAT_TYPES
from qdqtune.qdq._encoding import TensorFormat
from qdqtune.records._errors import UsageError


class Output(Enum):
    """What happens to the output of a quantized op."""

    REQUIRED = "required"  # no integer kernel without Q on the output
    USUAL = "usual"  # quantized when the whole op is asked for, but works without
    FLOAT = "float"  # left as it is


@dataclass(frozen=True)
class OpRule:
    """What one op type needs to become an integer kernel.

    Attributes:
        inputs: Positions of inputs that must be quantized together; None for all of them.
        output: Whether the output is quantized as well.
        bias: Position of a bias that becomes int32, if any.
        weight: Position of the weight, which has a format of its own.
        same_scale: Whether inputs and output must share one encoding (the op only moves values).
        joins_producer: Whether the op fuses into the weighted op before it, whose result must
            then reach it as it is.
        least_elements: How many elements the first input must have for an integer kernel.
        whole_when_parted: Whether the result is quantized after all where it is moved and taken
            apart. TensorRT takes the weight apart instead, unless a Q stands between: it
            dequantizes weight and input, and multiplies in floats.
        float_before: Ops for which a usual output is left float, if they are its only readers.
        activations_only: Whether the op is left float if one of these inputs is a constant.
        same_shapes: Whether the op is left float if these inputs differ in shape.
        axis: The one axis along which there is a kernel, if not along all.
        mode: The one value of the attribute `mode` for which there is a kernel, if not for all.
    """

    inputs: tuple[int, ...] | None = (0,)
    output: Output = Output.REQUIRED
    bias: int | None = None
    weight: int | None = None
    same_scale: bool = False
    joins_producer: bool = False
    least_elements: int = 1
    whole_when_parted: bool = False
    float_before: frozenset[str] = frozenset()
    activations_only: bool = False
    same_shapes: bool = False
    axis: int | None = None
    mode: str = ""


@dataclass(frozen=True)
class QuantFormat:
    """The formats behind one quant type, such as `int8`.

    Attributes:
        activation: For activations, and for constants that are not weights.
        weight: For weights.
        least_opset: The first ONNX opset that can express it.
        most_taps: The largest window (height times width) of a Conv that has a kernel.
        operand: For activations in the place of a weight, if they are not like the others.
    """

    activation: TensorFormat
    weight: TensorFormat
    least_opset: int
    most_taps: int | None = None
    operand: TensorFormat | None = None


@dataclass(frozen=True)
class Dialect:
    """The way one engine family wants Q/DQ models written.

    Attributes:
        name: For example `onnxruntime` or `tensorrt-8`.
        summary: One line for people.
        formats: Formats by quant type.
        rules: What each quantizable op type needs; ops without a rule have no integer kernel.
        stored_weights: Weights are stored quantized, behind a lone DequantizeLinear.
        fused_activations: Ops that disappear into the integer kernel before them, so that Q
            comes after them.
        float_types: Float types for which there are integer kernels.
        batched_weight_axes: Whether weights of rank above 2 may have per-channel scales in MatMul.
        propagates_dq: Whether a pair stands before the ops that only move values, not behind them
            again: the engine moves the dequantization on to who reads the result.
        per_channel: Whether weights have one scale per output channel, or one in all.
        weights_only: Ops that may gain if nothing but their weights is quantized.
        activations_only: Ops whose weights the engine quantizes by itself if all else is.
        dynamic: Ops with an integer kernel that computes the scale of its input at run time.
        dynamic_by_engine: Ops whose input the engine quantizes at run time by itself if nothing but
            their weights is quantized.
        unfused_sums: Whether an Add before a layer normalization may gain as a Sum, which the
            engine does not fuse with it.
        writes_either: Whether integer kernels write integers or floats, either at no cost.
    """

    name: str
    summary: str
    formats: Mapping[str, QuantFormat]
    rules: Mapping[str, OpRule]
    stored_weights: bool = True
    fused_activations: frozenset[str] = frozenset()
    batched_weight_axes: bool = True
    float_types: frozenset[ir.DataType] = FLOAT_TYPES
    propagates_dq: bool = False
    per_channel: bool = True
    weights_only: frozenset[str] = frozenset()
    activations_only: frozenset[str] = frozenset()
    dynamic: frozenset[str] = frozenset()
    dynamic_by_engine: frozenset[str] = frozenset()
    unfused_sums: bool = False
    writes_either: bool = False

    @property
    def asks_for_shapes(self) -> bool:
        """Whether it depends on shapes which ops have an integer kernel."""
        return any(
            rule.least_elements > 1 or rule.same_shapes or rule.axis is not None
            for rule in self.rules.values()
        )

    def format_of(self, quant_type: str) -> QuantFormat:
        """The formats of a quant type.

        Raises:
            UsageError: If this dialect has no such type.
        """
        if quant_type not in self.formats:
            from qdqtune.qdq.dialects import dialects  # they are made of this class

            others = [name for name, each in dialects().items() if quant_type in each.formats]
            elsewhere = f" {quant_type} is in: {', '.join(others)}." if others else ""
            raise UsageError(
                f"The {self.name} dialect has no quant type {quant_type!r}.",
                f"It has: {', '.join(sorted(self.formats))}.{elsewhere}",
            )
        return self.formats[quant_type]
