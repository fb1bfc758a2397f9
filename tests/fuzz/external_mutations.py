"""Lies about where weights lie."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx

from tests.fuzz.seeds import WEIGHTS


@dataclass(frozen=True)
class ExternalMutation:
    """A way to misplace weights.

    Attributes:
        apply: Does it: takes the model, its folder, and a file outside that nobody may open.
        outside: Whether the model then points out of its folder, so that it must be refused.
    """

    apply: Callable[[random.Random, onnx.ModelProto, Path, Path], None]
    outside: bool


def _set(tensor: onnx.TensorProto, **entries: str) -> None:
    for key, value in entries.items():
        known = [entry for entry in tensor.external_data if entry.key == key]
        entry = known[0] if known else tensor.external_data.add(key=key)
        entry.value = value


def _some(rng: random.Random, model: onnx.ModelProto) -> onnx.TensorProto:
    tensor: onnx.TensorProto = rng.choice(model.graph.initializer)
    return tensor


def location_outside(rng: random.Random, model: onnx.ModelProto, home: Path, secret: Path) -> None:
    """A path that leads out of the folder."""
    (home / "sub").mkdir()
    ways = ("../secret.bin", str(secret), "sub/../../secret.bin", f"../{home.name}/../secret.bin")
    _set(_some(rng, model), location=rng.choice(ways), offset="0")


def symlink(rng: random.Random, model: onnx.ModelProto, home: Path, secret: Path) -> None:
    """A symbolic link to the file outside."""
    target = rng.choice((secret, Path("../secret.bin")))
    (home / "link.bin").symlink_to(target)
    _set(_some(rng, model), location="link.bin", offset="0")


def symlinked_folder(rng: random.Random, model: onnx.ModelProto, home: Path, secret: Path) -> None:
    """A folder that is a link to the one outside."""
    (home / "sub").symlink_to(secret.parent)
    _set(_some(rng, model), location="sub/secret.bin", offset="0")


def hardlink(rng: random.Random, model: onnx.ModelProto, home: Path, secret: Path) -> None:
    """A second name of the file outside."""
    os.link(secret, home / "link.bin")
    _set(_some(rng, model), location="link.bin", offset="0")


def attribute_outside(rng: random.Random, model: onnx.ModelProto, home: Path, secret: Path) -> None:
    """A tensor outside, in an attribute of a node, a function or a body."""
    tensor = onnx.TensorProto(
        name="t", data_type=onnx.TensorProto.FLOAT, dims=[4],
        data_location=onnx.TensorProto.EXTERNAL,
    )  # fmt: skip
    _set(tensor, location="../secret.bin", offset="0", length="16")
    constant = onnx.helper.make_node("Constant", [], ["smuggled"], name="smuggler", value=tensor)
    if rng.random() < 0.5:
        model.graph.node.insert(0, constant)
    else:
        opset = [onnx.helper.make_opsetid("", 17)]
        function = onnx.helper.make_function("l", "F", [], ["smuggled"], [constant], opset)
        model.functions.append(function)
        model.opset_import.add(domain="l", version=1)
        model.graph.node.insert(0, onnx.helper.make_node("F", [], ["s"], domain="l", name="f"))


def sparse_outside(rng: random.Random, model: onnx.ModelProto, home: Path, secret: Path) -> None:
    """Sparse weights whose values lie outside."""
    values = onnx.TensorProto(
        name="t", data_type=onnx.TensorProto.FLOAT, dims=[1],
        data_location=onnx.TensorProto.EXTERNAL,
    )  # fmt: skip
    _set(values, location="../secret.bin", offset="0", length="4")
    indices = onnx.helper.make_tensor("i", onnx.TensorProto.INT64, [1], [0])
    sparse = onnx.helper.make_sparse_tensor(values, indices, [4])
    if rng.random() < 0.5:
        model.graph.sparse_initializer.append(sparse)
    else:
        node = onnx.helper.make_node("Constant", [], ["smuggled"], name="s", sparse_value=sparse)
        model.graph.node.insert(0, node)


def wrong_numbers(rng: random.Random, model: onnx.ModelProto, home: Path, secret: Path) -> None:
    """Offsets and lengths that make no sense."""
    key = rng.choice(("offset", "length"))
    numbers = ("-1", "-999", str(1 << 62), str(1 << 70), "9" * 5000, "x", "1.5", "", " 0", "0x10",
               "1e3", "\u0663", "999999")  # fmt: skip
    _set(_some(rng, model), **{key: rng.choice(numbers)})


def odd_location(rng: random.Random, model: onnx.ModelProto, home: Path, secret: Path) -> None:
    """Locations that are no file in the folder."""
    (home / "sub").mkdir()
    ways = ("", ".", "..", "sub", "nothing.bin", "\0", f"{WEIGHTS}\0x", "a" * 5000, "\x1b[31m.bin",
            f"{WEIGHTS}/", "model.onnx", "~/secret.bin", "C:\\secret.bin", "..\\secret.bin",
            "file:///etc/passwd", "$HOME/x", "[red]x")  # fmt: skip
    _set(_some(rng, model), location=rng.choice(ways))


def odd_file(rng: random.Random, model: onnx.ModelProto, home: Path, secret: Path) -> None:
    """Weights that are no plain file."""
    file = home / WEIGHTS
    file.unlink()
    how = rng.choice(("pipe", "loop", "folder", "empty"))
    if how == "pipe":
        os.mkfifo(file)
    elif how == "loop":
        file.symlink_to(file)
    elif how == "folder":
        file.mkdir()
    else:
        file.touch()


def odd_entries(rng: random.Random, model: onnx.ModelProto, home: Path, secret: Path) -> None:
    """Keys twice, unknown or missing."""
    tensor = _some(rng, model)
    for key, value in rng.choice(
        (
            (("location", WEIGHTS), ("location", "../secret.bin")),
            (("location", "../secret.bin"), ("location", WEIGHTS)),
            (("__class__", "x"),),
            (("base_dir", "/"), ("path", "/etc/passwd")),
            (("checksum", "0" * 40),),
            (("", ""),),
        )
    ):
        tensor.external_data.add(key=key, value=value)
    if rng.random() < 0.3:
        del tensor.external_data[0]


def inline_and_external(
    rng: random.Random, model: onnx.ModelProto, home: Path, secret: Path
) -> None:
    """Values in the file and beside it at once, or in neither place."""
    tensor = _some(rng, model)
    if rng.random() < 0.5:
        tensor.raw_data = b"\0" * 8
    else:
        tensor.data_location = onnx.TensorProto.DEFAULT


def other_dims(rng: random.Random, model: onnx.ModelProto, home: Path, secret: Path) -> None:
    """More values than the file has."""
    tensor = _some(rng, model)
    tensor.dims[0] = rng.choice((0, -1, 1 << 31, 1 << 62, 5))


def short_file(rng: random.Random, model: onnx.ModelProto, home: Path, secret: Path) -> None:
    """A file that was cut off."""
    file = home / WEIGHTS
    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])


EXTERNAL_MUTATIONS = (
    *(
        ExternalMutation(apply, outside=True)
        for apply in (
            location_outside, symlink, symlinked_folder, hardlink, attribute_outside,
            sparse_outside,
        )
    ),
    *(
        ExternalMutation(apply, outside=False)
        for apply in (
            wrong_numbers, odd_location, odd_file, odd_entries, inline_and_external, other_dims,
            short_file,
        )
    ),
)  # fmt: skip
