"""A model serialized once in parts, from which variants and subgraphs are written quickly."""

from __future__ import annotations

import gc
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx.helper import make_tensor_value_info

from qdqtune.graph._atomic_files import replacing
from qdqtune.graph._file_tensor import FileTensor, read_weights
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import has_body
from qdqtune.graph._protobuf import field_head, field_part
from qdqtune.graph._weights import WeightStore
from qdqtune.records._errors import ModelError

Dims = Sequence["int | str | None"]
"""A shape; names and None are open dims."""


class PreparedModel:
    """A base model whose variants are small files next to one shared weights file.

    Args:
        model: The base; it must not change while this object is in use. Its weights move into the
            folder: the model keeps only references to them.
        folder: The folder for variants and weights.
        is_kept: Whether the folder belongs to a run that may be resumed.
        store: The weights of other models in that folder, to share with them.

    Attributes:
        index: The base's index.
        store: The shared weights.
        nodes: One proto per node of `index.nodes`; copy before changing one.
        node_parts: The same, serialized as parts of a graph.
        constant_parts: References to the base's initializers by name, as parts of a graph.
    """

    def __init__(
        self,
        model: ir.Model,
        folder: Path,
        *,
        is_kept: bool = False,
        store: WeightStore | None = None,
    ) -> None:
        self.index = GraphIndex(model)
        self.store = store or WeightStore(folder, keep_index=is_kept)
        _inline_bodies(model)
        self.nodes = [ir.serde.serialize_node(node) for node in self.index.nodes]
        self.node_parts = [node_part(node) for node in self.nodes]
        self.constant_parts: dict[str, bytes] = {}
        for name, value in model.graph.initializers.items():
            if value.const_value is not None:
                key = ("base", name)
                self.constant_parts[name] = constant_part(
                    self.store.reference(key, name, value.const_value)
                )
                value.const_value = self.store.stored(key, name, value.const_value)
        gc.collect()  # reference cycles of removed nodes keep folded weights alive
        frame = _frame(model)
        self._graph_frame: bytes = frame.graph.SerializeToString()
        frame.ClearField("graph")
        self._frame: bytes = frame.SerializeToString()

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the base."""
        return fingerprint(self.index.model)

    def assemble(
        self,
        nodes: Iterable[bytes],
        constants: Iterable[bytes],
        metadata: Mapping[str, str] | None = None,
        opsets: Mapping[str, int] | None = None,
    ) -> bytes:
        """Assemble a variant.

        Args:
            nodes: Node parts in topological order.
            constants: Constant parts.
            metadata: Entries to add to the model's metadata.
            opsets: Versions by domain, to be imported unless the base imports the domain.

        Returns:
            The serialized model.
        """
        graph = b"".join((self._graph_frame, *nodes, *constants))
        extra = onnx.ModelProto()
        for key, value in (metadata or {}).items():
            extra.metadata_props.add(key=key, value=value)
        for domain, version in (opsets or {}).items():
            if domain not in self.index.model.opset_imports:
                extra.opset_import.add(domain=domain, version=version)
        return b"".join(
            (self._frame, extra.SerializeToString(), field_part(onnx.ModelProto, "graph", graph))
        )

    def whole(self) -> bytes:
        """Return the base itself as a variant."""
        return self.assemble(self.node_parts, self.constant_parts.values())

    def write(self, variant: bytes, name: str) -> Path:
        """Write a variant into the folder, as `<name>.onnx`.

        Raises:
            ValueError: If the name would lead out of the folder.
            OutputError: If the disk is full.
        """
        if Path(name).name != name or "\\" in name:
            raise ValueError(f"{name!r} is not a plain file name")
        path = self.store.folder / f"{name}.onnx"
        with replacing(path, durable=False) as file:  # it can be written again if lost
            file.write(variant)
        return path

    def write_for_now(self, variant: bytes, name: str) -> Path:
        """Write a temporary variant, whose name marks it for removal after a kill."""
        return self.write(variant, f".{name}")

    def load(self, variant: bytes) -> ir.Model:
        """Return a variant as a model, with its weights still in the shared file."""
        model: ir.Model = ir.from_proto(onnx.ModelProto.FromString(variant))
        ir.external_data.set_base_dir(model.graph, str(self.store.folder))
        read_weights(model)
        model.meta.update(self.index.model.meta)
        return model


def node_part(node: onnx.NodeProto) -> bytes:
    """Serialize a node as part of a graph."""
    return field_part(onnx.GraphProto, "node", node.SerializeToString())


def constant_part(tensor: onnx.TensorProto) -> bytes:
    """Serialize an initializer as part of a graph."""
    return field_part(onnx.GraphProto, "initializer", tensor.SerializeToString())


def _inline_bodies(model: ir.Model) -> None:
    """Load the weights of control-flow bodies: a variant is in another folder."""
    for graph in model.graphs():
        for value in graph.initializers.values() if graph is not model.graph else ():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                value.const_value = ir.Tensor(tensor.numpy(), tensor.dtype, name=value.name)


def _frame(model: ir.Model) -> onnx.ModelProto:
    graph = model.graph
    frame = onnx.ModelProto(
        ir_version=model.ir_version,
        producer_name=model.producer_name or "",
        producer_version=model.producer_version or "",
        domain=model.domain or "",
        model_version=model.model_version or 0,
        doc_string=model.doc_string or "",
    )
    for domain, version in model.opset_imports.items():
        frame.opset_import.add(domain=domain, version=version)
    for key, value in model.metadata_props.items():
        frame.metadata_props.add(key=key, value=value)
    frame.functions.extend(ir.to_proto(function) for function in model.functions.values())
    frame.graph.name = graph.name or "graph"
    frame.graph.input.extend(
        ir.to_proto(value) for value in graph.inputs if not value.is_initializer()
    )
    frame.graph.output.extend(ir.to_proto(value) for value in graph.outputs)
    return frame


def external_bytes(variant: bytes) -> int:
    """Return the number of bytes of a serialized model's weights that are external.

    Args:
        variant: The model, as `PreparedModel.assemble` writes it.
    """
    proto = onnx.ModelProto.FromString(variant)
    entries = (entry for tensor in proto.graph.initializer for entry in tensor.external_data)
    return sum(int(entry.value) for entry in entries if entry.key == "length")


def inlined(variant: bytes, folder: Path) -> bytes:
    """Return the serialized model with its weights inside.

    Args:
        variant: The model, as `PreparedModel.assemble` writes it; it is below 2 GB.
        folder: The folder of the files with its weights.
    """
    proto = onnx.ModelProto.FromString(variant)
    weights = [_initializer(each, folder) for each in proto.graph.initializer if each.external_data]
    small = [tensor for tensor in proto.graph.initializer if not tensor.external_data]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(small)
    rest = proto.graph.SerializeToString()
    proto.ClearField("graph")
    length = len(rest) + sum(len(head) + tensor.nbytes for head, tensor in weights)
    whole = io.BytesIO()
    whole.write(proto.SerializeToString() + field_head(onnx.ModelProto, "graph", length) + rest)
    for head, tensor in weights:
        whole.write(head)
        tensor.tofile(whole)
    return whole.getvalue()


def _initializer(tensor: onnx.TensorProto, folder: Path) -> tuple[bytes, FileTensor]:
    """Return a weight as part of a graph: the bytes before its values, and the values."""
    values = ir.serde.deserialize_tensor(tensor, folder)
    assert isinstance(values, ir.ExternalTensor)
    values = FileTensor.of(values)
    bare = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    start = bare.SerializeToString() + field_head(onnx.TensorProto, "raw_data", values.nbytes)
    return field_head(onnx.GraphProto, "initializer", len(start) + values.nbytes) + start, values


def extract(
    base: PreparedModel,
    nodes: Collection[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
    dims: Mapping[str, Dims],
) -> ir.Model:
    """Extract nodes from a model.

    Args:
        base: The model; its weights are referenced, not copied.
        nodes: Names of the nodes.
        inputs: Tensors that they read from other nodes, except constants.
        outputs: Their tensors that other nodes read.
        dims: Shapes of inputs and outputs; missing ones stay open.

    Raises:
        ModelError: If a type is unknown, or a node has a body, which may read anything.
    """
    index = base.index
    wanted = sorted(nodes, key=index.position.__getitem__)
    if any(has_body(index.node[name]) for name in wanted):
        raise ModelError("A subgraph with control flow can't be cut out.", "It stays float.")
    proto = onnx.ModelProto.FromString(base.assemble((), ()))
    del proto.metadata_props[:]
    graph = proto.graph
    del graph.input[:], graph.output[:]
    graph.name = "subgraph"
    for name in wanted:
        graph.node.add().CopyFrom(base.nodes[index.position[name]])
    read = {tensor for node in graph.node for tensor in node.input if tensor}
    for tensor in sorted(read & base.constant_parts.keys()):
        graph.MergeFromString(base.constant_parts[tensor])
    graph.input.extend(_info(index, tensor, dims.get(tensor)) for tensor in inputs)
    graph.output.extend(_info(index, tensor, dims.get(tensor)) for tensor in outputs)
    model = base.load(proto.SerializeToString())
    for value in (value for node in model.graph for value in node.outputs):
        known = index.value.get(value.name or "")
        if known is not None and value.shape is None:
            value.type, value.shape = known.type, known.shape
    return model


def _info(index: GraphIndex, tensor: str, dims: Dims | None) -> onnx.ValueInfoProto:
    dtype = index.dtype(tensor)
    if dtype is None:
        raise ModelError(f"The type of {tensor!r} is not known.", "The subgraph stays float.")
    return make_tensor_value_info(tensor, dtype.value, dims)
