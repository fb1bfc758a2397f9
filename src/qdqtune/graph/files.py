"""Models on disk: loaded and saved by path, with or without external data.

A model is data from a stranger: nothing outside its folder is read, and nothing is overwritten
unless asked. Weights stay in their files (memory-mapped) until somebody needs their values.
"""

from __future__ import annotations

import math
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from qdqtune.graph.naming import name_nodes
from qdqtune.records.errors import ModelError, OutputError

# One protobuf message can hold 2 GiB; past this size weights go to a file beside the model.
_EMBED_LIMIT_BYTES = 1 << 30


def load_model(path: str | os.PathLike[str]) -> ir.Model:
    """Read and check a model; every node of it has a name of its own afterwards.

    Args:
        path: The `.onnx` file; external data is looked for in its folder only.

    Raises:
        ModelError: If the file is missing, not a valid ONNX model, or its external data is
            missing, too short or outside the model's folder.
    """
    file = Path(path)
    proto = _parse(file)
    for tensor in _external_tensors(proto):
        _check_external(tensor, file)
    if proto.graph.sparse_initializer:
        raise ModelError(
            f"{file} has sparse weights, which qdqtune does not read.", "Export them as dense ones."
        )
    try:
        onnx.checker.check_model(str(file))
    except onnx.checker.ValidationError as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"{file} is not a valid ONNX model: {reason}",
            "Export it again, or see what `onnx.checker.check_model` says about it.",
        ) from None
    model = ir.from_proto(proto)
    name_nodes(model)
    ir.external_data.set_base_dir(model.graph, str(file.absolute().parent))
    return model


def save_model(model: ir.Model, path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write a model, whole or not at all.

    Weights are put into the file itself; a model too large for one file gets `<name>.data`
    beside it.

    Args:
        model: The model; it is not changed.
        path: Where to write.
        force: Whether an existing file may be replaced.

    Returns:
        The path written.

    Raises:
        OutputError: If the file exists and `force` is not set, or can't be written.
    """
    target = Path(path)
    check_writable(target, force=force)
    weights = _tensors_of(model)
    too_large = sum(tensor.nbytes for tensor in weights) > _EMBED_LIMIT_BYTES
    data_name = target.name + ".data"
    if too_large:
        check_writable(target.with_name(data_name), force=force)
    with tempfile.TemporaryDirectory(prefix=".qdqtune-", dir=target.parent) as folder:
        staged = Path(folder) / target.name
        try:
            if too_large:
                ir.save(model, staged, external_data=data_name)
            else:
                _save_embedded(model, staged)
            for file in sorted(Path(folder).iterdir(), reverse=True):
                os.replace(file, target.parent / file.name)
        except OSError as error:
            raise OutputError(
                f"{target} could not be written: {error.strerror or error}.",
                "Check that the disk has room and the folder can be written to.",
            ) from None
    return target


def write_text(path: str | os.PathLike[str], text: str, *, force: bool) -> None:
    """Write a text file, whole or not at all.

    Raises:
        OutputError: If the file exists and `force` is not set, or can't be written.
    """
    target = Path(path)
    check_writable(target, force=force)
    staged = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        staged.write_text(text, encoding="utf-8")
        os.replace(staged, target)
    except OSError as error:
        staged.unlink(missing_ok=True)
        raise OutputError(f"{target} could not be written: {error.strerror}.") from None


def check_result(path: Path) -> None:
    """Make sure that a model we wrote is valid, shapes and types included.

    Raises:
        ModelError: If it is not; that is a mistake of ours.
    """
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(
            f"The quantized model would not be valid: {str(error).strip().splitlines()[0]}",
            "Nothing was written. This is a bug in qdqtune: please report it with the model.",
        ) from error


def check_writable(path: str | os.PathLike[str], *, force: bool) -> None:
    """Find out before a long job whether its result can be written.

    Raises:
        OutputError: If the file exists and `force` is not set, or its folder can't be written to.
    """
    target = Path(path)
    if target.is_dir():
        raise OutputError(f"{target} is a folder, not a file.", "Name a file: -o OUT.onnx.")
    if target.exists() and not target.is_file():
        raise OutputError(f"{target} is not a plain file.", "Choose another name.")
    if target.exists() and not force:
        raise OutputError(f"{target} exists already.", "Choose another name, or pass --force.")
    if not target.parent.is_dir():
        raise OutputError(f"The folder {target.parent} does not exist.", "Create it first.")
    if not os.access(target.parent, os.W_OK):
        raise OutputError(f"The folder {target.parent} can't be written to.", "Choose another.")


def _parse(file: Path) -> onnx.ModelProto:
    try:
        proto = onnx.load(str(file), format="protobuf", load_external_data=False)
    except FileNotFoundError:
        raise ModelError(f"{file} does not exist.", "Check the path.") from None
    except IsADirectoryError:
        raise ModelError(f"{file} is a folder.", "Name the .onnx file in it.") from None
    except OSError as error:
        raise ModelError(f"{file} can't be read: {error.strerror}.") from None
    except DecodeError:
        raise ModelError(
            f"{file} is not an ONNX file.",
            "Models in other formats must be exported to ONNX first.",
        ) from None
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError(f"{file} is not an ONNX file: it holds no graph.")
    if not proto.graph.node:
        raise ModelError(
            f"{file} has an empty graph: there is nothing to quantize or time.",
            "Check how it was exported.",
        )
    return proto


def _external_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    pending = [proto.graph]
    while pending:
        graph = pending.pop()
        for tensor in graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                yield tensor
        for node in graph.node:
            for attribute in node.attribute:
                pending += [attribute.g] if attribute.HasField("g") else []
                pending += attribute.graphs
                for tensor in (attribute.t, *attribute.tensors):
                    if tensor.data_location == onnx.TensorProto.EXTERNAL:
                        yield tensor


def _check_external(tensor: onnx.TensorProto, model_file: Path) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    what = f"{model_file}: the weight {tensor.name!r} lies in {location!r}"
    folder = model_file.absolute().parent
    file = folder / location
    inside = file.resolve().is_relative_to(folder.resolve())
    if not location or Path(location).is_absolute() or not inside:
        raise ModelError(
            f"{what}, which is outside the model's folder.",
            "External data must lie beside the model, as a relative path.",
        )
    try:
        facts = file.lstat()
    except OSError:
        raise ModelError(
            f"{what}, and that file is missing.", f"Put it into {folder}, beside the model."
        ) from None
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
        raise ModelError(f"{what}, which is a link, not a plain file.", "Copy the file there.")
    try:
        needed = -(-math.prod(tensor.dims) * ir.DataType(tensor.data_type).bitwidth // 8)
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", needed))
    except (ValueError, TypeError):
        raise ModelError(f"{what}, with a broken type, offset or length.") from None
    if offset < 0 or length < needed or offset + length > facts.st_size:
        raise ModelError(
            f"{what}, but that file ends before it.", "The file is truncated: copy it again."
        )


def _tensors_of(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value


def _save_embedded(model: ir.Model, path: Path) -> None:
    """Write with all weights inside; external tensors are read now and the model left as it was."""
    external = [
        value
        for graph in model.graphs()
        for value in graph.initializers.values()
        if isinstance(value.const_value, ir.ExternalTensor)
    ]
    kept = [value.const_value for value in external]
    try:
        for value, tensor in zip(external, kept, strict=True):
            assert tensor is not None
            value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=value.name)
        ir.save(model, path)
    finally:
        for value, tensor in zip(external, kept, strict=True):
            value.const_value = tensor
