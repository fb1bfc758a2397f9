"""What a model's outputs are decided by: the scores that go into a last Softmax or ArgMax.

Behind a Softmax, errors are all or nothing. Of eight lines of text that a recognizer reads, one
letter read otherwise makes 16 dB of what was 26, and what is to blame can't be told from that.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx.helper import make_node, make_tensor

from qdqtune.graph.atomic_files import replacing

_SCORES = "qdqtune_scores"
_DECIDING = frozenset({"ArgMax", "ArgMin", "LogSoftmax", "Sigmoid", "Softmax", "TopK"})
_PASSING = frozenset(
    {
        "Cast", "DequantizeLinear", "Flatten", "Identity", "QuantizeLinear", "Reshape", "Squeeze",
        "Transpose", "Unsqueeze",
    }
)  # fmt: skip
# From here on a Softmax is along one axis, and what else it may be is known.
_AXIS_OPSET, _AXES_INPUT_OPSET = 13, 18


def add_scores(path: Path) -> tuple[Path, dict[str, str]]:
    """Write a copy of a model beside it that shows its scores as well.

    Args:
        path: A model; its weights may lie in files beside it.

    Returns:
        The copy, and the names of its new outputs with those that they decide; the model itself if
        no output is decided by scores.
    """
    try:
        proto = onnx.load(path, load_external_data=False)
    except DecodeError:  # the engine will say so
        return path, {}
    producers = {output: node for node in proto.graph.node for output in node.output}
    opset = max((each.version for each in proto.opset_import if not each.domain), default=0)
    found: dict[str, str] = {}
    for output in list(proto.graph.output):
        deciding = _deciding(output.name, producers)
        if deciding is not None:
            name = f"{_SCORES}_{len(found)}"
            _show(proto.graph, deciding, name, opset)
            found[name] = output.name
    if not found:
        return path, {}
    copy = path.with_name(f"{path.stem}_scores{path.suffix}")
    with replacing(copy) as file:
        file.write(proto.SerializeToString())
    return copy, found


def has_scores(path: Path) -> bool:
    """Whether an output of a model is decided by scores.

    Args:
        path: A model.
    """
    graph = onnx.load(path, load_external_data=False).graph
    producers = {output: node for node in graph.node for output in node.output}
    return any(_deciding(output.name, producers) is not None for output in graph.output)


def _deciding(output: str, producers: dict[str, onnx.NodeProto]) -> onnx.NodeProto | None:
    """The first of the ops at the end of a model that decide on what came before them."""
    found, seen = None, 0
    node = producers.get(output)
    while node is not None and seen <= len(producers):
        if node.op_type in _DECIDING and not node.domain:
            found = node
        elif node.op_type not in _PASSING or node.domain:
            break
        node = producers.get(node.input[0]) if node.input else None
        seen += 1
    return found


def _show(graph: onnx.GraphProto, deciding: onnx.NodeProto, name: str, opset: int) -> None:
    """Add an output: the scores, without what all of them have in common."""
    source = deciding.input[0]
    if deciding.op_type in ("LogSoftmax", "Softmax") and opset >= _AXIS_OPSET:
        axis = next((each.i for each in deciding.attribute if each.name == "axis"), -1)
        mean = f"{name}_mean"
        if opset >= _AXES_INPUT_OPSET:
            axes = make_tensor(f"{name}_axes", onnx.TensorProto.INT64, [1], [axis])
            graph.initializer.append(axes)
            graph.node.append(make_node("ReduceMean", [source, axes.name], [mean], keepdims=1))
        else:
            graph.node.append(make_node("ReduceMean", [source], [mean], axes=[axis], keepdims=1))
        graph.node.append(make_node("Sub", [source, mean], [name]))
    else:
        graph.node.append(make_node("Identity", [source], [name]))
    graph.output.append(onnx.ValueInfoProto(name=name))  # of the type that it turns out to be
