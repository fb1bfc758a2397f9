"""The model that compares two: the float graph, the quantized one, and how far they are apart.

Both graphs stand in one model and share its inputs; the names of the quantized one have a prefix.
What comparisons don't depend on is left out. Nodes of one graph stand beside their counterparts in
the other, so that no tensor waits long to be compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx.helper import make_node, make_opsetid

from qdqtune.calibration.layer_errors_layout import OUTPUT, ComparisonLayout
from qdqtune.calibration.layer_errors_pairs import Pairing, reads
from qdqtune.graph.disk_errors import writing
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.input_shapes import model_inputs
from qdqtune.graph.weights import WeightStore

# Before this version of the format, weights had to be listed among the inputs.
_FREE_WEIGHTS_IR_VERSION = 4


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
        layout = ComparisonLayout(masked)
        for node in self._in_order():
            if node.graph is self._pairing.original.model.graph:
                layout.nodes.append(ir.serde.serialize_node(node))
                continue
            layout.nodes += self._rewired(node)
            for value in node.outputs:
                name = value.name or ""
                if name in self._tensors:
                    source = self._pairing.float_of[name]
                    original = (source, self._pairing.original.dtype(source))
                    layout.compare(name, original, (self._prefix + name, value.dtype))
        layout.finish()
        content = self._proto(layout, path).SerializeToString()
        with writing(path):
            path.write_bytes(content)
        return layout.order

    def _proto(self, layout: ComparisonLayout, path: Path) -> onnx.ModelProto:
        models = [self._pairing.original.model, self._pairing.quantized.model]
        opsets = {domain: version for each in models for domain, version in _opsets(each)}
        graph = onnx.GraphProto(name=OUTPUT, node=layout.nodes, output=[layout.output()])
        graph.input.extend(ir.to_proto(value) for value in model_inputs(models[0]))
        store = WeightStore(path.parent, weights_name(path))
        read = {name for node in layout.nodes for name in _all_inputs(node)}
        for prefix, model in zip(("", self._prefix), models, strict=True):
            for name, value in model.graph.initializers.items():
                if prefix + name in read and value.const_value is not None:
                    tensor = _reference(store, prefix + name, value.const_value)
                    graph.initializer.append(tensor)
        graph.initializer.extend(layout.constants())
        return onnx.ModelProto(
            ir_version=max(_FREE_WEIGHTS_IR_VERSION, *(each.ir_version for each in models)),
            opset_import=[make_opsetid(domain, version) for domain, version in opsets.items()],
            graph=graph,
        )

    def _needed(self) -> tuple[set[ir.Node], set[ir.Node]]:
        """The nodes of the quantized and of the float graph that comparisons depend on."""
        pairing, index = self._pairing, self._pairing.quantized
        taken = {pairing.float_of[name] for name in self._tensors}
        nodes: set[ir.Node] = set()
        pending = [index.value[name].producer() for name in self._tensors]
        while pending:
            node = pending.pop()
            if node is None or node in nodes:
                continue
            nodes.add(node)
            for name in reads(node, index):
                if source := self._source(name):
                    taken.add(source)
                else:
                    pending.append(index.value[name].producer())
        return nodes, _ancestors(pairing.original, taken)

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


def _ancestors(index: GraphIndex, tensors: Iterable[str]) -> set[ir.Node]:
    nodes: set[ir.Node] = set()
    pending = [index.value[name].producer() for name in tensors]
    while pending:
        node = pending.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            pending += (index.value[name].producer() for name in reads(node, index))
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
    if isinstance(tensor, ir.ExternalTensor) and Path(tensor.base_dir) == store.folder.absolute():
        found: onnx.TensorProto = ir.serde.serialize_tensor(tensor)
    else:
        found = onnx.TensorProto()
        found.CopyFrom(store.reference(name, name, tensor))
    found.name = name
    return found
