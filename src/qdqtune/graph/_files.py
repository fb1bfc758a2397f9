"""Loading and saving of models by path, with or without external data.

Models are untrusted: nothing outside a model's folder is read, and nothing is overwritten unless
requested. Weights stay in their files until their values are needed.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar, cast

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError

from qdqtune.graph._atomic_files import TemporaryFolder, replacing, sync, writing
from qdqtune.graph._external_data import check_external_data, external_files, is_lfs_pointer
from qdqtune.graph._file_tensor import load_attributes, read_weights
from qdqtune.graph._index import name_nodes
from qdqtune.graph._protobuf import contents, copy_fields, missing_bytes, nesting_depth
from qdqtune.graph._validity import check_model, first_line, inconsistency
from qdqtune.graph._weights import WeightStore, values_of
from qdqtune.records._errors import MissingModelError, ModelError, OutputError, UsageError
from qdqtune.records._untrusted_files import real_path

# Maximum size of a protobuf message, and maximum depth of nested messages.
_LARGEST_FILE = (1 << 31) - 1
_DEEPEST = 100


def parse_model(file: Path) -> onnx.ModelProto:
    """Read the proto of a model; external data is not loaded.

    Raises:
        ModelError: If the file does not exist, is not an ONNX model, or is empty.
    """
    _check_file(file)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from None
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(content)
    except DecodeError:
        if nesting_depth(onnx.ModelProto.DESCRIPTOR, content, enough=_DEEPEST) >= _DEEPEST:
            raise ModelError(
                f"{file} is nested too deeply: no reader of ONNX files follows more than "
                f"{_DEEPEST} messages inside each other, which is about 30 control-flow bodies.",
                "Export it with flatter control flow.",
            ) from None
        raise _not_onnx(file, content) from None
    if not content:
        raise ModelError(f"{file} is empty.", "Export the model, or copy the file, once more.")
    check_not_empty(proto, file)
    return proto


def check_not_empty(proto: onnx.ModelProto, file: Path) -> None:
    """Make sure that a model is not empty.

    Args:
        proto: The model.
        file: The model's file.

    Raises:
        ModelError: If it is empty.
    """
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError(
            f"{file} is not an ONNX file: it holds no graph.",
            "Copy it again if it may be incomplete; export to ONNX what is in another format.",
        )
    if not proto.graph.output:
        raise ModelError(
            f"{file} has no outputs: there is nothing that it could compute.",
            "Check how it was exported.",
        )
    if not proto.graph.node:
        raise ModelError(
            f"{file} has an empty graph: there is nothing to quantize or time.",
            "Check how it was exported.",
        )


def did_you_mean(path: Path) -> str:
    """Return a question about the file or folder that is named most like a missing one.

    Args:
        path: What is missing.

    Returns:
        The question; empty if nothing there has a similar name.
    """
    beside: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        beside = [each.name for each in path.parent.iterdir()]
    close = difflib.get_close_matches(path.name, beside, n=1)
    return f"Did you mean {path.with_name(close[0])}?" if close else ""


def _check_file(file: Path) -> None:
    try:
        facts = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        hint = did_you_mean(file) or "Check the path."
        raise MissingModelError(f"{file} does not exist.", hint) from None
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from None
    if stat.S_ISDIR(facts.st_mode):
        raise ModelError(f"{file} is a folder.", "Name the .onnx file in it.")
    if not stat.S_ISREG(facts.st_mode):
        raise ModelError(f"{file} is not a plain file.", "Save the model to one first.")
    if facts.st_size > _LARGEST_FILE:
        raise ModelError(
            f"{file} is larger than 2 GiB, which no ONNX file can be.",
            "Save it with external data: onnx.save(model, path, save_as_external_data=True).",
        )


def _not_onnx(file: Path, content: bytes) -> ModelError:
    if is_lfs_pointer(content):
        return ModelError(
            f"{file} is a Git LFS pointer, not the model itself.",
            "Get the model: git lfs pull, in the repository that the file is from.",
        )
    missing = missing_bytes(onnx.ModelProto.DESCRIPTOR, content)
    if missing:
        return ModelError(
            f"{file} is cut off: at least {missing} bytes of it are missing.",
            "Copy or download it again.",
        )
    return ModelError(
        f"{file} is not an ONNX file.",
        "Export to ONNX what is in another format; a file that was damaged must be copied again.",
    )


def _unreadable(file: Path, error: OSError | ValueError) -> ModelError:
    why = getattr(error, "strerror", None) or error
    return ModelError(f"{file} can't be read: {why}.", "Check its path and permissions.")


#: In a model's `meta`: whether its weights were external when it was loaded.
EXTERNAL = "qdqtune.external_data"

# A protobuf message can hold 2 GiB; larger models get external weights.
_EMBED_LIMIT_BYTES = 1 << 30


def load_model(path: str | os.PathLike[str]) -> ir.Model:
    """Read and check a model, and give every node a unique name.

    Args:
        path: The `.onnx` file; external data is looked for in its folder only.

    Raises:
        ModelError: If the file is missing, not a valid ONNX model, or its external data is
            missing, too short or outside the model's folder.
    """
    file = Path(path)
    return _checked(parse_model(file), file)


def model_from_proto(proto: onnx.ModelProto, name: str = "The model") -> ir.Model:
    """Check an in-memory model and read it like one from a file.

    Args:
        proto: The model; it is not changed.
        name: Its name in an error message.

    Raises:
        ModelError: If it is not a valid ONNX model, or its weights are not in it.
    """
    copy = _copied(proto, name)
    check_not_empty(copy, Path(name))
    if contents(copy).external:
        raise ModelError(
            f"{name} has weights in files beside it, and nothing says where it lies.",
            "Give the path of its file instead.",
        )
    return _checked(copy, Path(name))


def _copied(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Copy a model weight by weight: protobuf copies through a message of at most 2 GiB.

    Raises:
        ModelError: If a single part is too large.
    """
    copy = onnx.ModelProto()
    try:
        copy_fields(proto, copy, {field.name for field, _ in proto.ListFields()} - {"graph"})
        inside = {field.name for field, _ in proto.graph.ListFields()}
        copy_fields(proto.graph, copy.graph, inside - {"initializer"})
        for tensor in proto.graph.initializer:
            copy.graph.initializer.add().CopyFrom(tensor)
    except EncodeError:
        raise ModelError(
            f"{name} has a part of over 2 GiB, which protobuf can't copy.",
            "Save it with external data, and give the path of its file instead.",
        ) from None
    return copy


def _checked(proto: onnx.ModelProto, file: Path) -> ir.Model:
    """Check a model and give every node a unique name."""
    found = contents(proto)
    check_external_data(found.tensors, file)
    check_model(proto, found, file)
    load_attributes(found, file)
    try:
        model: ir.Model = ir.from_proto(proto)
    except ir.serde.SerdeError as error:
        raise ModelError(
            f"{file} is not a valid ONNX model: {first_line(error)}", "Export it again."
        ) from error
    name_nodes(model)
    ir.external_data.set_base_dir(model.graph, str(file.absolute().parent))
    read_weights(model)
    model.meta[EXTERNAL] = any(isinstance(each, ir.ExternalTensor) for each in _weights(model))
    return model


def save_model(model: ir.Model, path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write a model atomically.

    If the model had external weights when it was loaded, or is too large for one file, its weights
    go to `<name>.data`.

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
    data_name = target.name + ".data"
    external = bool(model.meta.get(EXTERNAL)) or _is_too_large(model)
    if external:
        check_writable(target.with_name(data_name), force=force)
    with TemporaryFolder(target.parent) as folder:
        staged = folder / target.name
        with writing(target):
            store = WeightStore(folder, data_name) if external else None
            with _weights_in(model, store):
                ir.save(model, staged)
            publish(folder, target.parent, force=force)
    return target


def write_text(path: str | os.PathLike[str], text: str, *, force: bool) -> None:
    """Write a text file atomically.

    Raises:
        OutputError: If the file exists and `force` is not set, or can't be written.
    """
    write_bytes(path, text.encode("utf-8"), force=force)


def write_bytes(path: str | os.PathLike[str], content: bytes, *, force: bool) -> None:
    """Write a file atomically.

    Raises:
        OutputError: If the file exists and `force` is not set, or can't be written.
    """
    target = Path(path)
    check_writable(target, force=force)
    with replacing(target) as file:
        file.write(content)


def check_result(path: Path, original: Path | None = None) -> None:
    """Make sure that a model qdqtune wrote is valid, including shapes and types.

    Args:
        path: The written model.
        original: The model it was made from, which may itself be inconsistent.

    Raises:
        ModelError: If it is not valid.
    """
    fault = inconsistency(parse_model(path))
    if not fault:
        return
    if original is not None and (before := inconsistency(parse_model(original))):
        raise ModelError(
            f"The model's types or shapes contradict each other: {before}",
            "Export it again; ONNX Runtime may run it, but nothing can be derived from it.",
        )
    raise ModelError(
        f"The quantized model would not be valid: {fault}",
        "Nothing was written. This is a bug in qdqtune: please report it with the model.",
    )


def publish(folder: Path, target: Path, *, force: bool) -> None:
    """Move the files of a staged model to another folder of the same disk.

    Raises:
        OutputError: If a file exists there and `force` is not set.
    """
    # Weights first, so that the model appears only once it is complete.
    for file in sorted(folder.iterdir(), reverse=True):
        check_writable(target / file.name, force=force)
        sync(file)
        os.replace(file, target / file.name)


def check_writable(path: str | os.PathLike[str], *, force: bool) -> None:
    """Check before a long job that its result can be written.

    Raises:
        OutputError: If the file exists and `force` is not set, or its folder can't be written to.
    """
    target = Path(path)
    if target.is_dir():
        raise OutputError(f"{target} is a folder, not a file.", "Name a file: -o OUT.onnx.")
    if target.exists() and not target.is_file():
        raise OutputError(f"{target} is not a plain file.", "Choose another name.")
    if os.path.lexists(target) and not force:
        raise OutputError(f"{target} exists already.", "Choose another name, or pass --force.")
    if not target.parent.is_dir():
        raise OutputError(f"The folder {target.parent} does not exist.", "Create it first.")
    if not os.access(target.parent, os.W_OK):
        raise OutputError(f"The folder {target.parent} can't be written to.", "Choose another.")


def check_targets(
    output: str | os.PathLike[str],
    beside: str | os.PathLike[str] | None,
    *sources: str | os.PathLike[str] | None,
    force: bool,
) -> None:
    """Check that a model and a file next to it can be written without damaging the sources.

    Args:
        output: The model to write; it may replace a model that is read.
        beside: Another file to write, if any.
        sources: Models that are read.
        force: Whether files may be replaced.

    Raises:
        OutputError: If one can't be written, or would replace weights that are needed.
        UsageError: If both are the same file, or the second one is a source model.
    """
    check_writable(output, force=force)
    models = [Path(source) for source in sources if source is not None]
    weights = {file: model for model in models for file in external_files(model)}
    target = real_path(output)
    data = target.with_name(target.name + ".data")
    owner = weights.get(data)
    if target in weights or (owner is not None and real_path(owner) != target):
        raise OutputError(
            f"{output} would replace weights that {weights.get(target, owner)} needs.",
            "Choose another name.",
        )
    if beside is None:
        return
    check_writable(beside, force=force)
    if real_path(beside) in {target, data, *weights, *map(real_path, models)}:
        raise UsageError(f"{beside} can't be written over a model.", "Choose another name.")


def _weights(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value


def _is_too_large(model: ir.Model) -> bool:
    return sum(tensor.nbytes for tensor in _weights(model)) > _EMBED_LIMIT_BYTES


@contextlib.contextmanager
def _weights_in(model: ir.Model, store: WeightStore | None) -> Iterator[None]:
    """Move the model's weights temporarily into a store, or into the model itself."""
    kept: list[tuple[ir.Value, ir.TensorProtocol]] = []
    try:
        for graph in model.graphs():
            for name, value in graph.initializers.items():
                tensor = value.const_value
                if tensor is None:
                    continue
                kept.append((value, tensor))
                if store is not None:
                    value.const_value = store.stored(len(kept), name, tensor)
                elif isinstance(tensor, ir.ExternalTensor):
                    value.const_value = ir.Tensor(values_of(tensor), tensor.dtype, name=name)
        yield
    finally:
        for value, tensor in kept:
            value.const_value = tensor


_PACKAGE = "onnx_graphsurgeon"

T = TypeVar("T")


def without_graphsurgeon(model: T) -> T:
    """Export a graph of onnx_graphsurgeon as an `onnx.ModelProto`; return anything else as it is.

    A caller with such a graph has already imported that package, so it is not a dependency.
    """
    if type(model).__module__.partition(".")[0] != _PACKAGE:
        return model
    return cast("T", sys.modules[_PACKAGE].export_onnx(model))
