"""Classes of ops that matter for quantization, and questions about a single node or value."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

#: Ops with a weight as their second input (for MatMul: a second operand).
CONV_OPS = frozenset({"Conv", "ConvTranspose"})
WEIGHTED_OPS = CONV_OPS | {"Gemm", "MatMul"}

#: Passthrough ops: they move values unchanged from input 0 to every output.
COPY_OPS = frozenset(
    {
        "Expand", "Flatten", "Gather", "GatherElements", "Identity", "Reshape", "Slice", "Split",
        "Squeeze", "Tile", "Transpose", "Unsqueeze",
    }
)  # fmt: skip

#: Ops that process each element independently of the others.
POINTWISE_OPS = frozenset(
    {
        "Abs", "Add", "BatchNormalization", "Celu", "Clip", "Cos", "Div", "Elu", "Erf", "Exp",
        "FastGelu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Max", "Min", "Mish",
        "Mul", "Neg", "PRelu", "Pow", "QuickGelu", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sin",
        "Softplus", "Softsign", "Sqrt", "Sub", "Swish", "Tanh", "ThresholdedRelu", "Where",
    }
)  # fmt: skip
POOL_OPS = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"})
#: Ops that normalize by statistics of their input.
NORM_OPS = frozenset(
    {
        "GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization",
        "SimplifiedLayerNormalization", "SkipLayerNormalization",
    }
)  # fmt: skip

#: The quantization ops themselves.
QUANTIZE = "QuantizeLinear"
DEQUANTIZE = "DequantizeLinear"
DYNAMIC_QUANTIZE = "DynamicQuantizeLinear"
QDQ_OPS = frozenset({QUANTIZE, DEQUANTIZE, DYNAMIC_QUANTIZE})

#: The domain of ONNX Runtime's own ops.
MICROSOFT = "com.microsoft"

#: Types of the attributes that hold control-flow bodies.
BODY_TYPES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)

HALF_TYPES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
FLOAT_TYPES = HALF_TYPES | {ir.DataType.FLOAT}


def is_standard(node: ir.Node) -> bool:
    """Whether the op belongs to the ONNX standard, not to another domain."""
    return node.domain in ("", "ai.onnx")


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Whether the node is one of these standard ops."""
    return node is not None and node.op_type in op_types and is_standard(node)


def weight_axis(node: ir.Node) -> int:
    """Return the output-channel axis of a weighted op's weight: the axis of per-channel scales.

    For a MatMul it is the last axis, counted from the end since the weight may be batched.
    """
    if node.op_type in ("Conv", "LSTM"):  # each direction of an LSTM
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "Gemm":
        return 0 if node.attributes.get_int("transB", 0) else 1
    return -1


def input_at(node: ir.Node, position: int) -> ir.Value | None:
    """Return an input of a node; None if it is optional and left out."""
    return node.inputs[position] if position < len(node.inputs) else None


def dtype_of(value: ir.Value) -> ir.DataType | None:
    """Return the element type, if known; also of an initializer that doesn't declare it."""
    if value.dtype is None and value.const_value is not None:
        return value.const_value.dtype
    return value.dtype


def has_body(node: ir.Node) -> bool:
    """Whether a node has subgraphs."""
    return any(attribute.type in BODY_TYPES for attribute in node.attributes.values())


def bodies_of(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the subgraphs of a node, without nested ones."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def uses_behind(value: ir.Value, *through: str) -> Iterator[tuple[ir.Node, int]]:
    """Yield the uses of a value, and of the results of these ops that read it as first input."""
    pending, seen = [value], {value}
    while pending:
        for user, position in pending.pop().uses():
            yield user, position
            if position == 0 and is_op(user, *through) and user.outputs[0] not in seen:
                seen.add(user.outputs[0])
                pending.append(user.outputs[0])
