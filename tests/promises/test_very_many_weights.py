"""What a command does grows with the number of weights and nodes, not with its square.

Work is counted, not timed: calls of Python functions, in which a generator's every step is one.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtune.cli.main import main
from qdqtune.graph._optimizing import _MOST_INPUTS

FEW = _MOST_INPUTS + 200


def _weights(count: int) -> list[onnx.TensorProto]:
    """Some of them are equal."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(count // 2 + 1, 1, 4)).astype(np.float32)
    last = numpy_helper.from_array(rng.normal(size=(4, 4)).astype(np.float32), "last")
    return [last, *(numpy_helper.from_array(values[n // 2], f"w{n}") for n in range(count))]


def _joined(count: int) -> list[onnx.NodeProto]:
    """One node that reads all."""
    names = ["x", *(f"w{number}" for number in range(count))]
    return [
        helper.make_node("Concat", names, ["c"], axis=0, name="join"),
        helper.make_node("MatMul", ["c", "last"], ["y"], name="matmul"),
    ]


def _chained(count: int) -> list[onnx.NodeProto]:
    """One node after the other."""
    names = ["x", *(f"t{number}" for number in range(count))]
    return [
        *(
            helper.make_node("Add", [names[n], f"w{n}"], [names[n + 1]], name=f"n{n}")
            for n in range(count)
        ),
        helper.make_node("MatMul", [names[-1], "last"], ["y"], name="matmul"),
    ]


def _unread(count: int) -> list[onnx.NodeProto]:
    """Nobody reads them."""
    del count
    return [helper.make_node("MatMul", ["x", "last"], ["y"], name="matmul")]


def _repeated(count: int) -> list[onnx.NodeProto]:
    """One value passed on, which could be a constant that is repeated."""
    names = ["x", *(f"t{number}" for number in range(count))]
    pairs = itertools.pairwise(names)
    return [
        *(helper.make_node("Identity", [one], [other], name=other) for one, other in pairs),
        helper.make_node("MatMul", [names[-1], "last"], ["y"], name="matmul"),
    ]


def _fanned(count: int) -> list[onnx.NodeProto]:
    """One value read by all nodes but one, which reads all of their results."""
    names = [f"t{number}" for number in range(count)]
    return [
        *(helper.make_node("Relu", ["x"], [name], name=name) for name in names),
        helper.make_node("Concat", names, ["c"], axis=0, name="join"),
        helper.make_node("MatMul", ["c", "last"], ["y"], name="matmul"),
    ]


MODELS = {each.__name__: each for each in (_joined, _chained, _unread, _repeated, _fanned)}
COMMANDS = {
    "convert": ["--to", "fp16"],
    "optimize": [],
    "insert": ["--ops", "MatMul", "--engine", "onnxruntime"],
    "strip": [],
}


def _save(folder: Path, form: str, count: int) -> Path:
    size = {"_joined": count + 1, "_fanned": count}.get(form, 1)
    graph = helper.make_graph(
        MODELS[form](count),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [size, 4])],
        _weights(count),
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / f"{count}.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def _calls(model: Path, command: str) -> int:
    """How many calls a command takes, which must succeed."""
    count = 0
    if command == "strip":  # there has to be something to take out
        quantized = model.with_suffix(".qdq.onnx")
        assert main(["insert", str(model), *COMMANDS["insert"], "-o", str(quantized), "-q"]) == 0
        model = quantized

    def see(_: FrameType, event: str, __: Any) -> None:
        nonlocal count
        count += event == "call"

    line = [command, str(model), *COMMANDS[command], "-o", f"{model}.{command}", "--force", "-q"]
    sys.setprofile(see)
    try:
        code = main(line)
    finally:
        sys.setprofile(None)
    assert code == 0, line
    return count


SAMPLED = [("optimize", "_joined")]
ALL = [(command, form) for command in COMMANDS for form in MODELS]


@pytest.mark.parametrize(
    ("command", "form"),
    [pytest.param(*case, marks=() if case in SAMPLED else pytest.mark.slow) for case in ALL],
)
def test_twice_as_many_weights_take_twice_the_calls(
    tmp_path: Path, command: str, form: str
) -> None:
    _calls(_save(tmp_path, form, 10), command)  # what is imported and looked up once
    few = _calls(_save(tmp_path, form, FEW), command)
    many = _calls(_save(tmp_path, form, 2 * FEW), command)
    assert few > FEW
    assert many < 2.4 * few
