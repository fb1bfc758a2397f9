"""ONNX Runtime is spared what takes it time with the square of the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtune.engines._onnxruntime import to_open

MANY = 12_000


def save(
    folder: Path, nodes: list[onnx.NodeProto], inputs: tuple[str, ...] = ("x",), extra: int = MANY
) -> str:
    """A model with two weights that are read, and many that may not be."""
    names = ["used", "outer", *(f"w{number}" for number in range(extra))]
    weights = [numpy_helper.from_array(np.ones(4, np.float32), name) for name in names]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in inputs]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph(nodes, "g", values, [output], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return str(path)


def add(other: str) -> list[onnx.NodeProto]:
    return [helper.make_node("Add", ["x", other], ["y"])]


def weights_of(content: str | bytes) -> list[str]:
    assert isinstance(content, bytes)
    return [tensor.name for tensor in onnx.ModelProto.FromString(content).graph.initializer]


def test_of_very_many_weights_those_that_nothing_reads_are_left_out(tmp_path: Path) -> None:
    assert weights_of(to_open(save(tmp_path, add("used"))).model) == ["used"]


def test_what_a_body_reads_or_returns_is_read(tmp_path: Path) -> None:
    result = helper.make_tensor_value_info("outer", TensorProto.FLOAT, [4])
    inner = helper.make_tensor_value_info("z", TensorProto.FLOAT, [4])
    then = helper.make_graph([], "then", [], [result])
    other = helper.make_graph([helper.make_node("Neg", ["used"], ["z"])], "else", [], [inner])
    branches = {"then_branch": then, "else_branch": other}
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Cast", ["s"], ["c"], to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], **branches),
    ]
    assert weights_of(to_open(save(tmp_path, nodes)).model) == ["used", "outer"]


@pytest.mark.parametrize(
    "settings", [{"extra": 100}, {"inputs": ("x", *(f"w{number}" for number in range(MANY)))}]
)
def test_few_weights_and_defaults_of_inputs_are_left_alone(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    path = save(tmp_path, add("used"), **settings)  # type: ignore[arg-type]
    assert to_open(path).model == path


@pytest.mark.parametrize("content", [b"no model" * 20_000, None])
def test_what_is_no_model_is_left_to_the_engine(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    assert to_open(str(path)).model == str(path)


def test_weights_beside_the_model_are_found_there(tmp_path: Path) -> None:
    path = Path(save(tmp_path, add("used")))
    proto = onnx.load(path)
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert to_open(str(path)).model == str(path)


@pytest.mark.parametrize(("count", "without"), [(MANY, ["ConstantSharing"]), (100, [])])
def test_what_compares_all_weights_with_all_is_left_out(
    tmp_path: Path, count: int, without: list[str]
) -> None:
    opened = to_open(save(tmp_path, add("used"), extra=count))
    assert list(opened.without) == without
    assert bool(opened.optimized_path) == bool(without), "weights are searched for, one by one"
