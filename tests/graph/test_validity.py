"""What no array, name or memory could hold is refused when a model is loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune.graph._files import load_model
from qdqtune.graph._input_shapes import InputRequest, resolve_shapes
from qdqtune.records._errors import ModelError, UsageError
from qdqtune.resources import resource_limits
from tests.conftest import model_from_text


def one_add() -> onnx.ModelProto:
    text = "g (float[4] x) => (float[N] y) { y = Add(x, w) }"
    return model_from_text(text, w=np.zeros(4, np.float32))


def save(model: onnx.ModelProto, folder: Path) -> Path:
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def test_an_input_of_100_dims_is_refused(tmp_path: Path) -> None:
    model = one_add()
    dims = [1] * 99 + [4]
    model.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("x", 1, dims))
    with pytest.raises(ModelError, match="input 'x' has 100 dims; arrays have 32 at most"):
        load_model(save(model, tmp_path))


@pytest.mark.parametrize("external", [False, True])
def test_a_weight_of_100_dims_is_refused(tmp_path: Path, external: bool) -> None:
    model = one_add()
    weight = model.graph.initializer[0]
    weight.dims[:] = [1] * 99 + [4]
    if external:
        (tmp_path / "w.bin").write_bytes(weight.raw_data)
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="w.bin")
    with pytest.raises(ModelError, match="'w' is broken: it has 100 dims"):
        load_model(save(model, tmp_path))


def test_a_shape_of_100_dims_is_refused_where_the_model_says_no_rank() -> None:
    model = one_add()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UsageError, match="input 'x' has 100 dims; arrays have 32 at most"):
        resolve_shapes(ir.from_proto(model), InputRequest(shapes={"x": (1,) * 100}))


@pytest.mark.parametrize("where", ["node", "tensor", "input"])
def test_endless_names_are_refused(tmp_path: Path, where: str) -> None:
    model, name = one_add(), "n" * 100_000
    if where == "node":
        model.graph.node[0].name = name
    elif where == "tensor":
        model.graph.node[0].input[1] = model.graph.initializer[0].name = name
    else:
        model.graph.node[0].input[0] = model.graph.input[0].name = name
    with pytest.raises(ModelError, match="a name of 100,000 characters") as error:
        load_model(save(model, tmp_path))
    assert len(str(error.value)) < 1000


def test_a_weight_larger_than_the_memory_is_refused(tmp_path: Path) -> None:
    model = one_add()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.dims[:] = [1 << 28]
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(1 << 30)  # it takes no room on the disk
    path = save(model, tmp_path)
    with resource_limits("2GiB"):
        load_model(path)
    words = r"takes 1 GiB, which is more than the memory that may be used \(512 MiB; --max_memory\)"
    with resource_limits("512MiB"), pytest.raises(ModelError, match=words):
        load_model(path)
