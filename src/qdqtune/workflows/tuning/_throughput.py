"""The least time that products can take, from one large product that the engine is given."""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir
from onnx import ModelProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from qdqtune.graph._index import GraphIndex

SIZE = 4096
"""Rows, columns and depth of the large product: it keeps a whole GPU busy."""

# Another product may be somewhat faster than the large one.
_SLACK = 1.5
# Integer units multiply twice as fast as half floats.
_QUANTIZED = 2.0
_PRODUCTS = frozenset({"Gemm", "MatMul"})
_IR_VERSION = 9


def multiply_adds(index: GraphIndex, names: Iterable[str]) -> int:
    """Return the multiply-adds of the products among some nodes, as far as shapes are known.

    Convolutions are left out: there are algorithms that need fewer.
    """
    return sum(_work(index, index.node[name]) for name in names)


def _work(index: GraphIndex, node: ir.Node) -> int:
    read, made = node.inputs[0] if node.inputs else None, node.outputs[0]
    if node.op_type not in _PRODUCTS or read is None:
        return 0
    depth, size = (index.shape(value.name or "") for value in (read, made))
    if not depth or size is None or None in (*depth, *size):
        return 0
    is_transposed = "transA" in node.attributes and node.attributes["transA"].as_int()
    return math.prod(dim or 1 for dim in size) * (depth[0 if is_transposed else -1] or 1)


def least_ms(work: int, large_ms: float, *, quantized: bool) -> float:
    """Return the milliseconds below which a time for so many multiply-adds is wrong.

    Args:
        work: The multiply-adds.
        large_ms: Milliseconds of the large product in float; 0 if they are not known.
        quantized: Whether they may be integer products.
    """
    return work / SIZE**3 * large_ms / _SLACK / (_QUANTIZED if quantized else 1.0)


def large_product(dtype: ir.DataType, opset: int) -> ModelProto:
    """Build a model of one large product of two inputs, `a` and `b`."""
    a, b, y = (make_tensor_value_info(name, dtype.value, (SIZE, SIZE)) for name in ("a", "b", "y"))
    node = make_node("MatMul", ["a", "b"], ["y"], name="product")
    graph = make_graph([node], "product", [a, b], [y])
    return make_model(graph, opset_imports=[make_opsetid("", opset)], ir_version=_IR_VERSION)
