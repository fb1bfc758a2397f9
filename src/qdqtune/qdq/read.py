"""Reading a Q/DQ model back: its placement, its encodings, and the float model inside it."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from qdqtune.graph.op_classes import DEQUANTIZE, QUANTIZE, is_op
from qdqtune.qdq.encoding import Array, dequantize
from qdqtune.qdq.insert import COPY_OF
from qdqtune.records.placement import Edge, Placement

_QUANTIZED_SUFFIX = "_quantized"

# Ops whose results have both signs, and behind which a Relu can have stood.
_SIGNED_OPS = ("Add", "BatchNormalization", "Conv", "ConvTranspose", "Gemm", "MatMul", "Mul", "Sub")


@dataclass(frozen=True)
class ReadEncoding:
    """Scale and zero point of a tensor as found in a file.

    Attributes:
        dtype: Element type of the quantized tensor.
        scale: A scalar or a vector along `axis`.
        zero_point: Same shape, or None if the file leaves it out.
        axis: The node's axis attribute; meaningful if `scale` is a vector.
    """

    dtype: ir.DataType | None
    scale: Array
    zero_point: Array | None
    axis: int


@dataclass
class Reading:
    """What was found in a Q/DQ model, by the names of the float model inside it.

    Attributes:
        placement: Every edge that sees a quantized value, and every tensor whose readers all do.
        encodings: Encoding by tensor name.
        pairs: How many DequantizeLinear nodes were understood.
        left: How many Q and DQ nodes were not: scales per block, integer ops between them, bodies.
    """

    placement: Placement = field(default_factory=Placement)
    encodings: dict[str, ReadEncoding] = field(default_factory=dict)
    pairs: int = 0
    left: int = 0


def strip(model: ir.Model, weights_from: ir.Model | None = None) -> Reading:
    """Take every Q/DQ pair out of a model, in place.

    Weights that are stored quantized become float again: with the values they stand for, or with
    the original ones if a model that has them is given. Where another tool let the saturation of a
    Q stand for a Relu and took the Relu out, one is put back. Q and DQ nodes that belong to no pair
    (integer inputs, integer ops between them, scales per block) and those in control-flow bodies
    are left alone.

    Args:
        model: A Q/DQ model.
        weights_from: A float model with initializers of the same names and shapes.

    Returns:
        What was there.
    """
    own = any(key.startswith("qdqtune.") for key in model.metadata_props)
    stripper = _Stripper(model, weights_from, restore_relus=not own)
    for node in list(model.graph):
        if is_op(node, DEQUANTIZE):
            stripper.take_out(node)
    stripper.clean_up()
    for key in [key for key in model.metadata_props if key.startswith("qdqtune.")]:
        del model.metadata_props[key]
    return stripper.reading()


def read(model: ir.Model) -> Reading:
    """The placement and encodings of a Q/DQ model; the model itself is not changed."""
    return strip(model.clone())


class _Stripper:
    def __init__(
        self, model: ir.Model, weights_from: ir.Model | None, *, restore_relus: bool
    ) -> None:
        self._restore_relus = restore_relus
        self._relus: dict[ir.Value, ir.Value] = {}
        self._graph = model.graph
        self._graphs = tuple(model.graphs())
        self._originals = weights_from.graph.initializers if weights_from else {}
        self._edges: list[tuple[ir.Value, str, int]] = []
        self._encodings: list[tuple[ir.Value, ReadEncoding]] = []
        self._removed: list[ir.Node] = []
        self._restored: dict[str, ir.Value] = {}

    def take_out(self, node: ir.Node) -> None:
        encoding = _encoding_of(node)
        stored = node.inputs[0]
        if encoding is None or stored is None:
            return
        producer = stored.producer()
        if is_op(producer, QUANTIZE):
            assert producer is not None
            origin = producer.inputs[0]
            self._removed.append(producer)
            if self._restore_relus and origin is not None and _stands_for_relu(origin, encoding):
                origin = self._relu(origin)
        elif ir.convenience.get_const_tensor(stored) is not None:
            origin = self._restore(node, stored, encoding)
        else:
            return
        assert origin is not None
        self._removed.append(node)
        self._encodings.append((origin, encoding))
        self._hand_over(node.outputs[0], origin)

    def _relu(self, value: ir.Value) -> ir.Value:
        """The Relu behind a value that a saturating Q stood for."""
        if value not in self._relus:
            producer = value.producer()
            assert producer is not None
            relu = ir.node("Relu", [value], name=f"{producer.name}_Relu")
            relu.outputs[0].name = f"{value.name}_relu"
            relu.outputs[0].type, relu.outputs[0].shape = value.type, value.shape
            self._graph.insert_after(producer, relu)
            self._relus[value] = relu.outputs[0]
        return self._relus[value]

    def _hand_over(self, dequantized: ir.Value, origin: ir.Value) -> None:
        """Let every reader of the dequantized value read the original one."""
        for user, index in tuple(dequantized.uses()):
            if user.graph is self._graph and not is_op(user, QUANTIZE):
                self._edges.append((origin, user.name or "", index))
            user.replace_input_with(index, origin)
        for index, output in enumerate(self._graph.outputs):
            if output is dequantized:
                self._edges.append((origin, "", index))
                self._become_output(index, dequantized, origin)

    def _become_output(self, index: int, dequantized: ir.Value, origin: ir.Value) -> None:
        name = dequantized.name
        dequantized.name = f"{name}_dequantized"
        if origin.producer() is None or origin.is_graph_output():
            copy = ir.node("Identity", [origin], name=f"{name}_Identity")
            self._graph.append(copy)
            origin = copy.outputs[0]
        origin.name = name
        origin.type, origin.shape = dequantized.type, dequantized.shape
        self._graph.outputs[index] = origin

    def _restore(self, node: ir.Node, stored: ir.Value, encoding: ReadEncoding) -> ir.Value:
        """The float initializer behind a stored one."""
        name = _original_name(node, stored)
        if name in self._restored:
            return self._restored[name]
        steps = ir.convenience.get_const_tensor(stored)
        assert steps is not None
        original = self._originals.get(name)
        known = original.const_value if original is not None else None
        if known is not None and tuple(known.shape) == tuple(steps.shape):
            values = known.numpy()
        else:
            values = dequantize(steps.numpy(), encoding.scale, encoding.zero_point, encoding.axis)
        if name in self._graph.initializers:
            return self._graph.initializers[name]
        restored = ir.val(name, const_value=ir.Tensor(values, name=name))
        self._graph.register_initializer(restored)
        self._restored[name] = restored
        return restored

    def clean_up(self) -> None:
        """Remove the nodes that were taken out and the constants that only they read."""
        constants: dict[str, ir.Value] = {}
        for node in reversed(list(dict.fromkeys(self._removed))):
            if any(output.uses() or output.is_graph_output() for output in node.outputs):
                continue
            constants.update((v.name or "", v) for v in node.inputs if v is not None)
            self._graph.remove(node, safe=True)
        for name, value in constants.items():
            if value.uses() or value.is_graph_output():
                continue
            producer = value.producer()
            if is_op(producer, "Constant"):
                assert producer is not None
                self._graph.remove(producer, safe=True)
            elif value.is_initializer():
                self._graph.initializers.pop(name, None)

    def reading(self) -> Reading:
        edges = frozenset(Edge(value.name or "", node, index) for value, node, index in self._edges)
        quantized: dict[str, int] = {}
        for edge in edges:
            quantized[edge.tensor] = quantized.get(edge.tensor, 0) + 1
        outputs = {
            value.name or ""
            for value, _, _ in self._edges
            if not value.is_initializer()
            and self._reader_count(value) == quantized[value.name or ""]
        }
        encodings = {value.name or "": encoding for value, encoding in self._encodings}
        left = sum(is_op(node, QUANTIZE, DEQUANTIZE) for graph in self._graphs for node in graph)
        placement = Placement(edges, frozenset(outputs))
        return Reading(placement, encodings, len(self._encodings), left)

    def _reader_count(self, value: ir.Value) -> int:
        nodes = sum(user.graph is self._graph for user, _ in value.uses())
        return nodes + sum(output is value for output in self._graph.outputs)


def _stands_for_relu(value: ir.Value, encoding: ReadEncoding) -> bool:
    """Whether a Q cuts off negative values that its input can have."""
    if encoding.zero_point is None or not is_op(value.producer(), *_SIGNED_OPS):
        return False
    lowest = {ir.DataType.UINT8: 0, ir.DataType.INT8: -128}.get(encoding.dtype or ir.DataType.FLOAT)
    return lowest is not None and bool((encoding.zero_point == lowest).all())


def _encoding_of(node: ir.Node) -> ReadEncoding | None:
    """Scale and zero point of a DequantizeLinear, if they are constants."""
    stored, factor, *rest = node.inputs
    given = rest[0] if rest else None
    scale = ir.convenience.get_const_tensor(factor) if factor is not None else None
    zero_point = ir.convenience.get_const_tensor(given) if given is not None else None
    if stored is None or scale is None or (given is not None and zero_point is None):
        return None
    if "block_size" in node.attributes or len(scale.shape) > 1:
        return None  # one scale per block: another format than ours
    axis = node.attributes.get("axis")
    return ReadEncoding(
        dtype=zero_point.dtype if zero_point is not None else stored.dtype,
        scale=scale.numpy(),
        zero_point=zero_point.numpy() if zero_point is not None else None,
        axis=axis.as_int() if axis is not None else 1,
    )


def _original_name(node: ir.Node, stored: ir.Value) -> str:
    if node.doc_string and node.doc_string.startswith(COPY_OF):
        return node.doc_string[len(COPY_OF) :]
    name = stored.name or ""
    if name.endswith(_QUANTIZED_SUFFIX):
        return name[: -len(_QUANTIZED_SUFFIX)]
    return node.outputs[0].name or name
