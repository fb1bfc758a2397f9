"""Digests of models: of their content, whatever file they came from, and of their files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from qdqtune.graph._external_data import check_external_data, stored_bytes
from qdqtune.graph._files import parse_model
from qdqtune.graph._protobuf import contents
from qdqtune.graph._weights import DIGEST_BYTES, bytes_of


def fingerprint(model: ir.Model) -> str:
    """Return a hash of everything that determines what a model computes, and of its names.

    Names count because placements refer to them. Doc strings, metadata, inferred shapes, and
    whether weights are external don't count.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    digest.update(repr(sorted(model.opset_imports.items())).encode())
    _update_graph(digest, model.graph)
    for key in sorted(model.functions):
        digest.update(repr(key).encode())
        _update_function(digest, model.functions[key])
    return digest.hexdigest()


def tensor_digest(tensor: ir.TensorProtocol) -> str:
    """Return a hash of a tensor's type, shape and values."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
    if isinstance(tensor, ir.StringTensor):
        digest.update(repr(list(tensor.string_data())).encode())
    else:
        for chunk in bytes_of(tensor):
            digest.update(chunk)
    return digest.hexdigest()


def _update_graph(digest: hashlib.blake2b, graph: ir.Graph) -> None:
    for group in (graph.inputs, graph.outputs):
        digest.update(repr([(v.name, str(v.dtype), str(v.shape)) for v in group]).encode())
    for name in sorted(graph.initializers):
        tensor = graph.initializers[name].const_value
        digest.update(name.encode())
        if tensor is not None:
            digest.update(tensor_digest(tensor).encode())
    for node in graph:
        digest.update(_node_text(node))


def _update_function(digest: hashlib.blake2b, function: ir.Function) -> None:
    names = [[value.name for value in group] for group in (function.inputs, function.outputs)]
    attributes = [_attribute_text(each) for _, each in sorted(function.attributes.items())]
    opsets = sorted(function.opset_imports.items())
    digest.update(repr((names, attributes, opsets)).encode())
    for node in function:
        digest.update(_node_text(node))


def _node_text(node: ir.Node) -> bytes:
    inputs = [value.name if value is not None else None for value in node.inputs]
    outputs = [value.name for value in node.outputs]
    attributes = [_attribute_text(node.attributes[name]) for name in sorted(node.attributes)]
    return repr((node.domain, node.op_type, node.name, inputs, outputs, attributes)).encode()


def _attribute_text(attribute: ir.Attr) -> object:
    value = attribute.value
    if attribute.is_ref():
        value = attribute.ref_attr_name
    elif attribute.type == ir.AttributeType.TENSOR:
        value = tensor_digest(value)
    elif attribute.type == ir.AttributeType.TENSORS:
        value = [tensor_digest(tensor) for tensor in value]
    elif attribute.type == ir.AttributeType.GRAPH:
        value = _graph_digest([value])
    elif attribute.type == ir.AttributeType.GRAPHS:
        value = _graph_digest(value)
    return (attribute.name, attribute.type.name, str(value))


def _graph_digest(graphs: Iterable[ir.Graph]) -> str:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for graph in graphs:
        _update_graph(digest, graph)
    return digest.hexdigest()


def model_digest(
    model_file: Path, known: Callable[[onnx.TensorProto], bytes | None] = lambda _: None
) -> str:
    """Return a digest that changes with any byte of a model, including external weights.

    The position of weights within their files does not matter: repairing a weight file moves them.

    Args:
        model_file: The model.
        known: Returns the digest of a tensor's external bytes if it is known; otherwise the bytes
            are read.

    Raises:
        ModelError: If the model or its weights can't be read.
    """
    proto = parse_model(model_file)
    for tensor in contents(proto).external:
        digest = known(tensor)
        tensor.raw_data = stored_digest(tensor, model_file) if digest is None else digest
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    serialized = proto.SerializeToString(deterministic=True)
    return hashlib.blake2b(serialized, digest_size=DIGEST_BYTES).hexdigest()


def network_digest(model_file: Path) -> str:
    """Return a digest of what an engine builds: where weights are stored does not matter to it.

    Args:
        model_file: The model.

    Raises:
        ModelError: If the model or its weights can't be read.
    """
    proto = parse_model(model_file)
    for field in (
        "producer_name", "producer_version", "domain", "model_version", "doc_string",
        "metadata_props",
    ):  # fmt: skip
        proto.ClearField(field)
    for field in ("name", "doc_string", "value_info", "metadata_props"):
        proto.graph.ClearField(field)
    for tensor in contents(proto).external:
        tensor.raw_data = stored_digest(tensor, model_file)
    for tensor in proto.graph.initializer:
        if not tensor.external_data and tensor.raw_data:
            tensor.raw_data = hashlib.blake2b(tensor.raw_data, digest_size=DIGEST_BYTES).digest()
        for field in ("external_data", "data_location", "doc_string", "metadata_props"):
            tensor.ClearField(field)
    serialized = proto.SerializeToString(deterministic=True)
    return hashlib.blake2b(serialized, digest_size=DIGEST_BYTES).hexdigest()


def stored_digest(tensor: onnx.TensorProto, model_file: Path) -> bytes:
    """Return the digest of a tensor's bytes in an external file.

    Raises:
        ModelError: If they can't be read.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for chunk in stored_chunks(tensor, model_file):
        digest.update(chunk)
    return digest.digest()


def stored_chunks(tensor: onnx.TensorProto, model_file: Path) -> Iterator[bytes]:
    """Yield a tensor's bytes from an external file, a chunk at a time.

    Args:
        tensor: The tensor; if the file reserves more room than it needs, all of it is read.
        model_file: The model.

    Raises:
        ModelError: If they can't be read.
    """
    check_external_data([tensor], model_file)
    entries = {entry.key: entry.value for entry in tensor.external_data}
    file = model_file.absolute().parent / entries["location"]
    offset = int(entries.get("offset", "0"))
    length = int(entries.get("length", file.stat().st_size - offset))
    return stored_bytes(tensor.name, file, offset, length)
