"""The model that holds the float graph and the quantized one, and outputs their distances."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx.helper import make_node, make_opsetid, make_tensor_value_info

from qdqtune.calibration._instrumentation import PackedOutput
from qdqtune.calibration._layer_errors_pairs import Pairing, reads
from qdqtune.graph._atomic_files import writing
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._input_shapes import model_inputs
from qdqtune.graph._weights import WeightStore

OUTPUT = "qdqtune_errors"

#: What comes of every pair: sums of the squares of the float tensor, of the difference and of the
#: other tensor, then the difference's largest magnitude, and the float tensor's extremes.
NUMBERS = 6

# Beyond this a number is a mask, whose square no float32 holds.
_LARGEST = 1e15

_SMALL_BYTES = 1024

# Before this version of the format, weights had to be listed among the inputs.
_FREE_WEIGHTS_IR_VERSION = 4


class _Distances(PackedOutput):
    """Compares tensors of the quantized model with those of the float one.

    Args:
        pairing: The two models.
        prefix: What the names of the quantized model begin with.
        masked: Tensors of which huge float values are left out.
    """

    def __init__(self, pairing: Pairing, prefix: str, masked: Collection[str]) -> None:
        super().__init__(OUTPUT)
        self._pairing = pairing
        self._prefix = prefix
        self._masked = masked

    def reduce(self, tensor: str, label: str) -> list[str]:
        """The `NUMBERS` of a pair."""
        original, quantized = self._pairing.original, self._pairing.quantized
        source = self._pairing.float_of[tensor]
        before = self.flat(source, original.dtype(source), f"{label}_0")
        after = self.flat(self._prefix + tensor, quantized.value[tensor].dtype, f"{label}_1")
        if tensor in self._masked:
            size = self.add("Abs", [before], f"{label}_size")
            ordinary = self.add("Less", [size, self.constant(_LARGEST)], f"{label}_ordinary")
            before, after = (
                self.add("Where", [ordinary, each, self.constant(0.0)], f"{each}_ordinary")
                for each in (before, after)
            )
        off = self.add("Sub", [after, before], f"{label}_difference")
        off = self.add("Abs", [off], f"{label}_off")
        reductions = (
            ("ReduceSumSquare", before), ("ReduceSumSquare", off), ("ReduceSumSquare", after),
            ("ReduceMax", off), ("ReduceMax", before), ("ReduceMin", before),
        )  # fmt: skip
        return [
            self.add(op_type, [each], f"{label}_number{number}", keepdims=1)
            for number, (op_type, each) in enumerate(reductions)
        ]


class Wiring(Enum):
    """What the quantized ops read."""

    #: Every op alone: what it reads comes from the float model, through its own Q and DQ.
    OWN = "own"
    #: The quantized model as it is: what went wrong before an op counts, too.
    ACCUMULATED = "accumulated"


class ComparingModel:
    """Builds the model.

    Args:
        pairing: The two models.
        wiring: What the quantized ops read.
        tensors: What to compare, by the names of the quantized model.
    """

    def __init__(self, pairing: Pairing, wiring: Wiring, tensors: Collection[str]) -> None:
        self._pairing = pairing
        self._wiring = wiring
        self._tensors = frozenset(tensors)
        self._prefix = f"{OUTPUT}/"
        while any(name.startswith(self._prefix) for name in pairing.original.value):
            self._prefix += "/"
        self._quantized_nodes, self._float_nodes = self._needed()

    def write(self, path: Path, masked: Collection[str]) -> list[str]:
        """Write it; weights that don't lie beside it already are written to a file of its own.

        Args:
            path: Where to.
            masked: Tensors of which huge values, as masks have them, are left out.

        Returns:
            The tensors, in the order in which their numbers come out.
        """
        distances = _Distances(self._pairing, self._prefix, masked)
        for node in self._in_order():
            if node.graph is self._pairing.original.model.graph:
                distances.nodes.append(ir.serde.serialize_node(node))
                continue
            distances.nodes += self._rewired(node)
            for value in node.outputs:
                if value.name in self._tensors:
                    distances.want(value.name)
        distances.finish()
        content = self._proto(distances, path).SerializeToString()
        with writing(path):
            path.write_bytes(content)
        return distances.order

    def _proto(self, distances: _Distances, path: Path) -> onnx.ModelProto:
        models = [self._pairing.original.model, self._pairing.quantized.model]
        opsets = {domain: version for each in models for domain, version in _opsets(each)}
        shape = [len(distances.order) * NUMBERS]
        output = make_tensor_value_info(OUTPUT, onnx.TensorProto.FLOAT, shape)
        graph = onnx.GraphProto(name=OUTPUT, node=distances.nodes, output=[output])
        graph.input.extend(ir.to_proto(value) for value in model_inputs(models[0]))
        store = WeightStore(path.parent, weights_name(path))
        read = {name for node in distances.nodes for name in _all_inputs(node)}
        for prefix, model in zip(("", self._prefix), models, strict=True):
            for name, value in model.graph.initializers.items():
                if prefix + name in read and value.const_value is not None:
                    tensor = _reference(store, prefix + name, value.const_value)
                    graph.initializer.append(tensor)
        graph.initializer.extend(distances.constants)
        return onnx.ModelProto(
            ir_version=max(_FREE_WEIGHTS_IR_VERSION, *(each.ir_version for each in models)),
            opset_import=[make_opsetid(domain, version) for domain, version in opsets.items()],
            graph=graph,
        )

    def _needed(self) -> tuple[set[ir.Node], set[ir.Node]]:
        """The nodes of the quantized and of the float graph that comparisons depend on."""
        pairing = self._pairing
        nodes = _ancestors(pairing.quantized, self._tensors, lambda name: bool(self._source(name)))
        taken = {pairing.float_of[name] for name in self._tensors}
        taken |= {self._source(name) for node in nodes for name in reads(node, pairing.quantized)}
        return nodes, _ancestors(pairing.original, taken - {""})

    def _in_order(self) -> Iterator[ir.Node]:
        """The nodes of both graphs; one of the quantized follows what it reads or stands for."""
        pairing = self._pairing
        rest = iter(pairing.original.nodes)
        place = {
            value.name: number
            for number, node in enumerate(pairing.original.nodes)
            for value in node.outputs
        }
        done = -1
        for node in pairing.quantized.nodes:
            if node not in self._quantized_nodes:
                continue
            beside = [self._source(name) for name in reads(node, pairing.quantized)]
            beside += (pairing.float_of.get(value.name or "", "") for value in node.outputs)
            while done < max((place.get(name, -1) for name in beside), default=-1):
                done += 1
                before = next(rest)
                if before in self._float_nodes:
                    yield before
            yield node

    def _source(self, tensor: str) -> str:
        """What of the float graph stands in for a tensor of the quantized one; "" if nothing."""
        pairing = self._pairing
        is_computed = pairing.quantized.value[tensor].producer() is not None
        if self._wiring is Wiring.ACCUMULATED and is_computed:
            return ""
        return pairing.float_of[tensor] if pairing.is_taken_over(tensor) else ""

    def _rewired(self, node: ir.Node) -> list[onnx.NodeProto]:
        """A node of the quantized graph, behind the Casts that it needs to read the float one."""
        names: dict[str, str] = {}
        nodes: list[onnx.NodeProto] = []
        for tensor in reads(node, self._pairing.quantized):
            source = self._source(tensor)
            there = self._pairing.original.dtype(source) if source else None
            here = self._pairing.quantized.dtype(tensor)
            if there is not None and here is not None and there != here:
                cast = f"{self._prefix}/{node.name}/{tensor}"
                nodes.append(make_node("Cast", [source], [cast], name=cast, to=here.value))
                source = cast
            names[tensor] = source or self._prefix + tensor
        nodes.append(ir.serde.serialize_node(node))
        _rename(nodes[-1], self._prefix, names)
        return nodes


def weights_name(path: Path) -> str:
    """How the file is called that has the weights of a model written to this path."""
    return f"{path.name}.data"


def _rename(node: onnx.NodeProto, prefix: str, names: dict[str, str]) -> None:
    """Give everything in a node a prefix, or another name."""

    def renamed(name: str) -> str:
        return names.get(name, prefix + name) if name else ""

    pending = [node]
    while pending:
        each = pending.pop()
        each.name = prefix + each.name
        each.input[:] = [renamed(name) for name in each.input]
        each.output[:] = [prefix + name if name else "" for name in each.output]
        for attribute in each.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                for value in (*body.input, *body.output, *body.initializer, *body.value_info):
                    value.name = renamed(value.name)
                pending += body.node


def _ancestors(
    index: GraphIndex, tensors: Iterable[str], ends: Callable[[str], bool] = lambda _: False
) -> set[ir.Node]:
    """The nodes that tensors depend on; what is before a tensor that is an end doesn't count."""
    nodes: set[ir.Node] = set()
    pending = [index.value[name].producer() for name in tensors]
    while pending:
        node = pending.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            names = (name for name in reads(node, index) if not ends(name))
            pending += (index.value[name].producer() for name in names)
    return nodes


def _all_inputs(node: onnx.NodeProto) -> Iterator[str]:
    """What a node and the bodies in it read, or hand out."""
    pending = [node]
    while pending:
        each = pending.pop()
        yield from each.input
        for attribute in each.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from (value.name for value in body.output)
                pending += body.node


def _opsets(model: ir.Model) -> Iterator[tuple[str, int]]:
    for domain, version in model.opset_imports.items():
        yield ("" if domain == "ai.onnx" else domain), version


def _reference(store: WeightStore, name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
    """A weight under another name; what lies in a file of the folder stays there."""
    if isinstance(tensor, ir.ExternalTensor):
        is_copied = Path(tensor.base_dir) != store.folder.absolute()
    else:  # there may be very many small ones, and a file of them is slow to write
        is_copied = tensor.nbytes > _SMALL_BYTES
    found = onnx.TensorProto()
    if is_copied:
        found.CopyFrom(store.reference(name, name, tensor))
    else:
        ir.serde.serialize_tensor_into(found, tensor)
    found.name = name
    return found
