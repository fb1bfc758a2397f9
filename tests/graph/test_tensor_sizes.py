"""Tensors that no memory holds are found before the model runs."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune.graph._measured_shapes import check_fits
from qdqtune.graph._protobuf import stored_size
from qdqtune.records._errors import ModelError
from qdqtune.resources import resource_limits
from tests.conftest import model_from_text

TERA = 1 << 40


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        ("e = Expand(x, s)", {"s": [TERA, 4]}),
        ("e = Expand(x, s)", {"s": [1 << 62, 1 << 62, 1 << 62, 4]}),
        ("r = Concat<axis = 0>(x, x) e = Tile(r, s)", {"s": [1, TERA]}),
        ("e = ConstantOfShape(s)", {"s": [TERA, TERA]}),
        ("e = Pad(x, s)", {"s": [0, TERA, 0, 0]}),
    ],
)
def test_the_tensor_and_its_node_are_named(body: str, constants: dict[str, list[int]]) -> None:
    text = f"g (float[N,4] x) => (float[A,B] y) {{ {body} y = Relu(e) }}"
    weights = {name: np.array(values) for name, values in constants.items()}
    model = ir.from_proto(model_from_text(text, **weights))
    before = [value.shape for value in model.graph.inputs]
    with pytest.raises(ModelError, match=r"The tensor 'e', which the node .* takes .* TiB"):
        check_fits(model, {"x": (1, 4)})
    assert [value.shape for value in model.graph.inputs] == before


def test_outputs_count_whose_sizes_the_model_leaves_open() -> None:
    text = "g (float[N,4] x) => (float[A,B,C] y) { y = Expand(x, s) }"
    model = ir.from_proto(model_from_text(text, s=np.array([TERA, 1, 4])))
    with pytest.raises(ModelError, match="The tensor 'y'"):
        check_fits(model, {"x": (1, 4)})
    assert list(model.graph.outputs[0].shape or ()) == ["A", "B", "C"]


def test_a_limit_decides() -> None:
    text = "g (float[N,1024] x) => (float[N,1024] y) { y = Relu(x) }"
    model = ir.from_proto(model_from_text(text))
    with resource_limits(max_memory="1GiB"):
        check_fits(model, {"x": (1 << 18, 1024)})
        with pytest.raises(ModelError, match=r"262145x1024 and takes 1\.0 GiB: more"):
            check_fits(model, {"x": ((1 << 18) + 1, 1024)})


def test_what_loops_and_branches_compute_counts() -> None:
    text = """g (float[1,4] x, bool c) => (float[A,B] y) {
        y = If (c) <
            then_branch = a () => (p) {
                s = Constant<value_ints = [1099511627776, 4]>() p = Expand(x, s)
            },
            else_branch = b () => (q) { q = Relu(x) }
        >
    }"""
    model = ir.from_proto(model_from_text(text))
    with pytest.raises(ModelError, match="The tensor"):
        check_fits(model, {"x": (1, 4), "c": ()})


@pytest.mark.parametrize("dtype", ir.DataType)
def test_a_tensor_takes_the_bits_of_its_type(dtype: ir.DataType) -> None:
    tensor = onnx.TensorProto(data_type=dtype.value, dims=[3, 5])
    if dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        with pytest.raises(ValueError, match=f"{dtype.value}"):
            stored_size(tensor)
    else:
        assert stored_size(tensor) == math.ceil(15 * dtype.bitwidth / 8)
