"""Shapes of inputs as asked for, and of what lies between for a while."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._input_shapes import bind_dims, input_dims, resolve_shapes, symbols_of
from qdqtune.graph._shapes import at_shapes, infer_shapes, set_input_dims
from qdqtune.records._errors import ModelError, UsageError
from qdqtune.records._inputs import InputRequest
from tests.conftest import model_from_text

Given = dict[str, tuple[int | None, ...]]


def inputs(**dims: list[int | str | None] | None) -> ir.Model:
    """A model that takes inputs with these dims."""
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in dims.items()]
    nodes = [helper.make_node("Identity", [n], [f"{n}_out"], f"id_{n}") for n in dims]
    outputs = [helper.make_tensor_value_info(f"{n}_out", TensorProto.FLOAT, None) for n in dims]
    model: ir.Model = ir.from_proto(
        helper.make_model(helper.make_graph(nodes, "g", infos, outputs))
    )
    return model


@pytest.mark.parametrize(
    ("dims", "shapes", "sizes", "expected"),
    [
        ({"x": ["N", 3, "H", "W"]}, {}, {"N": 8}, {"x": (8, 3, 1, 1)}),
        ({"x": ["N", 3], "y": ["N", 10]}, {"x": (4, 3)}, {}, {"x": (4, 3), "y": (4, 10)}),
        ({"x": ["N", 3], "y": ["2*N", "N + 1"]}, {"x": (4, 3)}, {}, {"x": (4, 3), "y": (8, 5)}),
        ({"x": ["N"], "y": ["2*N"]}, {}, {}, {"x": (1,), "y": (2,)}),
        ({"x": ["floor(H/2)", "H"]}, {}, {}, {"x": (1, 1)}),
        ({"x": ["2*N"], "y": ["2*N", "N"]}, {"x": (6,)}, {}, {"x": (6,), "y": (6, 1)}),
        ({"x": [-1, 0, None, "?"]}, {"x": (2, 3, 4, 5)}, {}, {"x": (2, 3, 4, 5)}),
        ({"x": [-1, 3, None]}, {}, {}, {"x": (1, 3, 1)}),
        ({"x": ["?", "?"]}, {"x": (48, 192)}, {}, {"x": (48, 192)}),
        ({"x": ["N", 3, 8]}, {"x": (None, None, 8)}, {"N": 2}, {"x": (2, 3, 8)}),
        ({"x": ["a b", 2]}, {}, {"a b": 5}, {"x": (5, 2)}),
        ({"x": ["unk__1", 3]}, {"": (7, 3)}, {}, {"x": (7, 3)}),
        ({"x": None}, {"x": (2, 3)}, {}, {"x": (2, 3)}),
        ({"x": []}, {}, {}, {"x": ()}),
    ],
)
def test_resolved(
    dims: dict[str, list[int | str | None]], shapes: Given, sizes: dict[str, int], expected: object
) -> None:
    assert resolve_shapes(inputs(**dims), InputRequest(shapes, sizes)) == expected


def test_weights_that_are_listed_as_inputs_are_not_fed() -> None:
    proto = model_from_text(
        "g (float[N,3] x, float[3] w) => (float[N,3] y) { y = Add(x, w) }", w=np.ones(3, np.float32)
    )
    assert resolve_shapes(ir.from_proto(proto), InputRequest(dims={"N": 2})) == {"x": (2, 3)}


@pytest.mark.parametrize(
    ("shapes", "sizes", "words"),
    [
        ({"imagee": (1, 3)}, {}, ["no input 'imagee'", "'image'", "image:[N,3,H]", "y:[N,10]"]),
        ({"": (1, 3)}, {}, ["2 inputs", "image:[N,3,H]"]),
        ({"image": (1, 3)}, {}, ["'image' has 3 dims", "1x3 has 2"]),
        (
            {"image": (1, 4, 8)},
            {},
            ["Dim 1 of the input 'image'", "fixed at 3", "--set image:1x4x8"],
        ),
        ({}, {"M": 3}, ["called 'M'", "N, H"]),
        ({}, {"NN": 3}, ["called 'NN'", "'N'"]),
        ({"image": (4, 3, 8)}, {"N": 3}, ["'N' is 3 by --dim N=3, but 4 by image[0]"]),
        ({"image": (4, 3, 8), "y": (5, 10)}, {}, ["'N' is 4 by image[0], but 5 by y[0]"]),
    ],
)
def test_requests_that_do_not_fit(shapes: Given, sizes: dict[str, int], words: list[str]) -> None:
    model = inputs(image=["N", 3, "H"], y=["N", 10])
    with pytest.raises(UsageError) as caught:
        resolve_shapes(model, InputRequest(shapes, sizes))
    for word in words:
        assert word in str(caught.value)


def test_an_expression_is_held_to_its_symbols() -> None:
    with pytest.raises(UsageError, match=r"'2\*N' is 9 by y\[0\], but 8"):
        resolve_shapes(inputs(x=["N"], y=["2*N"]), InputRequest({"x": (4,), "y": (9,)}))


def test_a_model_without_names_says_what_to_pass() -> None:
    with pytest.raises(UsageError, match="No dim has a name: give whole shapes"):
        resolve_shapes(inputs(x=[None, 3]), InputRequest(dims={"N": 3}))


def test_an_input_without_a_rank_has_no_shape() -> None:
    with pytest.raises(ModelError, match="not even a rank"):
        resolve_shapes(inputs(x=None), InputRequest())


def test_fixed_dims_change_only_when_allowed() -> None:
    dims = input_dims(inputs(x=[1, 3, "H"]))
    request = InputRequest({"x": (8, None, None)})
    assert bind_dims(dims, request, change_fixed=True) == {"x": (8, 3, "H")}
    with pytest.raises(UsageError, match="fixed at 1"):
        bind_dims(dims, request)


def test_symbols_in_order() -> None:
    assert symbols_of(input_dims(inputs(x=["N", "2*H"], y=["N", "W", -1]))) == ("N", "H", "W")


def test_the_warning_names_open_dims_and_what_to_pass(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "qdqtune"):
        resolve_shapes(inputs(x=["N", 3, None], y=["N"]), InputRequest())
    assert "N (x[0], y[0]), x[2]" in caplog.text
    assert "--dim N=SIZE --shapes x:1x3x1" in caplog.text
    caplog.clear()
    resolve_shapes(inputs(x=["N", 3]), InputRequest(dims={"N": 2}))
    assert not caplog.text


@pytest.fixture
def open_model() -> ir.Model:
    """Shapes follow from the input, but for what is behind a foreign op and NonZero."""
    proto = model_from_text(
        """
        g (float[N,3,H] x) => (float[N,M] y, int64[R,K] z) {
            r = Relu(x)
            s = Shape(r)
            b = Gather(s, zero)
            t = Concat<axis=0>(b, rest)
            f = Reshape(r, t)
            o = far.Away(f)
            y = Relu(o)
            z = NonZero(f)
        }""",
        zero=np.array([0]),
        rest=np.array([-1]),
    )
    proto.opset_import.add(domain="far", version=1)
    proto.graph.node[5].domain, proto.graph.node[5].op_type = "far", "Away"
    proto.graph.value_info.append(
        helper.make_tensor_value_info("o", TensorProto.FLOAT, ["N", "3*H"])
    )
    proto.graph.value_info.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, [5, 3, 5]))
    model: ir.Model = ir.from_proto(proto)
    return model


def test_intermediate_shapes_are_known_for_a_while(open_model: ir.Model) -> None:
    index = GraphIndex(open_model)
    before = {name: str(value.shape) for name, value in index.value.items()}
    with at_shapes(open_model, {"x": (4, 3, 8)}):
        assert index.shape("r") == (4, 3, 8)  # what the file says of it is wrong
        assert index.shape("f") == (4, 24)
        assert index.shape("o") == (4, 24)  # kept from the file, with its symbols bound
        assert str(index.value["x"].shape) == "[N,3,H]"
        assert str(index.value["y"].shape) == "[N,M]"
        onnx.checker.check_model(ir.to_proto(open_model))
    assert {name: str(value.shape) for name, value in index.value.items()} == before


def test_shapes_are_put_back_when_something_fails(open_model: ir.Model) -> None:
    before = str(open_model.graph.node("n0").outputs[0].shape)
    with pytest.raises(KeyError), at_shapes(open_model, {"x": (4, 3, 8)}):
        raise KeyError
    assert str(open_model.graph.node("n0").outputs[0].shape) == before


def test_bodies_are_known_too() -> None:
    proto = model_from_text(
        """
        g (bool c, float[N] x) => (float[K] y) {
            y = If (c) <
                then_branch = t () => (float[A] a) { a = Relu(x) },
                else_branch = e () => (float[B] b) { b = Neg(x) }
            >
        }"""
    )
    model = ir.from_proto(proto)
    inner = [node.outputs[0] for graph in model.graphs() for node in graph if node.op_type == "Neg"]
    with at_shapes(model, {"c": (), "x": (6,)}):
        assert str(inner[0].shape) == "[6]"
    assert str(inner[0].shape) == "[B]"


def test_minus_one_is_no_size_to_compute_with() -> None:
    proto = model_from_text(
        "g (float[2,3] x) => (float[A,B] y) { t = Concat<axis=0>(x, x) y = Relu(t) }"
    )
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    model = ir.from_proto(proto)
    infer_shapes(model)
    index = GraphIndex(model)
    assert index.shape("t") == (None, 3)
    assert str(index.value["x"].shape) == "[-1,3]"


def test_stale_shapes_are_not_trusted() -> None:
    proto = model_from_text("g (float[1,3] x) => (float[1,3] y) { t = Relu(x) y = Neg(t) }")
    proto.graph.value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, [1, 3]))
    model = ir.from_proto(proto)
    set_input_dims(model, {"x": (8, 3)}, stale=True)
    assert [str(node.outputs[0].shape) for node in model.graph] == ["[8,3]", "[8,3]"]


def test_large_weights_are_neither_read_nor_copied(tmp_path: Path) -> None:
    weight = tmp_path / "w.bin"
    with weight.open("wb") as file:
        file.truncate(3 << 30)
    proto = model_from_text("g (float[N,4] x) => (float[N,M] y) { h = MatMul(x, w) y = Relu(h) }")
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, (3 << 30) // 16])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    proto.graph.initializer.append(tensor)
    model = ir.from_proto(proto)
    ir.external_data.set_base_dir(model.graph, str(tmp_path))
    constant = model.graph.initializers["w"].const_value
    weight.unlink()  # who reads it now fails
    with at_shapes(model, {"x": (2, 4)}):
        assert GraphIndex(model).shape("h") == (2, (3 << 30) // 16)
    assert model.graph.initializers["w"].const_value is constant
