"""A mutant: a seed, some mutations of it, and what has to come of it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import onnx

from tests.fuzz.byte_mutations import BYTE_MUTATIONS
from tests.fuzz.external_mutations import EXTERNAL_MUTATIONS
from tests.fuzz.graph_mutations import GRAPH_MUTATIONS
from tests.fuzz.seeds import SEEDS, write_seed
from tests.fuzz.tensor_mutations import TENSOR_MUTATIONS

#: Stands in a name for bytes that are not UTF-8, which the Python protobuf won't write.
NOT_UTF8 = "NOT_UTF8_HERE"

_WEIGHTED_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class Mutant:
    """One broken model on disk.

    Attributes:
        path: The file, in a folder of its own.
        secret: A file outside that folder that nobody may open.
        history: The seed and what was done to it.
        ops: Op types to quantize.
        refused: Whether it must not be read at all: it points out of its folder.
    """

    path: Path
    secret: Path
    history: str
    ops: tuple[str, ...]
    refused: bool = False


def make_mutant(seed: int, folder: Path) -> Mutant:
    """Write the mutant with that number into an empty folder; always the same one."""
    rng = random.Random(seed)
    home = folder / "model"
    home.mkdir()
    secret = folder / "secret.bin"
    secret.write_bytes(b"\x5a\x5a\x5a\x3f" * 4096)
    name = rng.choice(sorted(SEEDS))
    if rng.random() < 0.15:
        name = "external"
    model = write_seed(name, home)
    history, refused = [name], False
    if name == "external":
        mutation = rng.choice(EXTERNAL_MUTATIONS)
        refused = mutation.outside
        mutation.apply(rng, model, home, secret)
        history.append(mutation.apply.__name__)
    elif rng.random() < 0.8:
        for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
            change = rng.choice(GRAPH_MUTATIONS + TENSOR_MUTATIONS * 2)
            change(rng, model)
            history.append(change.__name__)
    ops = tuple(sorted({node.op_type for node in model.graph.node} & set(_WEIGHTED_OPS)))
    data = bytearray(_serialized(model))
    if len(history) == 1 or (not refused and rng.random() < 0.05):
        spoil = rng.choice(BYTE_MUTATIONS)
        spoil(rng, data)
        history.append(spoil.__name__)
    path = home / "model.onnx"
    path.write_bytes(data)
    return Mutant(path, secret, " + ".join(history), ops or ("Conv",), refused)


def _serialized(model: onnx.ModelProto) -> bytes:
    data: bytes = model.SerializeToString()
    return data.replace(NOT_UTF8.encode(), b"\xff\xfe\xc3" + b"\x80" * (len(NOT_UTF8) - 3))
