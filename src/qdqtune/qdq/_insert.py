"""Writing placements as Q/DQ models, many per second.

A candidate is the base model's nodes in order, a few of them copied and rewired, with Q/DQ nodes
between; its weights are references into the base's shared file.
"""

from __future__ import annotations

import copy
import zlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx.helper import make_attribute, make_node

from qdqtune._version import __version__
from qdqtune.graph._fingerprint import tensor_digest
from qdqtune.graph._index import FreeNames, value_names
from qdqtune.graph._op_classes import DEQUANTIZE, QUANTIZE, is_op
from qdqtune.graph._prepared_model import PreparedModel, constant_part, node_part
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq._dynamic import DynamicOps
from qdqtune.qdq._encoder import Encoder, Pair
from qdqtune.qdq._encoding import Array, ReadEncoding, quantize
from qdqtune.qdq._op_units import own_bias
from qdqtune.qdq._smoothing import SMOOTHED_INPUTS, Smoothing, dividing_node
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Edge, Placement
from qdqtune.records._ranges import Ranges

#: Marks a Sum that is an Add in the float model.
UNFUSED_ADD = "from Add"
#: The metadata that tells how many biases were corrected.
CORRECTED_BIASES = "qdqtune.corrected_biases"
#: Says which tensor a DequantizeLinear stands for where its name doesn't.
COPY_OF = "dequantizes "

_SUFFIXES = ("_scale", "_zero_point", "_quantized", "_dequantized", "_unquantized")


class Inserter:
    """Writes any number of placements of one model.

    Args:
        base: A float model, folded, at an opset that the quant type can be written in.
        dialect: How Q/DQ is written.
        quant_type: One of the dialect's quant types.
        ranges: Ranges of the activations.
        given: Encodings by tensor that came with the model; they go before ranges and values.
    """

    def __init__(
        self,
        base: PreparedModel,
        dialect: Dialect,
        quant_type: str,
        ranges: Ranges,
        given: Mapping[str, ReadEncoding] | None = None,
    ) -> None:
        self.base = base
        self.index = base.index
        self.dialect = dialect
        self.encoder = Encoder(self.index, dialect, quant_type, ranges, given)
        self._metadata = {
            "qdqtune.version": __version__,
            "qdqtune.dialect": dialect.name,
            "qdqtune.quant_type": quant_type,
            "qdqtune.calibration": ranges.source.value,
            "qdqtune.float_model": base.fingerprint,
        }
        self._outputs = [
            [output.name for output in node.outputs if output.name] for node in self.index.nodes
        ]
        self._serialized: dict[tuple[object, ...], _SerializedPair] = {}
        self._names = FreeNames(value_names(self.index.model))
        self._prefixes: dict[tuple[str, bool], str] = {}
        self._biases: dict[str, Edge] = {}
        self._dynamic = DynamicOps(base, self.encoder, self._names)

    def with_ranges(self, ranges: Ranges) -> Inserter:
        """Another one, with other ranges; weights that were quantized already are shared.

        Biases are not corrected in it: mean errors depend on ranges.
        """
        other = self.with_shifts({}) if self._biases else copy.copy(self)
        other.encoder = self.encoder.with_ranges(ranges)  # weights don't depend on them
        other._metadata = {**self._metadata, "qdqtune.calibration": ranges.source.value}
        return other

    def with_shifts(self, shifts: Mapping[str, Array]) -> Inserter:
        """Another one, which takes the mean errors of ops off their biases.

        Args:
            shifts: By name of an op, with a bias of its own: its errors by channel.
        """
        other = copy.copy(self)
        other._biases = {}
        for name in shifts:
            edge = own_bias(self.index, self.index.node[name])
            assert edge is not None
            other._biases[name] = edge
        of_biases = {other._biases[name].tensor: shift for name, shift in shifts.items()}
        other.encoder = self.encoder.with_shifts(of_biases)
        known = self._serialized.items()
        other._serialized = {key: pair for key, pair in known if key[1] != "bias"}
        return other

    def with_smoothings(self, smoothings: Mapping[str, Smoothing]) -> Inserter:
        """Another one, which smooths the inputs of products; biases are not corrected in it.

        Args:
            smoothings: By names of products, which `smoothable` returns.
        """
        other = self.with_shifts({})
        other.encoder = self.encoder.with_smoothings(smoothings)
        other._dynamic = self._dynamic.with_encoder(other.encoder)
        other._serialized = {k: pair for k, pair in other._serialized.items() if not k[2]}
        return other

    def smoothed(self, placement: Placement) -> list[str]:
        """The products whose input is smoothed in a placement."""
        return self.encoder.smoothed(self.index.effective(placement), placement.dynamic)

    def corrected(self, placement: Placement) -> list[str]:
        """The biases that are corrected in a placement: those of ops that it quantizes."""
        found, edges = [], self.index.effective(placement)
        for name, bias in self._biases.items():
            operands = self.index.reads(self.index.node[name])[:2]
            is_float = bias.node == name or bias not in edges
            if is_float and all(Edge(t, name, at) in edges for at, t in enumerate(operands)):
                found.append(bias.tensor)
        return found

    def of_part(self, part: PreparedModel) -> Inserter:
        """One for a part of the model, in which tensors have the same names."""
        encoder = self.encoder
        return Inserter(part, self.dialect, encoder.quant_type, encoder.ranges, encoder.given)

    def write(self, placement: Placement, name: str) -> Path:
        """Write a candidate into the base's folder.

        Args:
            placement: What to quantize, exactly: nothing is added to it.
            name: File name without ending.
        """
        return self.base.write(self.serialized(placement), name)

    def model(self, placement: Placement) -> ir.Model:
        """The candidate as a model, its weights still in the shared file."""
        return self.base.load(self.serialized(placement))

    def proto(self, placement: Placement) -> onnx.ModelProto:
        """The candidate as a proto whose weights are references into the shared file."""
        proto: onnx.ModelProto = onnx.ModelProto.FromString(self.serialized(placement))
        return proto

    def serialized(self, placement: Placement) -> bytes:
        """The candidate as the bytes of its file.

        Raises:
            UsageError: If the placement is not one of this model.
        """
        edges = self.index.effective(placement)
        self._dynamic.check(placement.dynamic, edges)
        rewiring = _Rewiring(self.base)
        weights = {}
        for name in sorted(placement.dynamic):
            for key, constants_of_weight in self._dynamic.constants(name):
                rewiring.read_quantized[key[0]] += 1
                weights[key] = constants_of_weight
        before: list[_SerializedPair] = []
        behind: dict[str, list[_SerializedPair]] = defaultdict(list)
        for name in placement.unfused:
            rewiring.keep_apart(name)
        for pair in self.encoder.pairs(edges):
            serialized = self._serialized_pair(pair)
            rewiring.add(pair, serialized)
            produced = self.index.value[pair.tensor].producer() is not None
            (behind[pair.tensor] if produced else before).append(serialized)
        corrected = self.corrected(placement)
        parts = self.base.constant_parts | {name: self._corrected_part(name) for name in corrected}
        constants = [part for name, part in parts.items() if rewiring.still_read(name)]
        constants += weights.values()
        constants += (serialized.constants for serialized in before)
        constants += (serialized.constants for group in behind.values() for serialized in group)
        nodes = [serialized.nodes for serialized in before]
        candidate = self._dynamic.new_candidate()
        for position, outputs in enumerate(self._outputs):
            name = self.index.nodes[position].name or ""
            if name in placement.dynamic:
                proto = rewiring.proto(position)
                nodes.append(self._dynamic.nodes(name, proto, candidate))
            else:
                nodes.append(rewiring.node(position))
            for tensor in outputs:
                nodes += (
                    rewiring.feed(tensor, serialized) for serialized in behind.get(tensor, ())
                )
        opsets = self._dynamic.opsets(placement.dynamic)
        metadata, smoothed = self._metadata, self.encoder.smoothed(edges, placement.dynamic)
        if corrected:
            metadata = {**metadata, CORRECTED_BIASES: str(len(corrected))}
        if smoothed:
            metadata = {**metadata, SMOOTHED_INPUTS: str(len(smoothed))}
        return self.base.assemble(nodes, constants, metadata, opsets)

    def _corrected_part(self, bias: str) -> bytes:
        """A corrected bias, as the base's constants are written."""
        dtype = self.index.dtype(bias)
        assert dtype is not None
        values = ir.Tensor(self.encoder.shifted(bias), dtype, name=bias)
        return constant_part(self.base.store.reference((bias, tensor_digest(values)), bias, values))

    def _serialized_pair(self, pair: Pair) -> _SerializedPair:
        tensor, encoding = pair.tensor, pair.encoding
        key = (tensor, pair.role, pair.smoothing is not None, *encoding.key)
        if key in self._serialized:
            return self._serialized[key]
        is_stored = pair.role == "bias" or (
            pair.role in ("weight", "constant") and self.dialect.stored_weights
        )
        prefix = self._prefix(pair)
        dtype = self.index.dtype(tensor)
        assert dtype is not None
        named = [(f"{prefix}_scale", encoding.scale.astype(dtype.numpy()), dtype)]
        named.append((f"{prefix}_zero_point", encoding.zero_point, encoding.dtype))
        nodes, source, is_replaced = list[onnx.NodeProto](), tensor, is_stored
        if is_stored:
            values = quantize(self.encoder.values(pair), encoding)
            named.append((f"{prefix}_quantized", values, encoding.dtype))
        elif pair.smoothing is not None:
            source = prefix
            if is_replaced := pair.role == "weight":
                named.append((prefix, self.encoder.values(pair), dtype))
            else:
                factors = f"{prefix}_factors"
                named.append((factors, pair.smoothing.inverse.astype(dtype.numpy()), dtype))
                nodes.append(dividing_node(tensor, factors, prefix))
        tensors = [
            self.base.store.reference((name, tensor_digest(values)), name, values)
            for name, array, kind in named
            for values in [ir.Tensor(array, kind)]
        ]
        if not is_stored:
            nodes.append(_node(QUANTIZE, source, prefix, "_quantized", encoding.axis))
        nodes.append(
            _node(DEQUANTIZE, f"{prefix}_quantized", prefix, "_dequantized", encoding.axis)
        )
        if prefix != tensor:
            nodes[-1].doc_string = COPY_OF + tensor
        self._serialized[key] = _SerializedPair(tensors, nodes, replaces_constant=is_replaced)
        return self._serialized[key]

    def _prefix(self, pair: Pair) -> str:
        """What the pair's names begin with; it depends on the pair alone, not on what came before.

        A weight or bias with several readers may be quantized in more than one way in one model.
        """
        name, suffixes = pair.tensor, list(_SUFFIXES)
        if pair.smoothing is not None:
            name, suffixes = f"{name}_smoothed", [*_SUFFIXES, "", "_factors"]
        elif pair.role in ("weight", "bias") and len(self.index.readers(name)) > 1:
            name += f"_{zlib.crc32(repr(pair.encoding.key).encode()):08x}"
        key = (name, pair.smoothing is not None)
        if key not in self._prefixes:
            self._prefixes[key] = self._names.prefix(name, suffixes)
        return self._prefixes[key]


class _SerializedPair:
    """One pair, written: its initializers, then Q (unless stored) and DQ.

    Attributes:
        replaces_constant: Whether its readers no longer read the float values of a constant.
    """

    def __init__(
        self,
        tensors: list[onnx.TensorProto],
        nodes: list[onnx.NodeProto],
        *,
        replaces_constant: bool,
    ) -> None:
        self.protos = nodes
        self.constants = b"".join(map(constant_part, tensors))
        self.nodes = b"".join(map(node_part, nodes))
        self.output = str(nodes[-1].output[0])
        self.replaces_constant = replaces_constant


class _Rewiring:
    """The nodes of one candidate that read something else than in the base.

    Attributes:
        read_quantized: By how many readers the quantized values of a constant are read.
    """

    def __init__(self, base: PreparedModel) -> None:
        self._base = base
        self._index = base.index
        self._copies: dict[int, onnx.NodeProto] = {}
        self._renamed: dict[str, str] = {}
        self.read_quantized: dict[str, int] = defaultdict(int)

    def add(self, pair: Pair, serialized: _SerializedPair) -> None:
        if serialized.replaces_constant:
            self.read_quantized[pair.tensor] += len(pair.edges)
        for edge in pair.edges:
            if edge.node:
                self._copy(edge.node).input[edge.position] = serialized.output
        if any(not edge.node for edge in pair.edges):
            self._quantize_graph_output(pair, serialized)

    def keep_apart(self, name: str) -> None:
        """Write an Add as a Sum, which is the same, but not fused with what reads it."""
        node = self._index.node.get(name)
        if not is_op(node, "Add"):
            raise UsageError(
                f"The placement has the unfused op {name!r}, which is not an Add of this model.",
                "Is it a placement of another model?",
            )
        self._copy(name).op_type = "Sum"
        self._copy(name).doc_string = UNFUSED_ADD

    def _copy(self, name: str) -> onnx.NodeProto:
        """A copy of a node that may be changed."""
        position = self._index.position[name]
        if position not in self._copies:
            self._copies[position] = _copied(self._base.nodes[position])
        return self._copies[position]

    def _quantize_graph_output(self, pair: Pair, serialized: _SerializedPair) -> None:
        """The graph's output keeps its name, so the producer's output gets another one."""
        tensor = pair.tensor
        producer = self._index.value[tensor].producer()
        if producer is None or self._index.read_by_body(tensor):
            raise UsageError(
                f"The graph output {tensor!r} can't be quantized: it is an input, a constant, or "
                "read inside a control-flow body.",
                "Quantize its readers instead.",
            )
        plain = serialized.output.removesuffix("_dequantized") + "_unquantized"
        self._renamed[tensor] = plain
        self._renamed[serialized.output] = tensor
        outputs = self._copy(producer.name or "").output
        outputs[list(outputs).index(tensor)] = plain
        for edge in self._index.readers(tensor):
            if edge.node:
                read = tensor if edge in pair.edges else plain
                self._copy(edge.node).input[edge.position] = read

    def still_read(self, constant: str) -> bool:
        """Whether anybody still reads the float values of a constant."""
        quantized = self.read_quantized.get(constant, 0)
        if not quantized:
            return True
        stays = len(self._index.readers(constant)) > quantized
        return stays or self._index.read_by_body(constant)

    def proto(self, position: int) -> onnx.NodeProto:
        """A node of the base, rewired, as a proto that must not be changed."""
        return self._copies.get(position, self._base.nodes[position])

    def node(self, position: int) -> bytes:
        """A node of the base, rewired."""
        copy = self._copies.get(position)
        return self._base.node_parts[position] if copy is None else node_part(copy)

    def feed(self, tensor: str, serialized: _SerializedPair) -> bytes:
        """The pair's nodes, renamed if its tensor is a graph output."""
        if tensor not in self._renamed:
            return serialized.nodes
        first, *between, last = map(_copied, serialized.protos)
        first.input[0] = self._renamed[tensor]
        last.output[0] = self._renamed.get(last.output[0], last.output[0])
        return b"".join(map(node_part, (first, *between, last)))


def _copied(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def _node(op_type: str, source: str, prefix: str, result: str, axis: int | None) -> onnx.NodeProto:
    inputs = [source, f"{prefix}_scale", f"{prefix}_zero_point"]
    node = make_node(op_type, inputs, [prefix + result], name=f"{prefix}_{op_type}")
    if axis is not None:
        node.attribute.append(make_attribute("axis", axis))
    return node
