"""The file of weights that candidates share, over several runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune.graph._fingerprint import stored_digest
from qdqtune.graph._weights import WEIGHTS_FILE, WeightStore


def tensor(seed: int, size: int = 2000) -> ir.Tensor:
    return ir.Tensor(np.random.default_rng(seed).normal(size=size).astype(np.float32))


def values(proto: onnx.TensorProto, folder: Path) -> bytes:
    facts = {entry.key: entry.value for entry in proto.external_data}
    content = (folder / facts["location"]).read_bytes()
    return content[int(facts["offset"]) :][: int(facts["length"])]


def written(folder: Path, *seeds: int) -> list[onnx.TensorProto]:
    """What one run hands out for these tensors."""
    store = WeightStore(folder, keep_index=True)
    return [store.reference(("run", seed), f"w{seed}", tensor(seed)) for seed in seeds]


def test_what_an_earlier_run_wrote_is_found_in_any_order(tmp_path: Path) -> None:
    first = written(tmp_path, 1, 2, 3)
    size = (tmp_path / WEIGHTS_FILE).stat().st_size
    assert written(tmp_path, 3, 1, 2) == [first[2], first[0], first[1]]
    assert (tmp_path / WEIGHTS_FILE).stat().st_size == size


@pytest.mark.parametrize(
    "index", [None, b"", b"garbage\n0 8000\n", b"0 8000 1\n", b"9" * 5000 + b" 8000 1\n"]
)
def test_what_is_new_is_added_and_nothing_is_changed(tmp_path: Path, index: bytes | None) -> None:
    first = written(tmp_path, 1, 2)
    before = (tmp_path / WEIGHTS_FILE).read_bytes()
    if index is not None:
        (tmp_path / WEIGHTS_FILE).with_suffix(".index").write_bytes(index)
    second = written(tmp_path, 4, 2)
    assert (tmp_path / WEIGHTS_FILE).read_bytes().startswith(before)
    for proto, seed in zip([*first, *second], [1, 2, 4, 2], strict=True):
        assert values(proto, tmp_path) == tensor(seed).tobytes()


@pytest.mark.parametrize("position", [0, 100, 9000])
def test_what_was_damaged_since_is_written_anew(tmp_path: Path, position: int) -> None:
    written(tmp_path, 1, 2)
    file = tmp_path / WEIGHTS_FILE
    content = bytearray(file.read_bytes())
    content[position] ^= 4
    file.write_bytes(content)
    for proto, seed in zip(written(tmp_path, 1, 2), [1, 2], strict=True):
        assert values(proto, tmp_path) == tensor(seed).tobytes()


def test_a_torn_end_does_no_harm(tmp_path: Path) -> None:
    written(tmp_path, 1, 2)
    file = tmp_path / WEIGHTS_FILE
    file.write_bytes(file.read_bytes()[:-100])
    for proto, seed in zip(written(tmp_path, 1, 2), [1, 2], strict=True):
        assert values(proto, tmp_path) == tensor(seed).tobytes()


def test_a_digest_is_of_the_bytes_that_were_given_wherever_they_lie(tmp_path: Path) -> None:
    store = WeightStore(tmp_path, keep_index=True)
    first, second = (store.reference(n, "w", tensor(seed)) for n, seed in enumerate([1, 2]))
    assert store.digest_of(first) == stored_digest(first, tmp_path / "model.onnx")
    assert store.digest_of(first) != store.digest_of(second)
    file = tmp_path / WEIGHTS_FILE
    file.write_bytes(bytes(file.stat().st_size))
    again = WeightStore(tmp_path, keep_index=True)
    moved = again.reference(1, "w", tensor(1))
    assert moved != first
    assert again.digest_of(moved) == store.digest_of(first)
    assert again.digest_of(first) is None
