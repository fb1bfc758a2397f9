"""Ops, attributes and tensors as short text, independent of names in the model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from qdqtune.graph.fingerprint import tensor_digest
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import is_standard

_PLAIN_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_DIGEST_BYTES = 8
_BODY_TYPES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def op_token(node: ir.Node) -> str:
    """Format an op with domain and attributes, such as `Conv[kernel_shape=3x3,pads=1x1x1x1]`."""
    name = _word(node.op_type)
    if not is_standard(node):
        name = f"{_word(node.domain)}::{name}"
    if node.overload:
        name += f"/{_word(node.overload)}"
    if not node.attributes:
        return name
    attributes = sorted(node.attributes.values(), key=lambda attribute: attribute.name)
    return f"{name}[{','.join(f'{_word(a.name)}={_attribute(a)}' for a in attributes)}]"


def tensor_label(index: GraphIndex, tensor: str) -> str:
    """Format the type and shape of a tensor, such as `float16[1x64x?x?]`."""
    dtype, shape = index.dtype(tensor), index.shape(tensor)
    kind = dtype.name.lower() if dtype is not None else "?"
    if shape is None:
        return f"{kind}[*]"
    return f"{kind}[{'x'.join('?' if dim is None else str(dim) for dim in shape)}]"


def _word(text: str) -> str:
    """Quote text so that it can't be confused with its surroundings."""
    return text if _PLAIN_WORD.fullmatch(text) else repr(text)


def _attribute(attribute: ir.Attr) -> str:
    value, kind = attribute.value, attribute.type
    if attribute.is_ref():
        return f"@{_word(attribute.ref_attr_name or '')}"
    if kind == ir.AttributeType.TENSOR:
        return f"#{tensor_digest(value)}"
    if kind == ir.AttributeType.TENSORS:
        return "x".join(f"#{tensor_digest(tensor)}" for tensor in value)
    if kind in _BODY_TYPES:
        return f"#{_digest(_body_lines([value] if kind == ir.AttributeType.GRAPH else value))}"
    if kind == ir.AttributeType.STRING:
        return _word(_decoded(value))
    if kind == ir.AttributeType.STRINGS:
        return "x".join(_word(_decoded(text)) for text in value)
    if kind == ir.AttributeType.FLOAT:
        return str(np.float32(value))
    if kind == ir.AttributeType.FLOATS:
        return "x".join(str(np.float32(number)) for number in value)
    if kind == ir.AttributeType.INT:
        return str(value)
    if kind == ir.AttributeType.INTS:
        return "x".join(map(str, value))
    return f"#{_digest([str(value)])}"


def _decoded(text: object) -> str:
    return text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else str(text)


def _digest(lines: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for line in lines:
        digest.update(line.encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _body_lines(graphs: Iterable[ir.Graph]) -> Iterable[str]:
    """Format bodies line by line, with values numbered in order of appearance."""
    numbers: dict[int, int] = {}

    def number(value: ir.Value | None) -> str:
        return "-" if value is None else str(numbers.setdefault(id(value), len(numbers)))

    for graph in graphs:
        yield f"in {[(number(v), str(v.dtype), str(v.shape)) for v in graph.inputs]}"
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield f"constant {number(value)} {tensor_digest(value.const_value)}"
        for node in graph:
            ins, outs = [number(v) for v in node.inputs], [number(v) for v in node.outputs]
            yield f"{op_token(node)} {ins} {outs}"
        yield f"out {[number(v) for v in graph.outputs]}"
