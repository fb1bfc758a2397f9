"""Weights in files are read, so that a file which is cut meanwhile is an error like any other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune.graph._file_tensor import FileTensor
from qdqtune.graph._files import load_model, save_model
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.records._errors import ModelError
from tests.conftest import model_from_text


def save_beside(folder: Path) -> Path:
    """A MatMul and a Relu whose weight lies in ``w.bin``, in the second page."""
    weight = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    text = "g (float[4,64] x) => (float[4,64] y) { h = MatMul(x, w) y = Relu(h) }"
    model = model_from_text(text, w=weight)
    (folder / "w.bin").write_bytes(bytes(8192) + weight.tobytes())
    proto = model.graph.initializer[0]
    proto.ClearField("raw_data")
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", "offset": 8192, "length": weight.nbytes}.items():
        proto.external_data.add(key=key, value=str(value))
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def cut(folder: Path) -> None:
    with (folder / "w.bin").open("r+b") as file:
        file.truncate(100)


def test_what_was_read_stays_when_the_file_is_cut(tmp_path: Path) -> None:
    """In a process of its own: to look at a mapped file that was cut ends it."""
    code = """
import sys
from pathlib import Path
from qdqtune.graph._files import load_model
model = load_model(sys.argv[1])
values = model.graph.initializers["w"].const_value.numpy()
before = values.sum()
with Path(sys.argv[1]).with_name("w.bin").open("r+b") as file:
    file.truncate(100)
assert values.sum() == before
"""
    path = save_beside(tmp_path)
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("how", ["numpy", "tobytes", "fingerprint", "save", "gone"])
def test_a_file_that_was_cut_after_loading_is_named(tmp_path: Path, how: str) -> None:
    model = load_model(save_beside(tmp_path))
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    use = {
        "numpy": tensor.numpy,
        "tobytes": tensor.tobytes,
        "fingerprint": lambda: fingerprint(model),
        "save": lambda: save_model(model, tmp_path / "out.onnx"),
        "gone": tensor.numpy,
    }[how]
    use()
    cut(tmp_path)
    if how == "gone":
        (tmp_path / "w.bin").unlink()
    (tmp_path / "out.onnx").unlink(missing_ok=True)
    (tmp_path / "out.onnx.data").unlink(missing_ok=True)
    with pytest.raises(ModelError, match=r"'w' lies in .*w\.bin, but that file .* now") as error:
        use()
    assert "changed while it was in use" in error.value.hint
    assert not (tmp_path / "out.onnx").exists()


CUT_MEANWHILE = """
import json, sys
from pathlib import Path
from qdqtune.cli.main import main
from qdqtune.graph import _files as files
checked = files._checked
def cut_afterwards(proto, file):
    model = checked(proto, file)
    with file.with_name("w.bin").open("r+b") as weights:
        weights.truncate(100)
    return model
files._checked = cut_afterwards
sys.exit(main(json.loads(sys.argv[1])))
"""


@pytest.mark.parametrize(
    "line",
    [
        ["convert", "--to", "fp16", "-o", "half.onnx"],
        ["insert", "--ops", "MatMul", "-o", "inserted.onnx"],
        ["optimize", "-o", "optimized.onnx"],
        ["quantize", "--engine", "onnxruntime", "-o", "quantized.onnx"],
        ["tune", "--engine", "simulated", "-o", "run"],
    ],
    ids=lambda line: line[0],
)
def test_a_command_whose_weights_are_cut_says_so(tmp_path: Path, line: list[str]) -> None:
    save_beside(tmp_path)
    arguments = json.dumps([line[0], "m.onnx", *line[1:]])
    done = subprocess.run(
        [sys.executable, "-c", CUT_MEANWHILE, arguments],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "w.bin" in done.stderr
    assert "that file ends before it" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("dtype", ["FLOAT", "FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "INT4", "BOOL"])
def test_every_type_is_read_as_onnx_ir_reads_it(tmp_path: Path, dtype: str) -> None:
    kind = ir.DataType[dtype]
    shape = ir.Shape([3, 5])
    (tmp_path / "w.bin").write_bytes(bytes(n % 2 for n in range(80)))
    size = -(-15 * kind.bitwidth // 8)
    mapped = ir.ExternalTensor(
        "w.bin", 8, size + 2, kind, shape=shape, name="w", base_dir=str(tmp_path)
    )
    read = FileTensor.of(mapped)
    np.testing.assert_array_equal(read.numpy(), mapped.numpy())
    assert read.numpy().dtype == mapped.numpy().dtype
    assert read.tobytes() == mapped.tobytes()[:size]
    np.testing.assert_array_equal(np.asarray(read), np.asarray(mapped))


def test_nothing_is_read_of_an_empty_tensor(tmp_path: Path) -> None:
    empty = FileTensor(
        "w.bin", 0, 0, ir.DataType.FLOAT, shape=ir.Shape([0, 3]), name="w", base_dir=str(tmp_path)
    )
    assert empty.numpy().shape == (0, 3)
    assert empty.numpy().dtype == np.float32


@pytest.mark.parametrize("become", ["link", "pipe", "hard link"])
def test_a_file_that_has_become_something_else_is_not_read(tmp_path: Path, become: str) -> None:
    (tmp_path / "model").mkdir()
    model = load_model(save_beside(tmp_path / "model"))
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    weights, secret = tmp_path / "model" / "w.bin", tmp_path / "secret"
    weights.rename(secret)
    if become == "pipe":
        os.mkfifo(weights)
    elif become == "link":
        weights.symlink_to(secret)
    else:
        os.link(secret, weights)
    with pytest.raises(ModelError, match="can't be read now"):
        tensor.numpy()
