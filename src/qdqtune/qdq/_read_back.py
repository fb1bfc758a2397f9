"""Reading a Q/DQ model back: its placement, its encodings, and the float model inside it.

What the file only implies is restored: weights may lie behind a Transpose or Cast, and a saturating
Q may stand for an activation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from qdqtune.graph._editing import add_constant
from qdqtune.graph._index import FreeNames, GraphIndex, value_names
from qdqtune.graph._op_classes import (
    DEQUANTIZE,
    DYNAMIC_QUANTIZE,
    MICROSOFT,
    QDQ_OPS,
    QUANTIZE,
    WEIGHTED_OPS,
    input_at,
    is_op,
)
from qdqtune.graph._weights import values_of
from qdqtune.qdq._dynamic import INTEGER_PRODUCTS, find_dynamic_ops
from qdqtune.qdq._dynamic_form import DynamicOp, StoredWeight
from qdqtune.qdq._encoding import ReadEncoding, dequantize, wider
from qdqtune.qdq._insert import COPY_OF, CORRECTED_BIASES, UNFUSED_ADD
from qdqtune.qdq._op_units import canonical, own_bias
from qdqtune.qdq._smoothing import MultipliedWeight, SmoothedProduct, factors_of, smoothed_products
from qdqtune.records._errors import ModelError
from qdqtune.records._placement import Edge, Placement

_QUANTIZED_SUFFIX = "_quantized"
# Between these the steps of eight bits lie symmetrically; a Q gives none beyond but one.
_NARROW_BOUNDS = ((-127, 127), (-128, 127), (1, 255), (0, 255))
# Each change of an input copies all inputs of its node; no model has nodes of nearly so many.
_MOST_INPUTS = 10_000
# More than the number of ops in any model has.
_MOST_DIGITS = 10
# Ops whose results have both signs, and behind which an activation can have stood.
_SIGNED_OPS = WEIGHTED_OPS | {"Add", "BatchNormalization", "Mul", "Sub"}
# The one upper bound that is common enough to be told from a calibrated maximum.
_SIX = 6.0


@dataclass
class ReadResult:
    """What was found in a Q/DQ model, by the names of the float model inside it.

    Attributes:
        placement: Every edge that sees a quantized value, and every tensor whose readers all do.
        encodings: Encoding by tensor name; the coarsest where readers have different ones.
        pairs: How many DequantizeLinear nodes were understood.
        left: How many Q, DQ and integer products were not: scales per block, products of two
            activations, bodies.
        rounded: How many weights have the values that quantized ones stand for.
        corrected: How many biases lack the mean errors that were taken off them.
        smoothed: How many products had a smoothed input, which was undone.
    """

    placement: Placement = field(default_factory=Placement)
    encodings: dict[str, ReadEncoding] = field(default_factory=dict)
    pairs: int = 0
    left: int = 0
    rounded: int = 0
    corrected: int = 0
    smoothed: int = 0


def strip(model: ir.Model, weights_from: ir.Model | None = None) -> ReadResult:
    """Take every Q/DQ pair out of a model, in place.

    Weights that are stored quantized become float again: with the values they stand for, or with
    the original ones if a model that has them is given. Where another tool let the saturation of a
    Q stand for an activation and took that out, it is put back. Smoothed inputs are made what they
    were, and the weights of their products as well. Biases that mean errors were taken off stay so
    unless the original ones are given. Q and DQ nodes that belong to no pair (integer inputs,
    integer ops between them, scales per block) and those in control-flow bodies are left alone.

    Args:
        model: A Q/DQ model.
        weights_from: A float model with initializers of the same names and shapes.

    Returns:
        What was there.

    Raises:
        ModelError: If a node has more inputs than can be rewired in bearable time.
    """
    own = any(key.startswith("qdqtune.") for key in model.metadata_props)
    corrected = mentioned(model, CORRECTED_BIASES)
    stripper = _Stripper(model, weights_from, foreign=not own)
    unfused = _fuse_sums(model.graph)
    dynamic = [stripper.make_static(op) for op in find_dynamic_ops(model.graph)]
    stripper.undo_smoothing(list(smoothed_products(model.graph)))
    dequantizers = [node for node in model.graph if is_op(node, DEQUANTIZE)]
    pairs = sum([stripper.take_out(node) for node in dequantizers])
    stripper.carry_on()
    stripper.clean_up()
    if dynamic:
        _forget_unused_domains(model)
    for key in [key for key in model.metadata_props if key.startswith("qdqtune.")]:
        del model.metadata_props[key]
    reading = stripper.reading(dynamic, unfused)
    if corrected:
        reading.corrected = stripper.put_biases_back(reading.placement, corrected)
    reading.pairs, reading.smoothed = pairs, stripper.smoothed
    return reading


def mentioned(model: ir.Model, what: str) -> int:
    """The number of corrected biases or smoothed inputs that a file mentions; 0 if it doesn't.

    Args:
        model: A Q/DQ model.
        what: `CORRECTED_BIASES` or `SMOOTHED_INPUTS`.
    """
    text = model.metadata_props.get(what, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else 0


def _forget_unused_domains(model: ir.Model) -> None:
    """Take out the import of ONNX Runtime's own ops if there are none of them any more."""
    if all(node.domain != MICROSOFT for graph in model.graphs() for node in graph):
        model.opset_imports.pop(MICROSOFT, None)


def read(model: ir.Model) -> ReadResult:
    """The placement and encodings of a Q/DQ model; the model itself is not changed."""
    return strip(model.clone())


def _fuse_sums(graph: ir.Graph) -> frozenset[str]:
    """Make an Add of each Sum that was one; returns their names."""
    found = []
    for node in graph:
        if is_op(node, "Sum") and node.doc_string == UNFUSED_ADD and len(node.inputs) == 2:
            node.op_type, node.doc_string = "Add", None
            found.append(node.name or "")
    return frozenset(found)


class _Stripper:
    def __init__(self, model: ir.Model, weights_from: ir.Model | None, *, foreign: bool) -> None:
        self._foreign = foreign
        self._activations: dict[ir.Value, ir.Value] = {}
        self._model = model
        self._originals = weights_from.graph.initializers if weights_from else {}
        self._edges: dict[tuple[ir.Value, str, int], None] = {}
        self._encodings: list[tuple[ir.Value, ReadEncoding]] = []
        self._removed: list[ir.Node] = []
        self._replaced: list[ir.Value] = []
        self._restored: dict[object, ir.Value] = {}
        self._rounded: set[str] = set()
        # By the constant that has the product's weight, by the DQ of its input and weight, and by
        # what divides the input of a dynamic one.
        self._smoothed: dict[ir.Value | ir.Node, MultipliedWeight] = {}
        self._names = FreeNames(value_names(model))

    def undo_dynamic_smoothing(self, op: DynamicOp) -> DynamicOp:
        """Return a dynamic op with its input as it was, and note its weight."""
        source, weight = op.inputs[0], op.weight
        divides = source.producer() if isinstance(source, ir.Value) else None
        factors = factors_of(divides)
        if divides is None or factors is None:
            return op
        multiplied = MultipliedWeight(factors, int(weight.is_turned))
        if not multiplied.fits(weight.steps()):
            return op
        self._smoothed |= dict.fromkeys((weight.value, divides), multiplied)
        self._removed.append(divides)
        return replace(op, inputs=(divides.inputs[0], *op.inputs[1:]))

    def make_static(self, op: DynamicOp) -> ir.Node:
        """Put the float op back in the place of a dynamic one, and return it."""
        op = self.undo_dynamic_smoothing(op)
        inputs = [
            self._float_weight(each) if isinstance(each, StoredWeight) else each
            for each in op.inputs
        ]
        last = op.nodes[-1]
        node = ir.node(op.op_type, inputs, name=op.name, num_outputs=len(last.outputs))
        for attribute in op.attributes:
            node.attributes.add(attribute)
        self._graph.insert_before(last, node)
        for old, new in zip(last.outputs, node.outputs, strict=True):
            new.type, new.shape = old.type, old.shape
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
            name, old.name = old.name, f"{old.name}_dynamic" if old.name else None
            new.name = name
        last.name = None
        for position, value in enumerate(last.inputs):
            if value in op.inputs:  # else it would count as a reader of it until it is removed
                last.replace_input_with(position, None)
        self._removed += op.nodes
        return node

    def _float_weight(self, weight: StoredWeight) -> ir.Value:
        """The float weight of a dynamic op."""
        value = self._restore(weight.name, weight.steps(), weight.encoding, weight.value)
        if weight.value not in self._smoothed:
            self._encodings.append((value, weight.encoding))
        return value

    @property
    def _graph(self) -> ir.Graph:
        return self._model.graph

    @property
    def smoothed(self) -> int:
        """How many products had a smoothed input."""
        return sum(isinstance(each, ir.Value) for each in self._smoothed)

    def undo_smoothing(self, products: Sequence[SmoothedProduct]) -> None:
        """Let the pairs of smoothed inputs read them as they were, and note the weights."""
        for product in products:
            divides, weight = product.divides, product.weight
            for user, index in tuple(divides.outputs[0].uses()):
                user.replace_input_with(index, divides.inputs[0])
            self._removed.append(divides)
            self._smoothed |= dict.fromkeys((*product.pair, weight), product.multiplied)
            if product.quantizer is not None:
                name = _original_name(product.pair[1], weight)
                product.quantizer.replace_input_with(0, self._as_it_was(name, weight))

    def _as_it_was(self, name: str, weight: ir.Value) -> ir.Value:
        """The float weight of a smoothed product that is stored as floats."""
        self._replaced.append(weight)
        values = _constant_of(weight)
        assert values is not None
        if (kept := self._graph.initializers.get(name)) is not None:
            return kept
        original = self._original(name, values, values.dtype)
        tensor = original or ir.Tensor(self._smoothed[weight].divided(values.numpy()), name=name)
        self._names.taken.add(name)
        return add_constant(self._graph, name, tensor)

    def take_out(self, node: ir.Node) -> bool:
        """Take out a DequantizeLinear; returns whether it was understood."""
        encoding = _encoding_of(node)
        stored = node.inputs[0]
        if encoding is None or stored is None:
            return False
        producer, between = stored.producer(), []
        if producer is not None and _narrows(producer):
            between.append(producer)
            producer = producer.inputs[0].producer() if producer.inputs[0] is not None else None
        origin: ir.Value | None
        if producer is not None and not between and _is_lookup(producer, encoding):
            origin = self._looked_up(producer, encoding, node.outputs[0])
        elif producer is not None and is_op(producer, QUANTIZE):
            if not _is_pair(producer, encoding):
                return False
            origin = producer.inputs[0]
            self._removed += (producer, *between)
            if self._foreign and origin is not None:
                origin = self._activated(origin, encoding)
        elif not between and _constant_of(stored) is not None:
            constant = _constant_of(stored)
            assert constant is not None
            name = _original_name(node, stored)
            # The name of the DQ is free: it goes.
            origin = self._restore(name, constant, encoding, stored, node.outputs[0].name)
        else:
            return False
        assert origin is not None
        self._removed.append(node)
        if node not in self._smoothed:  # its scale is that of something else
            self._encodings.append((origin, encoding))
        self._hand_over(node.outputs[0], origin)
        return True

    def _looked_up(
        self, lookup: ir.Node, encoding: ReadEncoding, dequantized: ir.Value
    ) -> ir.Value:
        """The result of a lookup, which then reads a float table.

        Args:
            lookup: Reads the quantized table.
            encoding: That of the table.
            dequantized: What stood for the result.
        """
        stored, result = lookup.inputs[0], lookup.outputs[0]
        assert stored is not None
        steps = _constant_of(stored)
        assert steps is not None
        table = self._restore(_without_suffix(stored.name or ""), steps, encoding, stored)
        lookup.replace_input_with(0, table)
        self._replaced.append(stored)
        self._edges[table, lookup.name or "", 0] = None
        self._encodings.append((table, encoding))
        if not dequantized.is_graph_output():  # such a name is handed over later
            name, dequantized.name = dequantized.name, f"{dequantized.name}_dequantized"
            result.name = name
        result.type, result.shape = dequantized.type, dequantized.shape
        return result

    def _activated(self, value: ir.Value, encoding: ReadEncoding) -> ir.Value:
        """The value, or the result of the activation that the Q behind it stood for."""
        if not _stands_for_activation(value, encoding):
            return value
        if value not in self._activations:
            self._activations[value] = _put_back(value, encoding, self._names)
        return self._activations[value]

    def _hand_over(self, dequantized: ir.Value, origin: ir.Value) -> None:
        """Let every reader of the dequantized value read the original one."""
        for user, index in tuple(dequantized.uses()):
            if len(user.inputs) > _MOST_INPUTS:
                raise ModelError(
                    f"The node {user.name!r} has {len(user.inputs):,} inputs, some of them behind "
                    f"Q/DQ: at most {_MOST_INPUTS:,} can be handled.",
                    "Split it into several nodes.",
                )
            is_left_out = is_op(user, QUANTIZE, DYNAMIC_QUANTIZE) or user in self._smoothed
            if user.graph is self._graph and not is_left_out:
                self._edges[origin, user.name or "", index] = None
            user.replace_input_with(index, origin)
        for index, output in enumerate(self._graph.outputs):
            if output is dequantized:
                self._edges[origin, "", index] = None
                self._become_output(index, dequantized, origin)

    def _become_output(self, index: int, dequantized: ir.Value, origin: ir.Value) -> None:
        name = dequantized.name
        if origin.is_initializer() and origin.name == name:
            self._graph.outputs[index] = origin
            return
        dequantized.name = f"{name}_dequantized"
        if origin.producer() is None or origin.is_graph_output():
            copy = ir.node("Identity", [origin], name=f"{name}_Identity")
            self._graph.append(copy)
            origin = copy.outputs[0]
        origin.name = name
        origin.type, origin.shape = dequantized.type, dequantized.shape
        self._graph.outputs[index] = origin

    def _restore(
        self,
        name: str,
        steps: ir.TensorProtocol,
        encoding: ReadEncoding,
        stored: ir.Value,
        free: str | None = None,
    ) -> ir.Value:
        """The float initializer behind a stored one.

        Args:
            name: What it was called.
            steps: The quantized values, in its layout.
            encoding: Their encoding.
            stored: Where they are stored.
            free: A name in use that becomes free.
        """
        dtype = ir.DataType.from_numpy(encoding.scale.dtype)
        original = self._original(name, steps, dtype)
        if self._foreign:
            original = self._turned(name, steps, encoding) or original
        kept = self._graph.initializers.get(name)
        if kept is not None and not self._foreign:
            return kept  # others read its float values, which stayed in the file
        point = encoding.zero_point
        way = (stored, encoding.scale.tobytes(), b"" if point is None else point.tobytes())
        key: object = name if original is not None else (*way, encoding.axis)
        if key not in self._restored:
            is_taken = name in self._names.taken and name != free
            if is_taken or name in self._graph.initializers:
                name = self._names.new(name)
            if original is None:
                self._rounded.add(name)
            tensor = original or _dequantized(
                steps, encoding, dtype, name, self._smoothed.get(stored)
            )
            self._restored[key] = add_constant(self._graph, name, tensor)
            self._names.taken.add(name)
        return self._restored[key]

    def _original(
        self, name: str, like: ir.TensorProtocol, dtype: ir.DataType
    ) -> ir.TensorProtocol | None:
        """The original values of a weight, if the model that was given for them has it."""
        original = self._originals.get(name)
        known = original.const_value if original is not None else None
        if known is None or known.dtype != dtype or tuple(known.shape) != tuple(like.shape):
            return None
        return known

    def _turned(
        self, name: str, steps: ir.TensorProtocol, encoding: ReadEncoding
    ) -> ir.TensorProtocol | None:
        """The transpose of an original weight, if that is what was stored under its name.

        `quantize_dynamic` makes a MatMul of a Gemm, and leaves the weight its name.
        """
        known = self._originals.get(name)
        constant = known.const_value if known is not None else None
        dims = tuple(steps.shape.numpy())
        if constant is None or len(dims) != 2 or tuple(constant.shape.numpy()) != dims[::-1]:
            return None
        values = values_of(constant)
        if dims[0] == dims[1]:
            found = dequantize(steps.numpy(), encoding.scale, encoding.zero_point, encoding.axis)
            if np.square(values - found).sum() <= np.square(values.T - found).sum():
                return None
        return ir.Tensor(np.ascontiguousarray(values.T), constant.dtype, name=name)

    def carry_on(self) -> None:
        """Apply what stands between a quantized weight and the op that it belongs to."""
        pending = [
            (origin, encoding) for origin, encoding in self._encodings if origin.is_initializer()
        ]
        # What has a pair of its own behind it is an op like any other.
        quantized = {origin for origin, _, _ in self._edges}
        while pending:
            origin, encoding = pending.pop()
            assert origin.const_value is not None
            for user, position in tuple(origin.uses()):
                edge = (origin, user.name or "", position)
                if edge not in self._edges or user.outputs[0] in quantized:
                    continue
                if not _propagates_weight(user, self._graph):
                    continue
                tensor, propagated = _propagate(origin.const_value, encoding, user)
                output = user.outputs[0]
                name, readers = output.name or "", tuple(output.uses())
                output.name = f"{name}_carried"
                original = self._original(name, tensor, tensor.dtype)
                if original is not None:
                    self._rounded.discard(origin.name or "")
                result = add_constant(self._graph, name, original or tensor)
                for reader, index in readers:
                    reader.replace_input_with(index, result)
                    if reader.graph is self._graph:
                        self._edges[result, reader.name or "", index] = None
                del self._edges[edge]
                self._removed.append(user)
                self._encodings.append((result, propagated))
                pending.append((result, propagated))

    def put_biases_back(self, placement: Placement, corrected: int) -> int:
        """Give the biases of quantized ops their original values.

        Args:
            placement: What was quantized.
            corrected: How many biases are corrected.

        Returns:
            How many of these stay so, because their original values are not known.
        """
        if not self._originals:
            return corrected
        index, read = GraphIndex(self._model), {edge.node for edge in placement.edges}
        unknown = 0
        for node in index.nodes:
            if node.name not in read or not is_op(node, *WEIGHTED_OPS):
                continue
            bias = own_bias(index, node)
            value = self._graph.initializers.get(bias.tensor) if bias is not None else None
            if value is None or value.const_value is None:
                continue
            original = self._original(value.name or "", value.const_value, value.const_value.dtype)
            if original is None:
                unknown += 1
            else:
                value.const_value = original
        return min(corrected, unknown)

    def clean_up(self) -> None:
        """Remove the nodes that were taken out and the constants that only they read."""
        constants = {value.name or "": value for value in self._replaced}
        for node in reversed(list(dict.fromkeys(self._removed))):
            if any(output.uses() or output.is_graph_output() for output in node.outputs):
                continue
            constants.update((v.name or "", v) for v in node.inputs if v is not None)
            self._graph.remove(node, safe=True)
        for name, value in constants.items():
            if value.uses() or value.is_graph_output():
                continue
            producer = value.producer()
            if producer is not None and is_op(producer, "Constant"):
                self._graph.remove(producer, safe=True)
            elif value.is_initializer():
                self._graph.initializers.pop(name, None)

    def reading(self, dynamic: Iterable[ir.Node], unfused: frozenset[str]) -> ReadResult:
        edges = frozenset(Edge(value.name or "", node, index) for value, node, index in self._edges)
        names = frozenset(node.name or "" for node in dynamic)
        whole = Placement(edges, dynamic=names, unfused=unfused)
        placement = canonical(GraphIndex(self._model), whole)
        encodings: dict[str, ReadEncoding] = {}
        for value, encoding in self._encodings:
            name = value.name or ""
            encodings[name] = wider(encodings.get(name, encoding), encoding)
        nodes = (node for graph in self._model.graphs() for node in graph)
        left = sum(is_op(node, *QDQ_OPS, *INTEGER_PRODUCTS) for node in nodes)
        return ReadResult(placement, encodings, left=left, rounded=len(self._rounded))


def _dequantized(
    steps: ir.TensorProtocol,
    encoding: ReadEncoding,
    dtype: ir.DataType,
    name: str,
    smoothed: MultipliedWeight | None,
) -> ir.LazyTensor:
    """The values that quantized ones stand for, computed when somebody wants them."""

    def make() -> ir.TensorProtocol:
        values = dequantize(steps.numpy(), encoding.scale, encoding.zero_point, encoding.axis)
        if smoothed is not None:
            values = smoothed.divided(values)
        return ir.Tensor(values, name=name)

    return ir.LazyTensor(make, dtype=dtype, shape=ir.Shape(steps.shape.numpy()), name=name)


def _narrows(node: ir.Node) -> bool:
    """Whether a node is the Clip of a narrow range, which PyTorch writes between Q and DQ."""
    if not is_op(node, "Clip") or len(node.inputs) != 3:
        return False
    bounds = [constant for constant in map(_constant_of, node.inputs[1:]) if constant is not None]
    numbers = [int(bound.numpy().reshape(-1)[0]) for bound in bounds if bound.size == 1]
    return tuple(numbers) in _NARROW_BOUNDS


def _is_pair(quantizer: ir.Node, encoding: ReadEncoding) -> bool:
    """Whether a Q has the scale and zero point of a DQ; otherwise the two rescale."""
    own = _encoding_of(quantizer)
    if own is None or own.scale.shape != encoding.scale.shape:
        return False
    if own.scale.size > 1 and own.axis != encoding.axis:
        return False
    points = [np.zeros(1) if one.zero_point is None else one.zero_point for one in (own, encoding)]
    return bool((own.scale == encoding.scale).all()) and bool((points[0] == points[1]).all())


def _encoding_of(node: ir.Node) -> ReadEncoding | None:
    """Return scale and zero point of a Q or DQ, if they are constants."""
    stored, given = node.inputs[0], input_at(node, 2)
    scale, zero_point = _constant_of(node.inputs[1]), _constant_of(given)
    if stored is None or scale is None or (given is not None and zero_point is None):
        return None
    if "block_size" in node.attributes or len(scale.shape) > 1:
        return None  # one scale per block: another format than ours
    axis = node.attributes.get_int("axis", 1)
    if not _fits(scale, zero_point, stored, axis):
        return None
    return ReadEncoding(
        dtype=zero_point.dtype if zero_point is not None else _default_type(node),
        scale=scale.numpy(),
        zero_point=zero_point.numpy() if zero_point is not None else None,
        axis=axis,
    )


def _constant_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the constant behind a value; unlike `constant_of`, defaults of inputs count."""
    return ir.convenience.get_const_tensor(value) if value is not None else None


def _fits(
    scale: ir.TensorProtocol, zero_point: ir.TensorProtocol | None, stored: ir.Value, axis: int
) -> bool:
    """Whether there are as many scales and zero points as channels; strangers' files may lie."""
    if not scale.size or (zero_point is not None and zero_point.size != scale.size):
        return False
    constant = _constant_of(stored)
    if scale.size == 1 or constant is None:
        return True
    dims = constant.shape.numpy()
    return -len(dims) <= axis < len(dims) and dims[axis] == scale.size


def _default_type(node: ir.Node) -> ir.DataType | None:
    """Return the quantized type where no zero point tells it: of the weight, or of the Q."""
    stored = node.inputs[0]
    constant = _constant_of(stored)
    if stored is None or (constant is not None and not is_op(node, QUANTIZE)):
        return constant.dtype if constant is not None else None
    quantizer = node if is_op(node, QUANTIZE) else stored.producer()
    if quantizer is None or not is_op(quantizer, QUANTIZE):
        return stored.dtype
    return ir.DataType(quantizer.attributes.get_int("output_dtype", 0) or ir.DataType.UINT8)


def _original_name(node: ir.Node, stored: ir.Value) -> str:
    if node.doc_string and node.doc_string.startswith(COPY_OF):
        return node.doc_string[len(COPY_OF) :]
    name = stored.name or ""
    if name.endswith(_QUANTIZED_SUFFIX):
        return _without_suffix(name)
    return node.outputs[0].name or name


def _without_suffix(name: str) -> str:
    return name.removesuffix(_QUANTIZED_SUFFIX)


def _is_lookup(node: ir.Node, encoding: ReadEncoding) -> bool:
    """Whether a node takes rows from a table that is stored quantized, for one reader.

    `quantize_dynamic` writes embeddings so.
    """
    if not is_op(node, "Gather") or encoding.scale.size != 1:
        return False
    result = node.outputs[0]
    return (
        _constant_of(node.inputs[0]) is not None
        and len(tuple(result.uses())) == 1
        and not result.is_graph_output()
    )


def _propagates_weight(user: ir.Node, graph: ir.Graph) -> bool:
    """Whether a reader of a constant only hands it on in another form."""
    if user.graph is not graph or not is_op(user, "Transpose", "Cast", "Identity"):
        return False
    return bool(user.outputs[0].uses()) and not user.outputs[0].is_graph_output()


def _propagate(
    constant: ir.TensorProtocol, encoding: ReadEncoding, user: ir.Node
) -> tuple[ir.TensorProtocol, ReadEncoding]:
    """What a carrier makes of a constant and of its encoding; values are computed when read."""
    dims, dtype = list(constant.shape.numpy()), constant.dtype
    if is_op(user, "Transpose"):
        order = list(user.attributes.get_ints("perm", range(len(dims))[::-1]))
        if encoding.scale.size > 1:
            encoding = replace(encoding, axis=order.index(encoding.axis % len(dims)))
        dims = [dims[axis] for axis in order]
    else:
        order = list(range(len(dims)))
        dtype = ir.DataType(user.attributes.get_int("to", dtype))

    def make() -> ir.TensorProtocol:
        return ir.Tensor(constant.numpy().transpose(order).astype(dtype.numpy(), copy=False), dtype)

    return ir.LazyTensor(make, dtype, ir.Shape(dims), name=user.outputs[0].name), encoding


def _stands_for_activation(value: ir.Value, encoding: ReadEncoding) -> bool:
    """Whether a Q cuts off negative values that its input can have."""
    dtype = encoding.dtype
    if dtype not in (ir.DataType.UINT8, ir.DataType.INT8):
        return False
    if dtype is None or not is_op(value.producer(), *_SIGNED_OPS):
        return False
    point = np.zeros(1) if encoding.zero_point is None else encoding.zero_point
    return bool((point == dtype.min).all())


def _put_back(value: ir.Value, encoding: ReadEncoding, names: FreeNames) -> ir.Value:
    """Insert the activation behind a value: a Clip at six if that is where the Q saturates.

    Args:
        value: What the Q reads.
        encoding: The Q's.
        names: Generates names for new values.
    """
    producer, scale = value.producer(), float(encoding.scale.reshape(-1)[0])
    assert producer is not None
    graph = producer.graph
    assert isinstance(graph, ir.Graph)
    inputs = [value]
    if abs(scale * 255 - _SIX) < 1e-3 * _SIX:
        for bound, number in (("low", 0.0), ("high", _SIX)):
            name = names.new(f"{value.name}_clip_{bound}")
            tensor = ir.Tensor(np.array(number, encoding.scale.dtype), name=name)
            inputs.append(add_constant(graph, name, tensor))
    op_type = "Clip" if len(inputs) > 1 else "Relu"
    node = ir.node(op_type, inputs, name=f"{producer.name}_{op_type}")
    result = node.outputs[0]
    result.name = names.new(f"{value.name}_{op_type.lower()}")
    result.type, result.shape = value.type, value.shape
    graph.insert_after(producer, node)
    return result
