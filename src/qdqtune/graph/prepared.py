"""A model turned into protos once, so that variants of it can be written many times per second."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import onnx_ir as ir

from qdqtune.graph.index import GraphIndex
from qdqtune.graph.weights import WeightStore


class PreparedModel:
    """A base model whose variants are small files beside one shared weights file.

    Args:
        model: The base; it must not change while this object is in use.
        folder: Where variants and weights go.

    Attributes:
        index: The base's index.
        store: The shared weights.
        frame: Everything of the base but its nodes and constants; copy it, don't change it.
        nodes: One proto per node of `index.nodes`; copy before changing one.
        constants: References to the base's initializers by name.
    """

    def __init__(self, model: ir.Model, folder: Path) -> None:
        self.index = GraphIndex(model)
        self.store = WeightStore(folder)
        self.frame = _frame(model)
        self.nodes = [ir.to_proto(node) for node in self.index.nodes]
        self.constants = {
            name: self.store.reference(("base", name), name, value.const_value)
            for name, value in model.graph.initializers.items()
            if value.const_value is not None
        }

    def whole(self) -> onnx.ModelProto:
        """The base itself, as a variant like any other."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.frame)
        proto.graph.initializer.extend(self.constants.values())
        proto.graph.node.extend(self.nodes)
        return proto

    def write(self, proto: onnx.ModelProto, name: str) -> Path:
        """Write a variant into the folder, as `<name>.onnx`."""
        path = self.store.folder / f"{name}.onnx"
        staged = path.with_suffix(".tmp")
        staged.write_bytes(proto.SerializeToString())
        os.replace(staged, path)
        return path

    def load(self, proto: onnx.ModelProto) -> ir.Model:
        """A variant as a model, its weights still in the shared file."""
        model = ir.from_proto(proto)
        ir.external_data.set_base_dir(model.graph, str(self.store.folder))
        return model


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
