"""Sizes that a model leaves open are asked for, never guessed, where something is measured."""

from __future__ import annotations

import re

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from qdqtune.graph._measured_shapes import measured_shapes, with_sizes_from
from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import InputRequest
from tests.conftest import model_from_text

Dims = list[int | str | None]


def inputs(dtype: int = TensorProto.FLOAT, **dims: Dims) -> ir.Model:
    """A model that takes inputs with these dims."""
    infos = [helper.make_tensor_value_info(name, dtype, shape) for name, shape in dims.items()]
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in dims]
    outputs = [helper.make_tensor_value_info(f"{name}_out", dtype, None) for name in dims]
    graph = helper.make_graph(nodes, "g", infos, outputs)
    model: ir.Model = ir.from_proto(helper.make_model(graph))
    return model


def refusal(model: ir.Model, request: InputRequest | None = None) -> tuple[str, str]:
    """What is said, and the example in it, which must be enough."""
    request = request or InputRequest()
    with pytest.raises(UsageError) as caught:
        measured_shapes(model, request)
    found = re.search(r"--shapes (\S+?)\.?$", caught.value.hint)
    assert found is not None
    example = InputRequest.from_text([found[1]])
    both = InputRequest({**request.shapes, **example.shapes}, request.dims)
    assert measured_shapes(model, both)
    return caught.value.what, found[1]


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        ({"x": ["N", 3, 8, 8]}, {"x": (1, 3, 8, 8)}),
        ({"x": [None, 3], "y": ["?", 4]}, {"x": (1, 3), "y": (1, 4)}),
        ({"x": ["N"], "y": ["2*N", 3]}, {"x": (1,), "y": (2, 3)}),
        ({"x": [], "n": ["N"]}, {"x": (), "n": (1,)}),
        # The state of a recurrent net: what is called a batch is the batch wherever it stands.
        ({"x": ["batch", 8], "h": [2, "batch", 4]}, {"x": (1, 8), "h": (2, 1, 4)}),
        ({}, {}),
    ],
)
def test_a_leading_dim_is_one(dims: dict[str, Dims], expected: object) -> None:
    assert measured_shapes(inputs(**dims), InputRequest()) == expected


@pytest.mark.parametrize(
    ("dims", "named", "example"),
    [
        ({"image": ["N", 3, "H", "W"]}, ["'image' is [N,3,H,W]"], "image:1x3x224x224"),
        ({"image": ["N", 3, 48, "W"]}, ["'image' is [N,3,48,W]"], "image:1x3x48x224"),
        ({"image": [1, None, None, None]}, ["'image' is 1x?x?x?"], "image:1x3x224x224"),
        ({"image": ["N", "H", "W", 3]}, ["'image'"], "image:1x224x224x3"),
        ({"image": [None, None, None, 3]}, ["'image'"], "image:1x224x224x3"),
        ({"clip": ["N", None, None, "H", "W"]}, ["'clip'"], "clip:1x3x16x224x224"),
        ({"sound": ["N", "samples"]}, ["'sound'"], "sound:1x128"),
        # One shape tells the others' sizes where they have the same names.
        ({"ids": ["batch", "seq"], "mask": ["batch", "seq"]}, ["'ids'", "'mask'"], "ids:1x128"),
        ({"ids": [None, None], "mask": [None, None]}, ["'ids'"], "ids:1x128,mask:1x128"),
        ({"ids": ["N", "s"], "past": ["N", 8, "s + 1", 16]}, ["'past'"], "ids:1x128"),
        # A name that leads one input is not the batch of another.
        ({"ids": ["batch", "seq"], "position": ["seq"]}, ["'ids'"], "ids:1x128"),
        ({"nodes": ["N", 8], "edges": ["N", "N"]}, ["'edges'"], "edges:128x128"),
        ({"x": ["floor(H/2)", "H"]}, ["'x'"], "x:112x224"),
    ],
)
def test_other_dims_are_asked_for(dims: dict[str, Dims], named: list[str], example: str) -> None:
    said, shown = refusal(inputs(**dims))
    assert shown == example
    for words in named:
        assert words in said


def test_what_was_given_is_not_asked_for() -> None:
    model = inputs(image=["N", 3, "H", "W"])
    assert refusal(model, InputRequest(dims={"H": 48}))[1] == "image:1x3x48x224"
    assert refusal(model, InputRequest({"image": (2, None, None, 80)}))[1] == "image:2x3x224x80"
    assert measured_shapes(model, InputRequest({"": (2, 3, 4, 5)})) == {"image": (2, 3, 4, 5)}


@pytest.mark.parametrize(
    ("text", "example"),
    [
        ("g (float[N,C,H,W] x) => (float[] y) <float[8,2,3,3] w> "
         "{ y = Conv <group = 2> (x, w) }", "x:1x4x224x224"),
        ("g (float[N,C,H,W] x) => (float[] y) <float[3] m, float[8,1,3,3] w> "
         "{ s = Sub(x, m) y = Conv(s, w) }", "x:1x1x224x224"),
        ("g (float[N,T,F] x) => (float[] y) <float[40,8] w> { y = MatMul(x, w) }", "x:1x128x40"),
        ("g (float[N,F] x) => (float[] y) <float[8,40] w> "
         "{ y = Gemm <transB = 1> (x, w) }", "x:1x40"),
        ("g (float[N,C,H,W] x) => (float[] y) <float[5,8,2,2] w> "
         "{ y = ConvTranspose(x, w) }", "x:1x5x224x224"),
    ],
)  # fmt: skip
def test_the_example_has_the_channels_that_weights_ask_for(text: str, example: str) -> None:
    assert refusal(ir.from_proto(model_from_text(text)))[1] == example


def test_sizes_can_come_from_ranges_of_shapes() -> None:
    model = inputs(x=["N", "T"], y=["N", None])
    least = InputRequest({"x": (1, 2), "y": (1, 3)})
    most = InputRequest({"x": (4, 8)})
    found = with_sizes_from(model, InputRequest(dims={"T": 5}), (most, None, least))
    assert measured_shapes(model, found) == {"x": (4, 5), "y": (4, 3)}
