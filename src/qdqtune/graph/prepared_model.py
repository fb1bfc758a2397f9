"""A model serialized once in parts, from which variants can be written many times per second."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

import onnx
import onnx_ir as ir

from qdqtune.graph.atomic_files import replacing
from qdqtune.graph.file_tensor import read_weights
from qdqtune.graph.fingerprint import fingerprint
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.protobuf_wire import field_part
from qdqtune.graph.weights import WeightStore


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
    ) -> bytes:
        """Assemble a variant.

        Args:
            nodes: Node parts in topological order.
            constants: Constant parts.
            metadata: Entries to add to the model's metadata.

        Returns:
            The serialized model.
        """
        graph = b"".join((self._graph_frame, *nodes, *constants))
        extra = onnx.ModelProto()
        for key, value in (metadata or {}).items():
            extra.metadata_props.add(key=key, value=value)
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
        with replacing(path, durable=False) as file:  # it can be written again if it is lost
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
