"""Dynamic LSTMs, as ONNX Runtime's own op DynamicQuantizeLSTM.

It reads what an LSTM reads, with both weights transposed and quantized, and their scales and zero
points behind. Its input is quantized as a whole, the hidden state in every step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from qdqtune.graph._op_classes import MICROSOFT, input_at
from qdqtune.qdq._dynamic_form import (
    Candidate,
    DynamicOp,
    StoredWeight,
    float_op_name,
    float_weight_name,
)
from qdqtune.qdq._encoding import Array, Encoding, ReadEncoding

DYNAMIC_LSTM = "DynamicQuantizeLSTM"

# Inputs of an LSTM; the scale and zero point of each weight follow.
_INPUTS = 8
_WEIGHTS = (1, 2)
#: Names the float weights, as JSON.
_MULTIPLIES = "multiplies by "
# An attribute that the op doesn't have. An LSTM that has it, with its default, is marked by it.
_LAYOUT = "layout"
_TYPES = (ir.DataType.INT8, ir.DataType.UINT8)


class DynamicLstm:
    """LSTM with constant weights."""

    op_types = frozenset({"LSTM"})
    opsets: Mapping[str, int] = {MICROSOFT: 1}

    def weights(self, node: ir.Node) -> Mapping[int, bool]:  # noqa: ARG002
        """The weights of input and hidden state, both transposed."""
        return dict.fromkeys(_WEIGHTS, True)

    def constants(
        self, values: Array, encoding: Encoding
    ) -> Iterator[tuple[str, Array, ir.DataType]]:
        """Yield values, scales and zero points: one per direction.

        The kernel also takes one per column. Seen with ONNX Runtime 1.31 on AVX-512 VNNI: that
        took 5 to 8 % longer, and gained less than 1 dB.
        """
        shape = (len(values),)
        yield "_quantized", values, encoding.dtype
        yield "_scale", np.broadcast_to(encoding.scale, shape), ir.DataType.FLOAT
        yield "_zero_point", np.broadcast_to(encoding.zero_point, shape), encoding.dtype

    def nodes(
        self,
        node: ir.Node,
        proto: onnx.NodeProto,
        stored: Sequence[Sequence[str]],
        around: Candidate,  # noqa: ARG002
    ) -> Iterator[onnx.NodeProto]:
        """Yield the one node, with the name and the outputs of the LSTM."""
        written = onnx.NodeProto()
        written.CopyFrom(proto)
        written.op_type, written.domain = DYNAMIC_LSTM, MICROSOFT
        written.input.extend([""] * (_INPUTS - len(written.input)))
        for position, (weight, *encoding) in zip(_WEIGHTS, stored, strict=True):
            written.input[position] = weight
            written.input.extend(encoding)
        names = [value.name for value in (node.inputs[each] for each in _WEIGHTS) if value]
        attributes = [each for each in written.attribute if each.name != _LAYOUT]
        label = {"weights": names, _LAYOUT: len(attributes) < len(written.attribute)}
        written.doc_string = _MULTIPLIES + json.dumps(label)
        del written.attribute[:]
        written.attribute.extend(attributes)
        yield written

    def read(self, node: ir.Node) -> DynamicOp | None:
        """The LSTM that such a node stands for."""
        if node.domain != MICROSOFT or node.op_type != DYNAMIC_LSTM:
            return None
        names, has_layout = _label(node)
        weights = [
            _stored(node, position, _INPUTS + 2 * number, names[number] if names else "")
            for number, position in enumerate(_WEIGHTS)
        ]
        if None in weights:
            return None
        inputs: list[ir.Value | StoredWeight | None] = list(node.inputs[:_INPUTS])
        for position, weight in zip(_WEIGHTS, weights, strict=True):
            inputs[position] = weight
        while inputs[-1] is None:
            inputs.pop()
        layout = [ir.AttrInt64(_LAYOUT, 0)] if has_layout else []
        return DynamicOp(
            name=(node.name or "") if names else float_op_name(node),
            op_type="LSTM",
            inputs=tuple(inputs),
            attributes=(*node.attributes.values(), *layout),
            nodes=(node,),
        )


def _label(node: ir.Node) -> tuple[list[str], bool]:
    """The names of the float weights and whether there was a layout; none if it is not ours."""
    text = node.doc_string or ""
    try:
        label = json.loads(text.removeprefix(_MULTIPLIES)) if text.startswith(_MULTIPLIES) else {}
        names = label.get("weights", []) if isinstance(label, dict) else []
    except (ValueError, RecursionError):
        return [], False
    if not isinstance(names, list) or len(names) != len(_WEIGHTS):
        return [], False
    return list(map(str, names)), label.get(_LAYOUT) is True


def _stored(node: ir.Node, position: int, scale: int, name: str) -> StoredWeight | None:
    """A weight of a dynamic LSTM; None if the file lies about it.

    Args:
        node: The op.
        position: Which input it is.
        scale: Which input its scales are; the zero points follow.
        name: The name of the float weight, if the file tells it.
    """
    value = input_at(node, position)
    weight, scales, points = (
        ir.convenience.get_const_tensor(each) if each is not None else None
        for each in (value, input_at(node, scale), input_at(node, scale + 1))
    )
    if value is None or weight is None or scales is None or points is None:
        return None
    if len(weight.shape) != 3 or weight.dtype not in _TYPES or points.dtype != weight.dtype:
        return None
    directions, _, columns = weight.shape.numpy()
    sizes = ((directions,), (directions, columns))
    if any(tuple(each.shape.numpy()) not in sizes for each in (scales, points)):
        return None
    shape = max(tuple(each.shape.numpy()) for each in (scales, points))
    found = [
        np.broadcast_to(each.numpy().reshape(directions, *[-1] * (len(shape) - 1)), shape)
        for each in (scales, points)
    ]
    encoding = ReadEncoding(weight.dtype, found[0], found[1], axis=len(shape) - 1)
    return StoredWeight(value, name or float_weight_name(value), encoding, is_turned=True)
